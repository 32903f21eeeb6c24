"""The sentences under the table: what was compared and stored, and what to type next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.wording import improved, trailer_of


@dataclass(frozen=True)
class Summary:
    """What the summary shows beside the outcomes."""

    machine: str
    origins: Sequence[str]
    notes: Sequence[str]
    commands: Sequence[str]


@dataclass
class Saved:
    """What saving did: the file, the keys stored in it, why others were not, and whether their code is on record."""

    path: Path
    settleable: bool
    stored: list[str] = field(default_factory=list)
    kept_back: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Uncompared:
    """Why a test's counts are not compared with stored ones, and whether they would have gated."""

    reason: str
    gates: bool


def uncompared_notes(tests: Mapping[str, Uncompared], *, verbose: bool) -> list[str]:
    """Say why counts are not compared, once a reason; of those that gate nothing only where ``verbose``."""
    reasons = Counter(test.reason for test in tests.values() if test.gates or verbose)
    return [f"counts of {units.counted(count, 'test')} not compared: {reason}" for reason, count in reasons.items()]


def saved_notes(saved: Saved | None) -> list[str]:
    """Say what was stored, and why other results were not."""
    if saved is None:
        return []
    notes = []
    if saved.stored:
        notes.append(f"stored {units.counted(len(saved.stored), 'result')} in\n{_relative(saved.path)}")
        if not saved.settleable:
            notes.append("not from a clean commit, so live pairs can never run this code: commit, then store anew")
    for reason, count in Counter(saved.kept_back.values()).items():
        notes.append(f"{units.counted(count, 'result')} not stored: {reason}")
    return notes


def next_commands(outcomes: Sequence[Outcome], command: str, *, saved: bool, against: bool, verbose: bool) -> list[str]:
    """Return what would be typed next, after ``command``, each with what it does."""
    statuses = {outcome.verdict.status for outcome in outcomes}
    commands = []
    if not saved and statuses & {Status.NEW, Status.INCOMPARABLE} and not against:
        commands.append(f"store these figures to compare with:\n  {command} --rlperf-save-baseline")
    faster = [outcome for outcome in outcomes if outcome.verdict.status is Status.FASTER and outcome.baseline]
    if not saved and faster:
        commands.append(f"{improved(len(faster))}:\n  {command} --rlperf-save-baseline")
    slower = [outcome for outcome in outcomes if outcome.verdict.fails(strict=False)]
    if not against and any(outcome.baseline for outcome in slower):
        store = f'{command} --rlperf-save-baseline --rlperf-accept="why"'
        commands.append(f"if it was meant to get slower, commit it and store its figures:\n  {store}")
    elif slower:
        lines = "\n".join(f"  {trailer_of(outcome)} why" for outcome in slower)
        commands.append(f"if it was meant to get slower, in the message of a commit:\n{lines}")
    if outcomes and not commands and not verbose:
        commands.append(f"show every test's phases and what its figures rest on:\n  {command} --rlperf -v")
    return commands


def _relative(path: Path) -> str:
    """Return ``path`` as seen from the current directory, where it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
