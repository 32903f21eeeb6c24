"""Recorded files as commands see them: read with a complaint that helps, and what all kinds of them have in common."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Exit, UsageError
from pytest_rlperf.model import Baseline, Outcome, Provenance, Result

if TYPE_CHECKING:
    from pytest_rlperf.report.reading import Recorded


def read(path: str) -> Recorded:
    """Return what a file, or standard input (``-``), holds, fit to be shown; UsageError where it cannot be read."""
    from pytest_rlperf.report.reading import ReadingError, parse
    from pytest_rlperf.report.reading import read as read_file

    try:
        if path == "-":
            return parse(sys.stdin.buffer.read(), "standard input", printable=True)
        return read_file(path, printable=True)
    except ReadingError as error:
        raise UsageError(str(error)) from None


def outcomes_of(recorded: Recorded) -> dict[str, Outcome]:
    """Return the outcomes by test: none in what was not compared with anything."""
    from pytest_rlperf.report.reading import RunFile

    return recorded.tests if isinstance(recorded, RunFile) else {}


def results_of(recorded: Recorded) -> dict[str, Result]:
    """Return the results by test."""
    if isinstance(recorded, Baseline):
        return {key: stored.result for key, stored in recorded.results.items()}
    return {key: test.result for key, test in recorded.tests.items()}


def provenances_of(recorded: Recorded) -> list[Provenance]:
    """Return what is known of the code behind the figures, the latest last."""
    from pytest_rlperf.report.reading import RunFile

    if isinstance(recorded, Baseline):
        return sorted(recorded.sessions.values(), key=lambda provenance: provenance.created)
    if isinstance(recorded, RunFile) and recorded.provenance is not None:
        return [recorded.provenance]
    return []


def exit_code(outcomes: list[Outcome], results: list[Result]) -> Exit:
    """Return how a command ends that has shown these: by the verdicts that fail their tests, and by the figures."""
    if any(outcome.verdict.fails(strict=False) for outcome in outcomes):
        return Exit.SLOWER
    return Exit.NOTHING_SLOWER if outcomes or any(result.measured for result in results) else Exit.NOTHING_MEASURED
