"""``rlperf show`` and ``machine``: what runs and baselines hold, and how two machines differ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import (
    Command,
    Exit,
    UsageError,
    add_choice,
    chosen,
    has_color,
    print_text,
    table_width,
)
from pytest_rlperf.cli.files import DIRECTORY, exit_code, outcomes_of, read, results_of
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.stored import Machine

if TYPE_CHECKING:
    from pytest_rlperf.cli.files import Recorded
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.summary import Summary

_FORMATS = ("text", "markdown", "github")
_DIFFER = "times stored on one are INCOMPARABLE on the other; live pairs are not."
_EQUAL = "They are of one class: times stored on one are compared with times of the other."


# --------------------------------------------------------------------------- show


def _add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", help=f"what --rlperf-json wrote, a baseline, {DIRECTORY}, or - for standard input"
    )
    parser.add_argument(
        "other", nargs="?", metavar="FILE", help="a second one: shows the times in both, side by side, and no verdicts"
    )
    add_choice(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every test's phases, and what its figures rest on"
    )
    parser.add_argument(
        "--format",
        choices=_FORMATS,
        default=_FORMATS[0],
        help="of a run: the table (text, the default), the table for a README or an issue "
        "(markdown), or the job summary, short enough for a comment (github)",
    )


def _run_show(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.report.printable import shown

    if arguments.other is not None:
        if arguments.verbose or arguments.format != _FORMATS[0]:
            parser.error("-v and --format are for one file: leave them out, or name one")
        return _show_both([arguments.file, arguments.other], arguments.patterns)
    path, recorded = read(arguments.file)
    keys = chosen(results_of(recorded), arguments.patterns)
    if arguments.format == _FORMATS[0]:
        title = "" if path == arguments.file else f"{shown(path)}:\n\n"
        print_text(title + _rendered(recorded, keys, verbose=arguments.verbose))
    else:
        print_text(_formatted(recorded, keys, arguments.format, path))
    outcomes, results = outcomes_of(recorded), results_of(recorded)
    return exit_code([outcomes[key] for key in keys if key in outcomes], [results[key] for key in keys])


def _show_both(paths: list[str], patterns: list[str] | None) -> int:
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.recorded import render_both

    (path_a, a), (path_b, b) = map(read, paths)
    ones, others = results_of(a), results_of(b)
    keys = chosen({**ones, **others}, patterns)
    legend = f"A  {shown(path_a)}\nB  {shown(path_b)}\n\n"
    print_text(legend + render_both(keys, ones, others, width=table_width()))
    return exit_code([], [found[key] for found in (ones, others) for key in keys if key in found])


def _formatted(recorded: Recorded, keys: list[str], form: str, path: str) -> str:
    """Return verdicts in Markdown; UsageError where there are none."""
    from pytest_rlperf.report.github import COMMENT_BYTES, GitHubRun, render_summary_markdown
    from pytest_rlperf.report.markdown import grid
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.tables import verdict_table

    if not isinstance(recorded, RunFile):
        raise UsageError(f"--format={form} shows verdicts, which {path} has none of: leave it out, or give a run")
    outcomes = [recorded.tests[key] for key in keys]
    if form == "markdown":
        return f"{grid(verdict_table(outcomes))}\n" if outcomes else ""
    run = GitHubRun(
        summary=summary_of(recorded, outcomes),
        command="",
        lines={},
        environment=(),
        skipped={},
        failed=recorded.failed,
        against=recorded.against is not None,
        strict=recorded.strict,
        json=None,
    )
    return render_summary_markdown(outcomes, run, COMMENT_BYTES)


def _rendered(recorded: Recorded, keys: list[str], *, verbose: bool) -> str:
    from pytest_rlperf.baseline.machine import describe
    from pytest_rlperf.model.stored import Baseline
    from pytest_rlperf.report.recorded import render_baseline
    from pytest_rlperf.report.run_json import RunFile
    from pytest_rlperf.report.selfcheck import render_selfcheck
    from pytest_rlperf.report.terminal import render_summary

    width, color, machine = table_width(), has_color(), describe(recorded.machine)
    if isinstance(recorded, Baseline):
        table = render_baseline(recorded, keys, width=width, verbose=verbose)
        return f"{table}\nmachine   {machine}\n"
    if isinstance(recorded, RunFile):
        outcomes = [recorded.tests[key] for key in keys]
        return render_summary(outcomes, summary_of(recorded, outcomes), width=width, color=color, verbose=verbose)
    checks = [recorded.tests[key] for key in keys]
    return render_selfcheck(checks, recorded.fitness, machine=machine, width=width, color=color)


def summary_of(run: RunFile, outcomes: Sequence[Outcome]) -> Summary:
    """Return the texts below the table of some of a run's outcomes."""
    from pytest_rlperf.report.summary import NextStep, Summary
    from pytest_rlperf.report.wording import SAVING, improved

    faster = sum(outcome.verdict.status is Status.FASTER and outcome.baseline is not None for outcome in outcomes)
    steps = [NextStep(improved(faster), (SAVING,))] if faster else []
    return Summary(run.machine_lines(), run.compared, run.notes, steps)


SHOW = Command("show", "Show a run or a baseline as pytest showed it.", _add_show_arguments, _run_show)


# --------------------------------------------------------------------------- machine


def _add_machine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a run's JSON or a baseline: its machine beside this one, or beside that of a second file",
    )


def _run_machine(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.baseline.machine import differences, slug, this_machine
    from pytest_rlperf.report.recorded import render_machines

    if len(arguments.files) > 2:
        parser.error("name two files at most: a machine is compared with one other")
    files = dict(zip("AB", map(read, arguments.files), strict=False))
    found = [each for name, (path, recorded) in files.items() for each in _machines(name, path, recorded)]
    machines = {name: machine for name, _, machine in found}
    if len(files) < 2:
        machines["this machine"] = this_machine()
    legend = [f"{name}  {source}\n" for name, source, _ in found]
    text = render_machines(machines, width=table_width())
    classes = [f"class of {name}: {slug(machine)}\n" for name, machine in machines.items()]
    comparison = ""
    if len(machines) == 2:
        names = [difference.field for difference in differences(*machines.values())]
        comparison = f"\nThey differ ({', '.join(names)}): {_DIFFER}\n" if names else f"\n{_EQUAL}\n"
    print_text("\n".join([*(["".join(legend)] if legend else []), text, "".join(classes)]) + comparison)
    return Exit.NOTHING_SLOWER


def _machines(name: str, path: str, recorded: Recorded) -> list[tuple[str, str, Machine]]:
    """Return a file's machine classes, each with a name and its source: a merged run may have several."""
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.run_json import RunFile

    parts = recorded.parts if isinstance(recorded, RunFile) else ()
    machines = list(dict.fromkeys(part.machine for part in parts)) or [recorded.machine]
    if len(machines) == 1:
        return [(name, shown(path), machines[0])]
    return [(f"{name}{number}", shown(path), machine) for number, machine in enumerate(machines, 1)]


MACHINE = Command(
    "machine", "Show what identifies this machine, or how two machines differ.", _add_machine_arguments, _run_machine
)
