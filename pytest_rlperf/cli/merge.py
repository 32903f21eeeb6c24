"""``rlperf merge``: the shards of a run as one run, with one table and one exit code."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_rlperf.cli.command import Command, Exit, UsageError, has_color, print_text, table_width
from pytest_rlperf.cli.files import exit_code, read
from pytest_rlperf.cli.show import summary_of


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="the --rlperf-json of each --rlperf-shard=K/N")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the merged run, as --rlperf-json does")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write its report, as --rlperf-html does")
    parser.add_argument("-v", "--verbose", action="store_true", help="every test's phases and what its figures rest on")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.files import OutputError, check_apart, write_file
    from pytest_rlperf.report.html import render_html
    from pytest_rlperf.report.merge import MergeError, merge_shards
    from pytest_rlperf.report.run_json import document_of, written
    from pytest_rlperf.report.statuses import compares_nothing
    from pytest_rlperf.report.terminal import render_summary

    try:
        check_apart({"--json": arguments.json, "--html": arguments.html})
        run = merge_shards(dict(map(read, arguments.files)))
        outcomes = list(run.tests.values())
        summary = summary_of(run, outcomes)
        if arguments.json is not None:  # files come before the table, since its reader may close the pipe
            write_file("--json", arguments.json, written(document_of(run)))
        if arguments.html is not None:
            created = run.provenance.created if run.provenance else ""
            page = render_html(outcomes, summary, tolerances={}, command="pytest --rlperf", created=created)
            write_file("--html", arguments.html, page)
    except (MergeError, OutputError) as error:
        raise UsageError(str(error)) from None
    print_text(render_summary(outcomes, summary, width=table_width(), color=has_color(), verbose=arguments.verbose))
    if compares_nothing(outcomes):
        raise UsageError("nothing was compared: no gated test runs on the base side")
    return Exit.SLOWER if run.failed else exit_code(outcomes, [])


MERGE = Command("merge", "Join the shards of a run: one table, one exit code.", _add_arguments, _run)
