"""The tables about tests, each defined once: reports only lay them out as text, Markdown or HTML.

Timer trees have a table too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf import units
from pytest_rlperf.errors import shown
from pytest_rlperf.model.device import DeviceFigures, Pace
from pytest_rlperf.model.judged import Estimate, Outcome, Status, Verdict
from pytest_rlperf.model.measured import Phase, PhaseCounts, Result, test_name
from pytest_rlperf.model.stored import Baseline, StoredResult
from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.report.table import GRAVEST_FIRST, Cell, Column, Table, make_table, table_text
from pytest_rlperf.report.wording import count_text, phase_changes

CHANGE = "change      99 % CI"
_CPU_APART = 0.25  # of one CPU second per wall second
_CHANGES_MOST = 8  # of one phase, without -v
_LABELS = {"python": "python and operators"}  # a profiler does not see an extension's operators


def sides(outcome: Outcome) -> list[tuple[str, Result]]:
    """Return the results by side, the reference first: base and head, or baseline and now."""
    before, names = outcome.before, ("base", "head") if outcome.live is not None else ("baseline", "now")
    found = [] if before is None else [(names[0], before)]
    if outcome.result.measured:
        found.append((names[1], outcome.result))
    return found


def verdict_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the table of verdicts, one row per test, without columns that are empty for all tests."""
    columns = (
        Column("test", "left", folds=True),
        Column("median", priority=1),
        Column("mean", priority=2),
        Column("cpu/wall", priority=3),
        Column("items/s", priority=4),
        Column("baseline", priority=2),
        Column(CHANGE),
        Column("exact counts", "left", priority=6),
        Column("verdict", "left"),
    )
    return make_table(columns, [_verdict_row(outcome) for outcome in outcomes], "Verdicts").without_empty()


def _verdict_row(outcome: Outcome) -> list[Cell]:
    result, before_s, status = outcome.result, outcome.before_call_s, outcome.verdict.status
    estimate = outcome.verdict.estimate
    return [
        Cell(outcome.result.name, "code"),
        Cell(units.seconds(result.call_s), order=result.call_s) if result.measured else Cell(""),
        Cell(units.seconds(result.mean_call_s), order=result.mean_call_s) if outcome.has_rare_calls else Cell(""),
        Cell(_cpu_shares([result for _, result in sides(outcome) if result.clock == "wall"])),
        Cell(units.quantity(result.items_per_s), order=result.items_per_s) if result.measured else Cell(""),
        Cell("") if before_s is None else Cell(units.seconds(before_s), order=before_s),
        Cell("") if estimate is None else Cell(_change(estimate), order=estimate.ratio),
        Cell(_first_count(outcome.verdict)),
        Cell(verdict_label(outcome.verdict), kind=verdict_kind(outcome.verdict), order=GRAVEST_FIRST.index(status)),
    ]


def _cpu_shares(results: Sequence[Result]) -> str:
    """Return the CPU seconds per wall second, for both sides if they differ; empty if none has more than one.

    A value below one may be due to other processes' work as well as to waiting.
    """
    if not any(all(worker.cpu_share > 1 + _CPU_APART for worker in result.workers) for result in results):
        return ""
    shares = [result.cpu_share for result in results]
    is_same = abs(shares[0] - shares[-1]) <= _CPU_APART * shares[0]
    return "→".join(f"{share:.1f}" for share in (shares[-1:] if is_same else shares))


def _change(estimate: Estimate) -> str:
    return f"{units.change(estimate.ratio)} {units.interval(estimate.ratio, estimate.low, estimate.high):>12}"


def verdict_line(outcome: Outcome, *, whole: bool = False) -> str:
    """Return a test's verdict in one line: its status, the change, or else the time of a call, and its name.

    A ``whole`` name is the test's id.
    """
    result, estimate = outcome.result, outcome.verdict.estimate
    figure = _change(estimate) if estimate is not None else units.seconds(result.call_s) if result.measured else ""
    return f"{verdict_label(outcome.verdict):<10} {figure:<23} {shown(result.nodeid if whole else result.name)}"


def _first_count(verdict: Verdict) -> str:
    """Return the work that rose most, or the first count that changed, and how many others changed."""
    changes = verdict.counters
    others = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"{count_text((*verdict.more_work, *changes)[0])}{others}" if changes else ""


def verdict_label(verdict: Verdict) -> str:
    """Return a verdict's status, with a mark if it is accepted or gates nothing."""
    accepted = " (accepted)" if is_accepted(verdict) else ""
    return f"{verdict.status.value}{accepted}{'' if verdict.gated else ' *'}"


def is_accepted(verdict: Verdict) -> bool:
    """Whether a test is slower, and a person or a commit accepts it."""
    return verdict.status is Status.SLOWER and verdict.accepted


def verdict_kind(verdict: Verdict) -> str:
    """Return the status whose looks a verdict has: a slowdown that is accepted or not gated is not a failure."""
    if is_accepted(verdict):
        return Status.SAME.value
    return (verdict.status if verdict.gated or verdict.status is not Status.SLOWER else Status.UNDECIDED).value


class _PhaseLine(NamedTuple):
    """A line of a phase tree: its times in a call, and its part of the change of the whole call.

    The line for time in no phase below ``path`` has no ``entries``. ``was_s`` and ``change_s`` are None if not known.
    """

    path: str
    depth: int
    entries: float | None
    total_s: float
    was_s: float | None
    change_s: float | None

    @property
    def name(self) -> Cell:
        """The name's cell."""
        return Cell("(unaccounted)" if self.entries is None else self.path.rpartition("/")[2], depth=self.depth)

    @property
    def time(self) -> Cell:
        """The time's cell."""
        return Cell(units.seconds(self.total_s), order=self.total_s)

    @property
    def was(self) -> Cell:
        """The cell of the time before."""
        return Cell("" if self.was_s is None else units.seconds(self.was_s))

    @property
    def entered(self) -> Cell:
        """The cell of the entries."""
        return Cell("" if self.entries is None else f"×{units.number(self.entries, 3)}")

    @property
    def adds(self) -> Cell:
        """The cell of its part of the change."""
        return Cell("") if self.change_s is None else Cell(units.signed_seconds(self.change_s), "strong")

    def share(self, whole_s: float) -> Cell:
        """Return the cell for its share of a call."""
        return Cell(units.percent(self.total_s / whole_s, signed=False))


def phase_table(outcome: Outcome, levels: int | None = None) -> Table:
    """Return a test's phases as a table, depth first, down to ``levels`` levels of the tree."""
    whole_s = outcome.result.traced_call_s
    rows = [
        [
            line.name,
            line.time,
            line.share(whole_s),
            line.entered,
            Cell("") if line.entries is None else line.was,
            line.adds,
        ]
        for line in _phase_lines(outcome)
        if levels is None or line.depth < levels
    ]
    columns = (
        # A line with the changes beside it also has to fit 80 columns.
        Column("phase", "left", folds=True, usual=26 if any(adds.text for *_, adds in rows) else 32),
        Column("time", usual=8),
        Column("share", usual=7),
        Column("entries", usual=7),
        Column("was"),
        Column("adds to the change"),
    )
    return make_table(columns, rows, "Phases of one call").without_empty()


def phase_comparison(outcome: Outcome) -> Table:
    """Return a test's phases with both sides' times beside each other; phases that carry the change are marked."""
    whole_s, live = outcome.result.traced_call_s, outcome.live
    carriers = set() if live is None else {part.path for part in live.carriers}
    names = [name for name, _ in sides(outcome)]
    was, now = names if len(names) > 1 else ("", "time")
    rows = []
    for line in _phase_lines(outcome):
        change_s = (line.change_s or 0.0) if line.path in carriers else 0.0
        status = Status.SLOWER if change_s > 0 else Status.FASTER
        rows.append(
            [
                replace(line.name, kind=status.value if change_s else ""),
                line.was,
                line.time,
                Cell(units.change(line.total_s / line.was_s) if line.was_s and line.total_s else ""),
                line.adds,
                line.share(whole_s),
                line.entered,
            ]
        )
    columns = ("phase", was, now, "change", "adds to the change", "share", "entries")
    marks = "; bold: changed" if carriers else ""
    return make_table([Column(title) for title in columns], rows, f"Phases of one call{marks}").without_empty()


def _phase_lines(outcome: Outcome) -> list[_PhaseLine]:
    """Return the lines of a test's phase tree, each level's unaccounted time after its children.

    A phase that only the figures before have is shown without time. The changes of all lines add up to the whole, if
    what no phase surely adds may be the unaccounted time's.
    """
    result, before = outcome.result, () if outcome.before is None else outcome.before.phases
    whole_s = result.traced_call_s
    if whole_s <= 0:
        return []
    # If a device is waited for at every edge, nothing overlaps, so these times are compared only with their like.
    synced = {phase.path: _is_synced(phase) for phase in result.phases}
    alike = [phase for phase in before if synced.get(phase.path, _is_synced(phase)) == _is_synced(phase)]
    was_s = {phase.path: phase.total_s for phase in alike}
    is_alike = len(alike) == len(before)
    if outcome.before is not None and before:
        was_s[""] = outcome.before.traced_call_s
    gone = [replace(phase, count=0.0, total_s=0.0, self_s=0.0) for phase in before if phase.path not in synced]
    phases = [*result.phases, *gone]
    changes_s = {} if outcome.live is None else {part.path: part.change_s for part in outcome.live.contributions}
    lines: list[_PhaseLine] = []

    def add(parent: str, parent_s: float, depth: int) -> None:
        children = [phase for phase in phases if phase.path and phase.path.rpartition("/")[0] == parent]
        for phase in children:
            is_leaf = not any(other.path.startswith(f"{phase.path}/") for other in phases)
            change_s = changes_s.get(phase.path) if is_leaf else None
            lines.append(_PhaseLine(phase.path, depth, phase.count, phase.total_s, was_s.get(phase.path), change_s))
            add(phase.path, phase.total_s, depth + 1)
        rest_s = max(0.0, parent_s - sum(phase.total_s for phase in children))
        if children and (rest_s > 0 or parent in changes_s):
            known_s = sum(was_s.get(phase.path, 0.0) for phase in children)
            rest_was_s = max(0.0, was_s[parent] - known_s) if is_alike and parent in was_s else None
            change_s = _possible(changes_s.get(parent), rest_s, rest_was_s)
            lines.append(_PhaseLine(parent, depth, None, rest_s, rest_was_s, change_s))

    add("", whole_s, 0)
    return lines


def _possible(change_s: float | None, rest_s: float, was_s: float | None) -> float | None:
    """Return the change that no phase surely has; None if it is more than the unaccounted time: most is in phases."""
    if change_s is None or change_s > rest_s or (was_s is not None and -change_s > was_s):
        return None
    return change_s


def _is_synced(phase: Phase) -> bool:
    """Whether a device was waited for at every edge of a phase."""
    return phase.on_device is not None and phase.on_device.is_synced


# --------------------------------------------------------------------------- where the time goes


def share_table(outcome: Outcome) -> Table:
    """Return the shares of a call's time, as bars with their figures."""
    was = {} if outcome.before is None else {share.name: share.share for share in outcome.before.shares}
    rows: list[list[Cell | str]] = [
        [
            _LABELS.get(share.name, share.name),
            Cell(units.percent(share.share, signed=False), bar=min(1.0, max(0.0, share.share))),
            units.percent(was[share.name], signed=False) if share.name in was else "",
        ]
        for share in outcome.result.shares
    ]
    columns = (Column("part", "left"), Column("share of a call", "left"), Column("before"))
    return make_table(columns, rows, "Where the time goes").without_empty()


# --------------------------------------------------------------------------- counts


def counter_lines(outcome: Outcome, *, verbose: bool) -> list[str]:
    """Return the lines about a test's counts: those that changed and, if ``verbose``, all counts of the whole call."""
    lines = phase_changes(outcome.verdict.counters, None if verbose else _CHANGES_MOST)
    counting = outcome.result.counting
    if not verbose or counting is None:
        return lines
    for phase in counting.phases:
        if not phase.path:
            counts = [f"{name} {text}" for name, text in _texts(phase).items() if ":" not in name and text != "0"]
            lines.append(f"counted: {', '.join(counts) or 'nothing'}")
    return [*lines, *counting.notes]


def _texts(phase: PhaseCounts) -> dict[str, str]:
    ranges = {name: f"{least}..{most}" for name, (least, most) in phase.inexact.items()}
    return {name: str(value) for name, value in phase.exact.items()} | ranges


# --------------------------------------------------------------------------- the device


def device_tables(outcome: Outcome) -> list[Table]:
    """Return the figures of each side on a device, and the phases by its clock; none for a test on the host."""
    found = [(name, [worker.device for worker in result.workers if worker.device]) for name, result in sides(outcome)]
    found = [(name, figures) for name, figures in found if figures]
    if not found:
        return []
    columns = [Column("a call", "left"), *(Column(name, "left") for name, _ in found)]
    of_sides = [_device_facts(figures) for _, figures in found]
    rows = [[name, *(facts.get(name, "") for facts in of_sides)] for name in of_sides[0]]
    table = make_table(columns, [row for row in rows if any(row[1:])], "On the device")
    phases = _device_phases(outcome.result)
    return [table, phases] if phases.rows else [table]


def _device_facts(figures: Sequence[DeviceFigures]) -> dict[str, str]:
    """Return one side's figures: medians over its processes, and the worst state of the device."""
    last, states = figures[-1], [each.conditions for each in figures if each.conditions is not None]
    held_back = [state.throttled for state in states if state.throttled is not None]
    reasons = ", ".join(sorted({reason for each in held_back for reason in each})) or "nothing"
    return {
        "device": last.device,
        **{
            f"{pace.value}{' (judged)' if pace is last.gated else ''}": _over(statistics.median, seconds, units.seconds)
            for pace, seconds in (
                (Pace.LATENCY, [each.latency_s for each in figures]),
                (Pace.STEADY, [each.steady_s for each in figures]),
            )
        },
        "cycles": _over(statistics.median, [each.cycles for each in figures], units.quantity),
        "peak memory": _over(max, [each.peak_bytes or None for each in figures], _bytes),
        "allocations": units.number(statistics.fmean(each.allocations for each in figures), 3),
        "slices retaken": str(sum(each.retaken for each in figures)),
        "lowest SM clock": _over(min, [state.sm_clock_hz for state in states], _hertz),
        "lowest memory clock": _over(min, [state.memory_clock_hz for state in states], _hertz),
        "hottest": _over(max, [state.temperature_c for state in states], "{:.0f} °C".format),
        "held back by": reasons if held_back else "not known",
        "other processes": _over(max, [state.others for state in states], str),
        "settings": ", ".join(f"{name}={value}" for name, value in last.flags.items()),
    }


def _over(pick: Callable[[list[float]], float], values: Iterable[float | None], write: Callable[[float], str]) -> str:
    """Write one of the known values; empty if none is known."""
    known = [value for value in values if value is not None]
    return write(pick(known)) if known else ""


def _device_phases(result: Result) -> Table:
    """Return the phases by the device's own clock, which is never mixed with the host's; a lag is behind the host."""
    columns = (
        Column("phase", "left"),
        Column("device time"),
        Column("self time"),
        Column("host time", priority=1),
        Column("lag in"),
        Column("lag out"),
        Column("bound by", "left"),
        Column("peak memory", priority=2),
        Column("allocations", priority=2),
        Column("stream", "left", priority=1),
    )
    rows: list[list[Cell | str]] = [
        [
            Cell(phase.name, depth=phase.depth),
            _known(times.span_s, units.seconds),
            _known(times.self_s, units.seconds),
            units.seconds(phase.total_s),
            _known(times.lag_in_s, units.seconds),
            _known(times.lag_out_s, units.seconds),
            f"{times.bound.value}{', waited for at every edge' if times.is_synced else ''}",
            "" if times.peak_bytes is None else _bytes(times.peak_bytes),
            "" if times.allocations is None else units.number(times.allocations, 3),
            times.stream,
        ]
        for phase in result.phases
        if (times := phase.on_device) is not None
    ]
    return make_table(columns, rows, "Phases by the device's clock").without_empty()


def _bytes(value: float) -> str:
    return f"{units.quantity(value)}B"


def _hertz(value: float) -> str:
    return f"{value / 1e6:.0f} MHz"


def _known(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None else write(value)


# --------------------------------------------------------------------------- a baseline


def render_baseline(baseline: Baseline, keys: Sequence[str], *, width: int) -> str:
    """Return a baseline's figures, one line per test, with their origins."""
    stored = {key: baseline.results[key] for key in keys}
    columns = (
        Column("test", "left", folds=True),
        Column("median"),
        Column("items/s"),
        Column("workers"),
        Column("stored", "left"),
    )
    rows = [
        (
            test_name(key),
            units.seconds(entry.result.call_s) if entry.result.measured else "",
            units.quantity(entry.result.items_per_s) if entry.result.measured else "",
            str(len(entry.result.workers)),
            _stored_origin(baseline, entry),
        )
        for key, entry in stored.items()
    ]
    return "".join(f"{line}\n" for line in table_text(make_table(columns, rows), width))


def _stored_origin(baseline: Baseline, entry: StoredResult) -> str:
    provenance = baseline.sessions.get(entry.session)
    if provenance is None:
        return entry.session
    code = "outside git" if provenance.commit is None else f"commit {provenance.commit[:12]}"
    return f"{provenance.created.partition('T')[0]}, {code}{', uncommitted changes' if provenance.dirty else ''}"


# --------------------------------------------------------------------------- timer trees


_COLUMNS = (
    Column("name", "left", folds=True),
    Column("count", priority=1),
    Column("total"),
    Column("self", priority=2),
    Column("mean", priority=3),
    Column("min", priority=4),
    Column("max", priority=4),
    Column("share"),
)
_GAUGE_COLUMNS = (
    Column("gauge", "left", folds=True),
    Column("value"),
    Column("min", priority=1),
    Column("max", priority=1),
    Column("set", priority=2),
)
_PARALLEL = "∥"
_NOTE_PARALLEL = f"{_PARALLEL} ran in parallel with the path above it, and is not part of its time"
_NOTE_WHOLE = "because some totals are smaller than their parts, and so are not sums"
_LONGEST_COUNT = 999_999


def render_tree(tree: TimerTree, *, width: int | None) -> str:
    """Return a tree as a table of at most ``width`` columns, with all its figures if ``width`` is None."""
    whole_ns, paths = _whole_ns(tree.root), [((), tree.root), *tree.root.walk()]
    rows = [_row(timing, len(path), whole_ns) for path, timing in paths]
    lines = table_text(make_table(_COLUMNS, rows).without_empty(), width, ruled=False)
    if whole_ns > tree.root.total_ns:
        lines.append(f"share: of {_time(whole_ns)}, {_NOTE_WHOLE}")
    if any(timing.is_parallel for _, timing in paths):
        lines.append(_NOTE_PARALLEL)
    if tree.gauges:
        gauges = [
            (name, f"{gauge.value:.6g}", f"{gauge.low:.6g}", f"{gauge.high:.6g}", f"×{gauge.count}")
            for name, gauge in tree.gauges.items()
        ]
        lines += ["", *table_text(make_table(_GAUGE_COLUMNS, gauges), width, ruled=False)]
    return "".join(f"{line}\n" for line in lines)


def _row(timing: Timing, depth: int, whole_ns: int) -> list[Cell | str]:
    """Return a path's figures; a cell is empty if its figure is not known."""
    count = units.quantity(timing.count) if timing.count > _LONGEST_COUNT else str(timing.count or "")
    name = f"{shown(timing.name)} {_PARALLEL}" if timing.is_parallel else shown(timing.name)
    return [
        Cell(name, depth=depth),
        count,
        _time(timing.total_ns),
        _time(timing.self_ns),
        _time(timing.total_ns / timing.count if timing.count else None),
        _time(timing.min_ns),
        _time(timing.max_ns),
        units.percent(timing.total_ns / whole_ns, signed=False) if whole_ns else "",
    ]


def _whole_ns(root: Timing) -> int:
    """Return the whole of the shares: the root's total, or the sum of its parts if that is larger."""
    return max(root.total_ns, sum(_whole_ns(child) for child in root.children if not child.is_parallel))


def _time(ns: float | None) -> str:
    """Write nanoseconds; empty if negative, as the rest of a total that is not a sum, such as a last entry, may be."""
    return "" if ns is None or ns < 0 else units.seconds(ns / 1e9)
