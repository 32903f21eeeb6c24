"""The sentences under the table: the origins of base's figures, the file they are stored in, and commands to type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.wording import ACCEPTING, has_trailer, improved, trailer_of


@dataclass(frozen=True)
class NextStep:
    """Lines to type next, and their effect."""

    effect: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The texts of the summary beside the outcomes: machines, origins of base's figures, notes, and what to type."""

    machines: Sequence[str]
    origins: Sequence[str]
    notes: Sequence[str]
    steps: Sequence[NextStep]


def next_steps(
    outcomes: Sequence[Outcome], command: str, *, saved: bool, against: bool, verbose: bool
) -> list[NextStep]:
    """Return what to type next; commands begin with ``command``."""
    statuses = {outcome.verdict.status for outcome in outcomes}
    steps = []
    if not saved and statuses & {Status.NEW, Status.INCOMPARABLE} and not against:
        steps.append(NextStep("store these figures to compare with", (f"{command} --rlperf-save-baseline",)))
    faster = [outcome for outcome in outcomes if outcome.verdict.status is Status.FASTER and outcome.baseline]
    if not saved and faster:
        steps.append(NextStep(improved(len(faster)), (f"{command} --rlperf-save-baseline",)))
    steps += acceptance(outcomes, command, against=against)
    if statuses - {Status.ERROR} and not steps and not verbose:
        steps.append(NextStep("show every test's phases and what its figures rest on", (f"{command} --rlperf -v",)))
    return steps


def acceptance(outcomes: Sequence[Outcome], command: str, *, against: bool) -> list[NextStep]:
    """Return the one way to accept what is slower, if there is one: it goes by where base came from.

    A baseline's figures are stored anew; ``against`` what the user named, commits since then can accept it.
    """
    failing = [outcome for outcome in outcomes if outcome.verdict.fails(strict=False)]
    slower = [outcome for outcome in failing if outcome.verdict.status is Status.SLOWER]
    if slower and not against:
        return [NextStep("if the slowdown is intended, commit it and store its figures", (f"{command} {ACCEPTING}",))]
    lines = tuple(f"{trailer_of(outcome)} why" for outcome in slower if has_trailer(outcome))
    return [NextStep("if the slowdown is intended, accept it in a commit's message", lines)] if lines else []
