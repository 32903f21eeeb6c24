"""The columns of the summary, defined once, and the sentences about one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Phase, Provenance, Status


@dataclass(frozen=True)
class Column:
    """One column: its title, how it reads an outcome, and how it is aligned."""

    title: str
    text: Callable[[Outcome], str]
    justify: str


def _throughput(outcome: Outcome) -> str:
    return units.quantity(outcome.result.items_per_s)


def _baseline(outcome: Outcome) -> str:
    return "" if outcome.baseline is None else units.seconds(outcome.baseline.result.call_s)


def _change(outcome: Outcome) -> str:
    estimate = outcome.verdict.estimate
    if estimate is None:
        return ""
    low, high = 100 * (estimate.low - 1), 100 * (estimate.high - 1)
    digits = 0 if max(abs(low), abs(high)) >= 10 else 1
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{units.change(estimate.ratio)} {interval:>12}"


def _status(outcome: Outcome) -> str:
    accepted = outcome.verdict.accepted and outcome.verdict.status is Status.SLOWER
    return f"{outcome.verdict.status.value}{' (accepted)' if accepted else ''}{'' if outcome.verdict.gated else ' *'}"


def columns(outcomes: Sequence[Outcome]) -> list[Column]:
    """Return the columns that say something about at least one outcome."""
    return [column for column in COLUMNS if any(column.text(outcome) for outcome in outcomes)]


def test_name(outcome: Outcome) -> str:
    """Return a test's name without its file's directories."""
    path, separator, name = outcome.result.nodeid.partition("::")
    return name if separator else path


COLUMNS = (
    Column("test", test_name, "left"),
    Column("median", lambda outcome: units.seconds(outcome.result.call_s), "right"),
    Column("items/s", _throughput, "right"),
    Column("baseline", _baseline, "right"),
    Column("change      99 % CI", _change, "right"),
    Column("verdict", _status, "left"),
)


@dataclass(frozen=True)
class PhaseRow:
    """One line of a phase tree: seconds of an iteration, its share of the whole, entries per iteration.

    ``was_s`` is the baseline's figure; it and ``count`` are None where there is none.
    """

    name: str
    depth: int
    total_s: float
    share: float
    count: float | None
    was_s: float | None


def phase_rows(phases: Sequence[Phase], whole_s: float, before: Sequence[Phase]) -> list[PhaseRow]:
    """Return a tree's lines, depth first, each level's unaccounted time after its children."""
    rows: list[PhaseRow] = []
    was_s = {phase.path: phase.total_s for phase in before}

    def add(parent: str, parent_s: float, depth: int) -> None:
        children = [phase for phase in phases if phase.path.rpartition("/")[0] == parent]
        for phase in children:
            share = phase.total_s / whole_s
            rows.append(PhaseRow(phase.name, depth, phase.total_s, share, phase.count, was_s.get(phase.path)))
            add(phase.path, phase.total_s, depth + 1)
        rest_s = parent_s - sum(phase.total_s for phase in children)
        if children and rest_s > 0:
            rows.append(PhaseRow("(unaccounted)", depth, rest_s, rest_s / whole_s, None, None))

    if whole_s > 0:
        add("", whole_s, 0)
    return rows


def failure_text(outcome: Outcome, origin: str) -> str:
    """Return what a failing test says at the user's line; ``origin`` names the baseline."""
    verdict, result = outcome.verdict, outcome.result
    estimate = verdict.estimate
    takes = f"{result.component} takes {units.seconds(result.call_s)} a call"
    if estimate is None or outcome.baseline is None:
        lines = [f"{verdict.status.value}: {takes}"]
    else:
        was = units.seconds(outcome.baseline.result.call_s)
        interval = f"{units.change(estimate.low)} to {units.change(estimate.high)}"
        lines = [
            f"{verdict.status.value} {units.change(estimate.ratio)}: {takes}, {was} in the baseline",
            f"{100 * estimate.confidence:.0f} % interval {interval}, relative to the machine's pace",
        ]
    lines += [f"compared with {origin}", verdict.reason.message]
    if verdict.status is Status.SLOWER:
        lines.append('meant to be? --rlperf-save-baseline --rlperf-accept="why" stores the new figures')
    return "\n".join(lines)


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
