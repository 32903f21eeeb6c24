"""Baselines, machines, and two files test by test: the tables that ``rlperf`` shows beside a run's summary."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest

from pytest_rlperf import units
from pytest_rlperf.model import (
    Baseline,
    Figures,
    Machine,
    Result,
    StoredResult,
    TimerTree,
    Timing,
    WorkerRecord,
    test_name,
)
from pytest_rlperf.report.table import Column, make_table
from pytest_rlperf.report.text import table_text
from pytest_rlperf.report.tree import render_tree
from pytest_rlperf.report.wording import phases_note

_FIELDS = {
    "system": "operating system",
    "arch": "architecture",
    "cpu": "processor",
    "cores": "cores it may use",
    "python": "Python",
    "kernel": "reference kernels' version",
    "accelerators": "accelerators",
}


def render_baseline(baseline: Baseline, keys: Sequence[str], *, width: int, verbose: bool) -> str:
    """Return a baseline's figures, a line a test; its origin, why it was accepted and, if ``verbose``, its phases."""
    stored = {key: baseline.results[key] for key in keys}
    columns = (
        Column("test", "test", "left", overflow="fold"),
        Column("median", "median"),
        Column("items", "items/s"),
        Column("workers", "workers"),
        Column("stored", "stored", "left"),
    )
    rows = [
        (
            test_name(key),
            units.seconds(entry.result.call_s) if entry.result.measured else "",
            units.quantity(entry.result.items_per_s) if entry.result.measured else "",
            str(len(entry.result.workers)),
            _origin(baseline, entry),
        )
        for key, entry in stored.items()
    ]
    lines = table_text(make_table(columns, rows), width)
    accepted = [f"  {test_name(key)}: {_acceptance(entry)}" for key, entry in stored.items() if entry.accepted]
    if accepted:
        lines += ["", "accepted although slower:", *accepted]
    text = "".join(f"{line}\n" for line in lines)
    if verbose:
        text += "".join(f"\n{phases_table(one.result, width=width)}" for one in stored.values() if one.result.phases)
    return text


def _origin(baseline: Baseline, entry: StoredResult) -> str:
    provenance = baseline.sessions.get(entry.session)
    if provenance is None:
        return entry.session
    code = "outside git" if provenance.commit is None else f"commit {provenance.commit[:12]}"
    return f"{provenance.created.partition('T')[0]}, {code}{', uncommitted changes' if provenance.dirty else ''}"


def _acceptance(entry: StoredResult) -> str:
    accepted = entry.accepted
    assert accepted is not None
    day = accepted.created.partition("T")[0]
    by = f" by {accepted.by}" if accepted.by else ""
    return f"{units.seconds(accepted.previous_call_s)} before; {day}{by}: {accepted.reason}"


def phases_table(result: Result, *, width: int | None) -> str:
    """Return a result's phases as the table that trees of timers have, per call, and what they add up to."""
    children: dict[str, list[str]] = {}
    for phase in result.phases:
        children.setdefault(phase.path.rpartition("/")[0], []).append(phase.path)
    by_path = {phase.path: phase for phase in result.phases}

    def timing(path: str) -> Timing:
        phase = by_path[path]
        below = tuple(timing(child) for child in children.get(path, ()))
        return Timing(phase.name, round(phase.count), round(1e9 * phase.total_s), children=below)

    whole = Timing(
        result.nodeid,
        1,
        round(1e9 * result.traced_call_s),
        children=tuple(timing(path) for path in children.get("", ())),
    )
    note = phases_note(result)
    return render_tree(TimerTree(whole), width=width) + (f"{note}\n" if note else "")


def render_machines(machines: Mapping[str, Machine], *, width: int) -> str:
    """Return the fields that identify one machine or several, a column each, with a mark where they differ."""
    fields = {name: asdict(machine) for name, machine in machines.items()}
    columns = [Column("field", "machine", "left", overflow="fold")]
    columns += [Column(f"machine {name}", name, "left") for name in machines]
    columns += [Column("differs", "", "left")]
    rows = []
    for field in next(iter(fields.values())):
        cells = [_machine_lines(found[field]) for found in fields.values()]
        # A field of several lines, as of several accelerators, takes as many rows.
        for number, texts in enumerate(zip_longest(*cells, fillvalue="")):
            differs = "≠" if not number and len(set(map(tuple, cells))) > 1 else ""
            rows.append(["" if number else _FIELDS.get(field, field), *texts, differs])
    return "".join(f"{line}\n" for line in table_text(make_table(columns, rows).without_empty(), width))


def _machine_lines(value: object) -> list[str]:
    return [str(part) for part in value] or ["none"] if isinstance(value, (tuple, list)) else [str(value)]


_PHASES_SHOWN = 5
CAVEAT = (
    "Stored figures of two runs decide nothing: the machine's pace, its load and its packages change between runs.\n"
    "To compare the code itself, side by side: pytest --rlperf-against=REF"
)


@dataclass(frozen=True)
class Difference:
    """One test in two files, either of which may lack it; ``verdict`` and ``counters`` are of the second."""

    key: str
    one: Result | None
    other: Result | None
    verdict: str
    counters: str

    @property
    def is_comparable(self) -> bool:
        """Whether both have figures."""
        return self.one is not None and self.one.measured and self.other is not None and self.other.measured

    @property
    def clock(self) -> str:
        """The clock that both are compared by: ``"cpu"`` where both results go by it."""
        sides = [side for side in (self.one, self.other) if side is not None and side.measured]
        return "cpu" if all(side.clock == "cpu" for side in sides) else "wall"

    def calls_s(self, side: Result | None) -> list[float]:
        """Return a side's seconds per call, one figure a worker."""
        return [] if side is None else [_figures(worker, self.clock).call_s for worker in side.workers]

    @property
    def is_apart(self) -> bool:
        """Whether every worker of one file was slower than every worker of the other."""
        one, other = self.calls_s(self.one), self.calls_s(self.other)
        return self.is_comparable and (max(one) < min(other) or max(other) < min(one))

    @property
    def against_kernel(self) -> float | None:
        """The ratio of times relative to the reference kernel; None where no kernel ran."""
        if self.one is None or self.other is None:
            return None
        one, other = (
            [_figures(worker, self.clock).relative for worker in side.workers] for side in (self.one, self.other)
        )
        if not one or not other or min(*one, *other) <= 0:
            return None
        return statistics.median(other) / statistics.median(one)


def _figures(worker: WorkerRecord, clock: str) -> Figures:
    return worker.cpu if clock == "cpu" else worker.wall


def render_differences(differences: Sequence[Difference], *, width: int, verbose: bool) -> str:
    """Return the table of all tests and, of those whose workers are apart, the phases and counters that changed.

    A side's spread is how far its slowest worker is from its fastest, as a share of the median. ``verbose`` shows every
    test's phases.
    """
    columns = (
        Column("test", "test", "left", overflow="fold"),
        Column("a", "A"),
        Column("b", "B"),
        Column("change", "change"),
        Column("kernel", "vs kernel"),
        Column("spread_a", "spread A"),
        Column("spread_b", "spread B"),
        Column("workers", "workers", "left"),
        Column("verdict", "B's verdict", "left"),
    )
    kernels = _against_kernel(differences)
    rows = [
        (
            test_name(one.key),
            _median(one, one.one),
            _median(one, one.other),
            _change(one),
            kernel,
            _spread(one, one.one),
            _spread(one, one.other),
            "apart" if one.is_apart else "",
            one.verdict,
        )
        for one, kernel in zip(differences, kernels, strict=True)
    ]
    lines = table_text(make_table(columns, rows).without_empty(), width)
    for one in differences:
        details = _details(one, verbose=verbose)
        if details:
            lines += ["", f"{test_name(one.key)}  (self time of phases, a call)", *(f"  {line}" for line in details)]
    return "".join(f"{line}\n" for line in lines)


def _median(one: Difference, side: Result | None) -> str:
    calls_s = one.calls_s(side)
    return units.seconds(statistics.median(calls_s)) if calls_s else ""


def _change(one: Difference) -> str:
    if one.one is None or one.other is None:
        return "not in A" if one.one is None else "not in B"  # which need not have run it, whatever the code has
    if not one.is_comparable:
        return "not measured"
    return units.change(statistics.median(one.calls_s(one.other)) / statistics.median(one.calls_s(one.one)))


def _against_kernel(differences: Sequence[Difference]) -> list[str]:
    """Return the changes relative to the reference kernel, if any is known; of the others that no kernel ran."""
    if all(one.against_kernel is None for one in differences):
        return [""] * len(differences)
    return [_kernel_change(one) if one.is_comparable else "" for one in differences]


def _kernel_change(one: Difference) -> str:
    return "no kernel" if one.against_kernel is None else units.change(one.against_kernel)


def _spread(one: Difference, side: Result | None) -> str:
    calls_s = one.calls_s(side)
    return units.percent((max(calls_s) - min(calls_s)) / statistics.median(calls_s), signed=False) if calls_s else ""


def _details(one: Difference, *, verbose: bool) -> list[str]:
    """Return the lines below the table about one test."""
    lines = _phase_lines(one, most=None if verbose else _PHASES_SHOWN) if one.is_apart or verbose else []
    return [*lines, *([f"counted: {one.counters}"] if one.counters else [])]


def _phase_lines(one: Difference, most: int | None) -> list[str]:
    """Return the phases by what their own time changed, children left out, the largest change first."""
    if one.one is None or one.other is None or not (one.one.phases and one.other.phases):
        return []
    then_s, now_s = _own_s(one.one), _own_s(one.other)
    moved_s = {path: abs(now_s.get(path, 0.0) - then_s.get(path, 0.0)) for path in {**then_s, **now_s}}
    paths = sorted((path for path in moved_s if most is None or moved_s[path]), key=lambda path: -moved_s[path])
    kept = paths[:most]
    columns = (Column("phase", "phase", "left"), Column("change", "change", usual=9), Column("times", "times", "left"))
    rows = [(path, *_phase_change(then_s.get(path), now_s.get(path))) for path in kept]
    lines = table_text(make_table(columns, rows), None, titled=False)
    return [*lines, *([f"and {len(paths) - len(kept)} more: -v"] if len(paths) > len(kept) else [])]


def _own_s(result: Result) -> dict[str, float]:
    """Return each phase's own seconds a call, those of no phase last."""
    own_s = {phase.path: phase.self_s for phase in result.phases}
    rest_s = max(0.0, result.traced_call_s - sum(own_s.values()))
    return {**own_s, "(unaccounted)": round(rest_s, 12)}  # what adding up leaves is no time


def _phase_change(then_s: float | None, now_s: float | None) -> tuple[str, str]:
    then = "–" if then_s is None else units.seconds(then_s)
    now = "–" if now_s is None else units.seconds(now_s)
    return units.signed_seconds((now_s or 0.0) - (then_s or 0.0)), f"{then} → {now}"
