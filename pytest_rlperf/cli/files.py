"""Recorded files as commands see them: read with a complaint that helps, and what all kinds of them have in common."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Exit, UsageError, listed
from pytest_rlperf.model import Baseline, Outcome, Provenance, Result

if TYPE_CHECKING:
    from pytest_rlperf.report.reading import Recorded


DIRECTORY = "a directory that holds one of them"


def read(path: str) -> Recorded:
    """Return what a file, or standard input (``-``), holds, fit to be shown; UsageError where it cannot be read.

    Of a directory it is the one file that :func:`located` finds.
    """
    from pytest_rlperf.report.reading import ReadingError, parse
    from pytest_rlperf.report.reading import read as read_file

    try:
        if path == "-":
            return parse(sys.stdin.buffer.read(), "standard input", printable=True)
        return read_file(located(path), printable=True)
    except ReadingError as error:
        raise UsageError(str(error)) from None


def located(path: str) -> str:
    """Return the path of the run or baseline in a directory, and any other path as it is.

    It is looked for in the directory and in those in it, as ``baselines/`` holds directories of baselines. UsageError
    where there is none, or more than one.
    """
    if path == "-" or not Path(path).is_dir():
        return path
    files = sorted(map(str, [*Path(path).glob("*.json"), *Path(path).glob("*/*.json")]))
    # A file by itself is taken as it is: where it is no run, reading it says why.
    found = files if len(files) == 1 else [file for file in files if _is_recorded(file)]
    if not found:
        raise UsageError(
            f"{path} is a directory without a run or a baseline that can be read; --rlperf-json=FILE writes a run, "
            "--rlperf-save-baseline a baseline"
        )
    if len(found) > 1:
        raise UsageError(f"{path} is a directory of {len(found)} runs and baselines; name one of {listed(found)}")
    return found[0]


def _is_recorded(path: str) -> bool:
    from pytest_rlperf.report.reading import ReadingError
    from pytest_rlperf.report.reading import read as read_file

    try:
        read_file(path)
    except ReadingError:
        return False
    return True


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
