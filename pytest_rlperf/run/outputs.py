"""The files that a run writes at its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_rlperf.options import Config
from pytest_rlperf.report import benchmark_json
from pytest_rlperf.report.files import (
    TRACE_OPTION,
    OutputError,
    check_directory,
    check_file,
    write_file,
    write_traces,
)
from pytest_rlperf.report.run_json import document_of, run_document, selfcheck_document, written
from pytest_rlperf.report.summary import Summary
from pytest_rlperf.run.outcomes import RunState

_JSON = "--rlperf-json"


@dataclass(frozen=True)
class Page:
    """Contents of the HTML report beside the outcomes; see :func:`render_html`."""

    summary: Summary
    tolerances: Mapping[str, float]
    command: str
    created: str

    def render(self, run: RunState) -> str:
        """Return the page; OutputError without jinja2."""
        from pytest_rlperf.report.html import render_html

        return render_html(
            list(run.outcomes.tests.values()),
            self.summary,
            tolerances=self.tolerances,
            command=self.command,
            created=self.created,
        )


def check_outputs(settings: Config, junit_xml: str | None) -> None:
    """Raise OutputError where a file cannot be written, before any time is spent on measuring.

    ``junit_xml`` is where pytest itself will write, which it would find out at the end.
    """
    # As pytest reads it.
    junit = Path(os.path.expanduser(os.path.expandvars(junit_xml))) if junit_xml else None  # noqa: PTH111
    files = ((_JSON, settings.json), (benchmark_json.OPTION, settings.benchmark_json), ("--junit-xml", junit))
    for option, path in files:
        if path is not None:
            check_file(option, path)
    if settings.html is not None:
        from pytest_rlperf.report.html import check_html  # which most runs need not load

        check_html(settings.html)
    if settings.trace is not None:
        check_directory(TRACE_OPTION, settings.trace)


def write_outputs(
    settings: Config,
    run: RunState,
    *,
    notes: Sequence[str],
    failed: Collection[str],
    unmeasured: Collection[str],
    params: Mapping[str, Mapping[str, Any]],
    page: Page,
) -> list[str]:
    """Write the files that options name, and return the errors of those that could not be written.

    ``failed`` are the keys of tests that failed, and the ids of files that cannot be collected, ``unmeasured`` the keys
    of other tests without figures, ``params`` tests' parameters by their keys.
    """
    errors = []

    def write(path: Path | None, write_to: Callable[[Path], object]) -> None:
        if path is not None:
            try:
                write_to(path)
            except OutputError as error:
                errors.append(str(error))

    def write_page(path: Path) -> None:
        from pytest_rlperf.report.html import write_html

        write_html(path, page.render(run))

    def write_benchmarks(path: Path) -> None:
        document = benchmark_json.benchmark_document(
            run.outcomes.tests, run.baselines.machine, run.provenance(), params=params
        )
        write_file(benchmark_json.OPTION, path, written(document))

    write(settings.json, lambda path: write_file(_JSON, path, written(_document(run, notes, failed, unmeasured))))
    write(settings.html, write_page)
    write(settings.benchmark_json, write_benchmarks)
    write(settings.trace, lambda path: write_traces(path, run.outcomes.traces))
    return errors


def _document(
    run: RunState, notes: Sequence[str], failed: Collection[str], unmeasured: Collection[str]
) -> dict[str, Any]:
    if run.fitness is not None:
        return selfcheck_document(run.baselines.machine, run.outcomes.selfchecks, run.fitness)
    if run.merged is not None:
        # The coordinator has more tests where a node was lost.
        merged = replace(
            run.merged,
            tests=run.outcomes.tests,
            notes=tuple(notes),
            failed=tuple(failed),
            unmeasured=tuple(unmeasured),
        )
        return document_of(merged)
    return run_document(
        run.baselines.machine,
        run.outcomes.tests,
        run.baselines.origins(list(run.outcomes.tests.values())),
        notes,
        provenance=run.provenance(),
        failed=failed,
        unmeasured=unmeasured,
        strict=run.settings.strict,
        against=run.settings.against,
        shard=run.shard,
    )
