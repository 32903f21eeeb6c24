"""Exact counts, then and now: the changes, the phases that they are in, and the verdict by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from msgspec.structs import replace

from pytest_rlperf.counters.instrument import NAMES, STEPS, WORK
from pytest_rlperf.judge.policy import overruled
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.measured import CounterChange, Counting

EVERY = ("*",)


def compare(then: Counting, now: Counting, names: Sequence[str]) -> tuple[CounterChange, ...]:
    """Return the changes of the counts that ``names`` choose: names, families ending with ``:``, or patterns.

    A count has changed if it was exact and now has another value, or a range wholly on one side of the old value. A
    change belongs to the deepest phases that show it, and also to a phase around them if they do not account for all of
    it. Counts that only moved from phase to phase have not changed. A sum is left out if members of its family show
    more.
    """
    if min(then.workers, now.workers) < 2:
        return ()
    sides = _Sides(then, now)
    changes = [change for name in sides.names if _chosen(name, names) for change in sides.changes("", name)]
    return tuple(change for change in changes if not any(_is_member(other, change) for other in changes))


def combine(verdict: Verdict, then: Counting, now: Counting, policy: Policy) -> Verdict:
    """Return the verdict of times together with that of counts; the counts that ``policy.gates`` choose decide.

    If any of them is higher, the verdict is SLOWER, whatever the time is; lower counts are FASTER unless the time is
    slower or invalid. All changes are kept with the verdict.
    """
    changes, gated = compare(then, now, EVERY), compare(then, now, policy.gates)
    verdict = replace(verdict, counters=changes)
    if not gated:
        return verdict
    worse = [change for change in gated if change.is_more]
    named = tuple(_by_name(worse or gated, changes))
    status = Status.SLOWER if worse else Status.FASTER
    is_said = verdict.status is status and verdict.gated
    if is_said or (status is Status.FASTER and verdict.status in (Status.SLOWER, Status.INVALID)):
        return replace(verdict, also=(*verdict.also, reasons.CountsChanged(named, also=True)))
    return overruled(policy, verdict, status, reasons.CountsChanged(named))


def more_of(names: Iterable[str], then: Counting, now: Counting) -> dict[str, tuple[int, int]]:
    """Return the most of each count then and the least now, for a whole call, if both sides have counted it."""
    if min(then.workers, now.workers) < 2:
        return {}
    was, found = _Side(then), _Side(now)
    ranges = {name: (was.range_of("", name), found.range_of("", name)) for name in names}
    return {name: (before[1], after[0]) for name, (before, after) in ranges.items() if before and after}


def more_work(then: Counting, now: Counting, tolerance: float) -> tuple[CounterChange, ...]:
    """Return the work that rose by more than ``tolerance`` in a whole call, the largest rise first.

    A family is represented by the member that rose the most.
    """
    if min(then.workers, now.workers) < 2:
        return ()
    sides = _Sides(then, now)
    changes = filter(None, (sides.of_call(name) for name in WORK))
    more = [change for change in changes if change.now - change.was > tolerance * change.was]
    return tuple(map(sides.first_member, sorted(more, key=_rise, reverse=True)))


def _rise(change: CounterChange) -> float:
    return (change.now - change.was) / max(1, change.was)


def uncounted(then: Counting, now: Counting, gates: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Return the ``gates`` that cannot be compared because a side has not counted them.

    If a marker has ``named`` some, gates that neither side has counted are among them too.
    """
    sides = _Side(then), _Side(now)
    return tuple(
        gate for gate in gates if not _are_counted(gate, sides, all) and (named or _are_counted(gate, sides, any))
    )


def _are_counted(gate: str, sides: Sequence[_Side], which: Callable[[Iterable[bool]], bool]) -> bool:
    """Whether all or any of the sides have a count that a gate chooses."""
    chosen = [name for name in {*map(_instrument, NAMES)} if _chosen(name, [gate, _instrument(gate)])]
    return any(which(side.range_of("", name) is not None for side in sides) for name in chosen)


def _chosen(name: str, patterns: Sequence[str]) -> bool:
    return any(
        name.startswith(pattern) if pattern.endswith(":") else fnmatchcase(name, pattern) for pattern in patterns
    )


def _is_member(change: CounterChange, total: CounterChange) -> bool:
    """Whether a change is in the family whose sum is ``total``, in the same phase or below it."""
    return change.name.startswith(f"{total.name}:") and _is_within(change.path, total.path)


def _is_within(path: str, around: str) -> bool:
    return not around or path == around or path.startswith(f"{around}/")


def _by_name(gated: Sequence[CounterChange], changes: Sequence[CounterChange]) -> list[CounterChange]:
    """Return ``gated`` with every sum replaced by the members that moved with it, if they are known."""
    found: dict[CounterChange, None] = {}
    for change in gated:
        members = [other for other in changes if _is_member(other, change) and other.is_more == change.is_more]
        found.update(dict.fromkeys(members or [change]))
    return list(found)


class _Side:
    """One side's counts by path and name."""

    def __init__(self, counting: Counting) -> None:
        self.phases = {phase.path: phase for phase in counting.phases}
        self.names = {name for phase in counting.phases for name in (*phase.exact, *phase.inexact)}
        self._instruments = {_instrument(name) for name in self.names}

    def range_of(self, path: str, name: str) -> tuple[int, int] | None:
        """Return the least and the most of a count; None if nothing counted it."""
        phase = self.phases.get(path)
        if phase is not None and name in phase.exact:
            return phase.exact[name], phase.exact[name]
        if phase is not None and name in phase.inexact:
            return phase.inexact[name]
        return (0, 0) if _instrument(name) in self._instruments else None


class _Sides:
    """The counts then and now, compared from the whole call down to its phases."""

    def __init__(self, then: Counting, now: Counting) -> None:
        self._then, self._now = _Side(then), _Side(now)
        self.names = sorted(self._then.names | self._now.names)
        self._children: dict[str, list[str]] = {}
        known: set[str] = {""}
        for path in (*self._then.phases, *self._now.phases):
            while path not in known:
                known.add(path)
                parent = path.rpartition("/")[0]
                self._children.setdefault(parent, []).append(path)
                path = parent

    def changes(self, path: str, name: str) -> Iterator[CounterChange]:
        """Yield the changes of a count in the phase at ``path`` and below it."""
        change = self._change(path, name)
        if change is None:
            yield from self._changes_within(path, name)
            return
        if change.was == change.now:
            return
        below = self._below(change)
        if _sum(below) < abs(change.now - change.was):
            yield change
        for part in below:
            yield from self.changes(part.path, name)

    def of_call(self, name: str) -> CounterChange | None:
        """Return the change of a count in the whole call, even if it is zero; None if it is not known."""
        return self._change("", name)

    def first_member(self, total: CounterChange) -> CounterChange:
        """Return the member of a risen ``total`` that rose the most; ``total`` itself if no member rose."""
        names = [name for name in self.names if name.startswith(f"{total.name}:")]
        risen = [change for change in map(self.of_call, names) if change is not None and change.is_more]
        return max(risen, key=lambda change: change.now - change.was, default=total)

    def _change(self, path: str, name: str) -> CounterChange | None:
        """Return the change of a count in one phase, even if it is zero; None if unknown, as the count varies."""
        then, now = self._then.range_of(path, name), self._now.range_of(path, name)
        if then is None or now is None or then[0] < then[1] or (now[0] <= then[0] <= now[1] and now[0] < now[1]):
            return None
        change = CounterChange(path, name, was=then[0], now=now[0] if now[0] > then[0] else now[1])
        return change if abs(change.now - change.was) > STEPS.get(name, 0) else replace(change, now=change.was)

    def _changes_within(self, path: str, name: str) -> Iterator[CounterChange]:
        """Yield the changes of a count below a phase in which it varies: no sum there shows counts that only moved."""
        found = list(self._known_below(path, name))
        more = sum(change.now - change.was for change in found)
        for change in found:
            if more and change.is_more == (more > 0):
                yield from self.changes(change.path, name)

    def _known_below(self, path: str, name: str) -> Iterator[CounterChange]:
        """Yield the topmost changes below a phase, in phases that both sides have: other phases may have new names."""
        for child in self._children.get(path, []):
            if child in self._then.phases and child in self._now.phases:
                change = self._change(child, name)
                if change is None:
                    yield from self._known_below(child, name)
                elif change.was != change.now:
                    yield change

    def _below(self, whole: CounterChange) -> list[CounterChange]:
        """Return the changes of a phase's children that account for its own."""
        parts = [
            part
            for child in self._children.get(whole.path, [])
            for part in self._exact_change(child, whole.name)
            if part.is_more == whole.is_more
        ]
        if _sum(parts) > abs(whole.now - whole.was):
            # A phase that only one side has may be the other's under a new name.
            parts = [part for part in parts if part.path in self._then.phases and part.path in self._now.phases]
        return parts

    def _exact_change(self, path: str, name: str) -> Iterator[CounterChange]:
        """Yield the change of a count in one phase by itself, if it is exact on both sides and not the same."""
        then, now = self._then.range_of(path, name), self._now.range_of(path, name)
        if then is not None and now is not None and then[0] == then[1] != now[0] == now[1]:
            yield CounterChange(path, name, then[0], now[0])


def _instrument(name: str) -> str:
    """Return the name of the sum that a count is a member of; the sum exists if anything counted it."""
    return name.partition(":")[0]


def _sum(changes: Sequence[CounterChange]) -> int:
    return sum(abs(change.now - change.was) for change in changes)
