"""The table of verdicts, the lines of a phase tree, and the sentences about one test."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_rlperf import units
from pytest_rlperf.model import CounterChange, Estimate, Outcome, Phase, Provenance, Result, Status
from pytest_rlperf.report.accepting import trailer
from pytest_rlperf.report.printable import short_name, shown, shown_lines
from pytest_rlperf.report.statuses import GRAVEST_FIRST
from pytest_rlperf.report.table import Cell, Column, Table, make_table

COUNTERS = "counters"  # the code of a reason that rests on exact counts
SINCE_FIRST = "since first"  # the change since the oldest figures that are stored
ENVIRONMENT = "environment"  # that of code that is as fast as it was, where stored numbers differ
_TRACED_APART = 0.25  # of the median: by more than that, phases are seen not to add up to it


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
        Cell(test_name(outcome)),
        Cell(units.seconds(result.call_s), order=result.call_s) if result.measured else Cell(""),
        Cell(units.quantity(result.items_per_s), order=result.items_per_s) if result.measured else Cell(""),
        Cell(units.seconds(before.call_s), order=before.call_s) if before is not None and before.measured else Cell(""),
        Cell("") if estimate is None else Cell(_change(estimate), order=estimate.ratio),
        Cell("") if creep is None else Cell(units.change(creep.ratio), order=creep.ratio),
        Cell(verdict_label(outcome), kind=status.value, order=GRAVEST_FIRST.index(status)),
    ]


def _change(estimate: Estimate) -> str:
    low, high = 100 * (estimate.low - 1), 100 * (estimate.high - 1)
    digits = 0 if max(abs(low), abs(high)) >= 10 else 1
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{units.change(estimate.ratio)} {interval:>12}"


def verdict_label(outcome: Outcome) -> str:
    """Return a verdict's status, with marks where it is accepted or gates nothing."""
    accepted = outcome.verdict.accepted and outcome.verdict.status is Status.SLOWER
    return f"{outcome.verdict.status.value}{' (accepted)' if accepted else ''}{'' if outcome.verdict.gated else ' *'}"


def test_name(outcome: Outcome) -> str:
    """Return a test's name without its file."""
    return short_name(outcome.result.nodeid)


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


def phases_note(result: Result) -> str:
    """Say what phases add up to where that is not about the median; empty where it is.

    Phases are means of traced calls, which a stall makes longer; the median leaves it out.
    """
    if not (result.measured and result.phases):
        return ""
    traced_s, median_s = result.traced_call_s, result.call_s
    if abs(traced_s - median_s) <= _TRACED_APART * median_s:
        return ""
    traced, median = units.seconds(traced_s), units.seconds(median_s)
    return f"phases are means of traced calls of {traced}, as clocked; the median is {median}"


def cost_text(outcome: Outcome) -> str:
    """Say what a test's figures rest on, and what they cost."""
    if not outcome.result.measured:
        return f"{outcome.seconds:.1f} s"
    workers = outcome.result.workers
    share = sum(worker.cpu_share for worker in workers) / len(workers)
    parts = [
        units.counted(len(workers), "worker"),
        units.counted(sum(worker.calls for worker in workers), "call"),
        f"{outcome.result.clock} time",
        f"cpu/wall {share:.2f}",
        units.counted(sum(worker.collections for worker in workers), "collection"),
    ]
    if outcome.live is not None:
        pairs = outcome.live.pairs
        each = " ".join(units.change(math.exp(ratio)) for ratio in outcome.live.log_ratios)
        parts[:1] = [f"{units.counted(len(pairs), 'live pair')} ({each})"]
        parts.append(f"set-up {sum(pair.setup_s for pair in pairs):.1f} s")
        parts.append(f"measured {sum(pair.seconds for pair in pairs):.1f} s")
    return ", ".join([*parts, f"{outcome.seconds:.1f} s in all"])


def by_counts(outcome: Outcome) -> bool:
    """Whether a verdict rests on exact counts, whatever the time says."""
    return outcome.verdict.reason.code == COUNTERS


def failure_text(outcome: Outcome, origin: str) -> str:
    """Return what a failing test says at the user's line; ``origin`` names what it was compared with."""
    verdict, result = outcome.verdict, outcome.result
    estimate, before = verdict.estimate, outcome.before
    component = shown(result.component)
    takes = f"{component} takes {units.seconds(result.call_s)} a call" if result.measured else component
    message = verdict.reason.message
    if by_counts(outcome):
        counted, _, message = message.partition("\n")
        lines = [f"{verdict.status.value} by what it does: {counted}", takes]
    elif estimate is None or before is None:
        lines = [f"{verdict.status.value}: {takes}"]
    else:
        where = "in the baseline" if outcome.live is None else f"on {shown(outcome.live.base_label)}"
        interval = f"{units.change(estimate.low)} to {units.change(estimate.high)}"
        basis = (
            "relative to the machine's pace"
            if outcome.live is None
            else f"{units.counted(len(outcome.live.pairs), 'live pair')}, {outcome.live.clock} time"
        )
        lines = [
            f"{verdict.status.value} {units.change(estimate.ratio)}: {takes}, {units.seconds(before.call_s)} {where}",
            f"{100 * estimate.confidence:.0f} % interval {interval}, {basis}",
        ]
    lines += [
        f"compared {'with ' if outcome.live is None else ''}{shown(origin)}",
        *filter(None, [message]),
        *map(shown, blame_lines(outcome)),
    ]
    stored = outcome.live is None and (outcome.baseline is not None or by_counts(outcome))
    if verdict.status is Status.SLOWER and outcome.live is not None:
        lines.append(f"if that is meant, a commit's message can say so: {trailer_of(outcome)} why")
    elif verdict.status is Status.SLOWER and stored:
        lines.append('if that is meant: commit it; --rlperf-save-baseline --rlperf-accept="why" stores its figures')
    return shown_lines("\n".join(lines))


def trailer_of(outcome: Outcome) -> str:
    """Return the line of a commit message that accepts how much slower a test is, less the reason."""
    estimate = None if by_counts(outcome) else outcome.verdict.estimate
    bounds = (None, None) if estimate is None else (estimate.ratio, estimate.high)
    return trailer(outcome.result.nodeid, *bounds)


def blame_text(outcome: Outcome) -> str:
    """Say which phases carry a change: empty where there are none, or nothing has changed."""
    live = outcome.live
    return "" if live is None or not (outcome.result.phases or live.base.phases) else live.blame


def blame_lines(outcome: Outcome) -> list[str]:
    """Say which phases carry a change, as a line of its own."""
    blame = blame_text(outcome)
    # "critic +1.9 of +2.1 ms", or that no phase does.
    return [f"{blame} a call" if " of " in blame else blame] if blame else []


def count_text(change: CounterChange) -> str:
    """Say which exact count has changed, and where: ``update/critic: ops:aten::mm 12 → 18``."""
    return f"{change.path or 'the call'}: {change.name} {change.was:,} → {change.now:,}"


def creep_text(outcome: Outcome) -> str:
    """Say how a test's time has changed since the oldest figures stored of it; empty where that is not known."""
    creep = outcome.creep
    if creep is None:
        return ""
    commit = "" if creep.commit is None else f", commit {creep.commit[:12]}"
    return f"{units.change(creep.ratio)} since {creep.created.partition('T')[0]}{commit}"


def origin_text(name: str, provenance: Provenance | None) -> str:
    """Say which baseline was compared with, and what code it remembers."""
    if provenance is None:
        return f"baseline {name!r}, which has no figures for this test"
    day = provenance.created.partition("T")[0]
    if provenance.commit is None:
        return f"baseline {name!r} of {day}, made outside git: it can never be settled live"
    commit = provenance.commit[:12]
    if provenance.dirty:
        return f"baseline {name!r} of {day}, made from uncommitted changes on {commit}: it can never be settled live"
    return f"baseline {name!r} of {day}, commit {commit}"
