"""The table of verdicts and the lines of a phase tree, defined once for every report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_rlperf import units
from pytest_rlperf.model import Creep, Estimate, Outcome, Phase, Status, Verdict
from pytest_rlperf.report.statuses import GRAVEST_FIRST
from pytest_rlperf.report.table import Cell, Column, Table, make_table

SINCE_FIRST = "since first"  # the change since the first commit that was stored, or the anchor, by live pairs


def verdict_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of verdicts, a row a test, without the columns in which no test has anything."""
    columns = (
        Column("test", "test", "left", overflow="fold"),
        Column("median", "median", priority=1),
        Column("items", "items/s", priority=3),
        Column("baseline", "baseline", priority=2),
        Column("change", "change      99 % CI"),
        Column("since_first", SINCE_FIRST, priority=4),
        Column("verdict", "verdict", "left", overflow="words"),
    )
    return make_table(columns, [_verdict_row(outcome) for outcome in outcomes], "Verdicts").without_empty()


def _verdict_row(outcome: Outcome) -> list[Cell]:
    result, before, creep, status = outcome.result, outcome.before, outcome.creep, outcome.verdict.status
    estimate = outcome.verdict.estimate
    return [
        Cell(outcome.result.name),
        Cell(units.seconds(result.call_s), order=result.call_s) if result.measured else Cell(""),
        Cell(units.quantity(result.items_per_s), order=result.items_per_s) if result.measured else Cell(""),
        Cell(units.seconds(before.call_s), order=before.call_s) if before is not None and before.measured else Cell(""),
        Cell("") if estimate is None else Cell(_change(estimate), order=estimate.ratio),
        Cell("") if creep is None else Cell(_change(creep), order=creep.ratio),
        Cell(verdict_label(outcome.verdict), kind=status.value, order=GRAVEST_FIRST.index(status)),
    ]


def _change(estimate: Estimate | Creep) -> str:
    return f"{units.change(estimate.ratio)} {units.interval(estimate.ratio, estimate.low, estimate.high):>12}"


def verdict_label(verdict: Verdict) -> str:
    """Return a verdict's status, with marks where it is accepted or gates nothing."""
    accepted = " (accepted)" if verdict.accepted and verdict.status is Status.SLOWER else ""
    return f"{verdict.status.value}{accepted}{'' if verdict.gated else ' *'}"


@dataclass(frozen=True)
class PhaseRow:
    """One line of a phase tree: seconds of an iteration, its share of the whole, entries per iteration.

    ``was_s`` is the figure before, ``change_s`` what the line adds to the change of the whole; they and ``count`` are
    None where there is none.
    """

    name: str
    depth: int
    total_s: float
    share: float
    count: float | None
    was_s: float | None
    change_s: float | None


def phase_rows(outcome: Outcome) -> list[PhaseRow]:
    """Return the lines of a test's phase tree, depth first, each level's unaccounted time after its children.

    A phase that only the figures before have is there with no time. The changes of all lines add up to the whole.
    """
    result, before = outcome.result, () if outcome.before is None else outcome.before.phases
    whole_s = result.traced_call_s
    if whole_s <= 0:
        return []
    was_s = {phase.path: phase.total_s for phase in comparable(before, result.phases)}
    known = {phase.path for phase in result.phases}
    gone = [replace(phase, count=0.0, total_s=0.0, self_s=0.0) for phase in before if phase.path not in known]
    phases = [*result.phases, *gone]
    changes_s = {} if outcome.live is None else {part.path: part.change_s for part in outcome.live.contributions}
    rows: list[PhaseRow] = []

    def add(parent: str, parent_s: float, depth: int) -> None:
        children = [phase for phase in phases if phase.path.rpartition("/")[0] == parent]
        for phase in children:
            leaf = not any(other.path.startswith(f"{phase.path}/") for other in phases)
            rows.append(
                PhaseRow(
                    phase.name,
                    depth,
                    phase.total_s,
                    phase.total_s / whole_s,
                    phase.count,
                    was_s.get(phase.path),
                    changes_s.get(phase.path) if leaf else None,
                )
            )
            add(phase.path, phase.total_s, depth + 1)
        rest_s = max(0.0, parent_s - sum(phase.total_s for phase in children))
        if children and (rest_s > 0 or parent in changes_s):
            rows.append(PhaseRow("(unaccounted)", depth, rest_s, rest_s / whole_s, None, None, changes_s.get(parent)))

    add("", whole_s, 0)
    return rows


def comparable(before: Sequence[Phase], now: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases of before whose times compare with those of now.

    Where a device is waited for at every edge nothing overlaps, so such times are compared with such alone.
    """
    synced = {phase.path: is_synced(phase) for phase in now}
    return tuple(phase for phase in before if synced.get(phase.path, is_synced(phase)) == is_synced(phase))


def is_synced(phase: Phase) -> bool:
    """Whether a device was waited for at every edge of a phase."""
    return phase.on_device is not None and phase.on_device.is_synced
