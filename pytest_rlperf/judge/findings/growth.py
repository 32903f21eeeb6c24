"""Growth: a call of the head leaves more behind than a call of the base, in its process or on the machine.

Equal code also grows while caches fill, but less from stretch to stretch, and equally on both sides. So a resource
grows if it rises in every stretch of every pair, by more than on the base.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live, Reading
from pytest_rlperf.model.measured import Usage

_PAIRS_LEAST = 2
_STRETCHES_LEAST = 3
_ABATES = 0.5  # of the first stretch's growth per call: the last stretch has less if a cache fills
_SPREADS = 0.5  # of the growth per call: what is kept once has less without the stretch that it came in
_OF_BASE = 1.25  # times the base's growth, if the base grows too


class Resource(NamedTuple):
    """A resource that may grow: ``least`` per call, and ``least_in_all`` within one pair, are worth failing for."""

    name: str
    of: Callable[[Usage], float]
    least: float
    least_in_all: float


_PRIVATE = Resource("private_bytes", lambda usage: usage.private_bytes, 64, 256 << 10)
# An object counts as the blocks that Python's allocator hands out: one, and more for attributes or members.
KEPT = (
    Resource("objects", lambda usage: usage.objects, 0.1, 200),
    _PRIVATE,
    Resource("device_bytes", lambda usage: usage.device_bytes, 64, 1),
    Resource("open_files", lambda usage: usage.open_files, 0, 3),
    Resource("threads", lambda usage: usage.threads, 0, 3),
    Resource("processes", lambda usage: usage.processes, 0, 3),
    Resource("shared_blocks", lambda usage: usage.shared_blocks, 0, 3),
    Resource("shared_bytes", lambda usage: usage.shared_bytes, 64, 256 << 10),
    Resource("temporary_files", lambda usage: usage.temporary_files, 0, 3),
    Resource("temporary_bytes", lambda usage: usage.temporary_bytes, 64, 256 << 10),
    Resource("segments", lambda usage: usage.segments, 0, 3),
    Resource("segment_bytes", lambda usage: usage.segment_bytes, 64, 256 << 10),
)
_FEW = tuple(resource for resource in KEPT if not resource.least)
ALLOCATED = frozenset({"objects", "private_bytes", "waiting_bytes"})  # lines of Python may allocate these
_WAITING_LEAST = 64 << 10  # bytes per call that only the collector frees
_WAITING_TIMES = 2.0  # the base's
_OVERDUE = 10_000  # blocks that wait: the collector usually runs after 700 objects


class GrowthByPair(NamedTuple):
    """The amount that a call leaves on the head beyond the base's, by pair."""

    resource: Resource
    more: tuple[float, ...]

    @property
    def least(self) -> float:
        """The least of the pairs."""
        return min(self.more)


def find(live: Live, policy: Policy) -> Finding | None:
    """Return the growth in every pair, or in the pair that went on for longer."""
    runs = _long_enough(pair.readings for pair in live.pairs)
    if _decides(live):
        runs = [live.longer[::2]]  # a resource has to rise in every stretch, so none may be short
    elif len(runs) < _PAIRS_LEAST:
        return None
    more = {growth.resource.name: growth.least for growth in _worth_failing_for(runs)}
    waiting = _waiting(runs, for_good=_never_collects(live))
    if waiting is not None:
        more["waiting_bytes"] = waiting
    return finding(policy, "growth", facts.Growth(more, live.places), more) if more else None


def period(live: Live) -> int:
    """Return the most calls that a pair made between two readings: steady growth shows within this number."""
    readings = live.longer[::2] if _decides(live) else live.pairs[0].readings
    return max((after.head.calls - before.head.calls for before, after in itertools.pairwise(readings)), default=0)


def _decides(live: Live) -> bool:
    """Whether the pair that went on decides: it does not if the pairs show enough, and only drift asked for more."""
    return bool(live.longer) and hints(live)


def of_one_side(usages: Sequence[Sequence[Usage]]) -> facts.Growth | None:
    """Return the growth in every worker of one side, without another side to compare with."""
    # Compare each worker with a base that does not grow.
    runs = _long_enough([Reading(replace(taken[0], calls=usage.calls), usage) for usage in taken] for taken in usages)
    kept = _worth_failing_for(runs) if len(runs) >= _PAIRS_LEAST else []
    return facts.Growth({growth.resource.name: growth.least for growth in kept}) if kept else None


def hints(live: Live) -> bool:
    """Whether pairs are too short to show growth, and a resource grows in each of them as far as they go.

    For rare resources, such as a file in a hundred calls, it is enough that all pairs together have more on the head.
    """
    taken = [pair.readings for pair in live.pairs if pair.readings]
    runs = _long_enough(taken)
    found = [growth.resource for growth in _worth_failing_for(runs)] if len(runs) >= _PAIRS_LEAST else []
    if any(_in_all(taken, "head", each) > _in_all(taken, "base", each) for each in _FEW if each not in found):
        return True
    if len(runs) >= _PAIRS_LEAST:
        return any(not _is_enough(growth, runs) for growth in _growths(runs))
    return bool(taken) and any(
        all(_slope(readings, "head", each.of) > _slope(readings, "base", each.of) for readings in taken)
        for each in KEPT
    )


def _in_all(taken: Iterable[Sequence[Reading]], side: str, resource: Resource) -> float:
    """Return how much more a side's processes held at the end, together."""
    return sum(resource.of(getattr(readings[-1], side)) - resource.of(getattr(readings[0], side)) for readings in taken)


def _long_enough(runs: Iterable[Sequence[Reading]]) -> list[Sequence[Reading]]:
    """Return the runs that have enough readings: on a busy machine some have only a few slices."""
    return [readings for readings in runs if len(readings) > _STRETCHES_LEAST]


def _worth_failing_for(runs: Sequence[Sequence[Reading]]) -> list[GrowthByPair]:
    """Return the growth that is large enough in every run."""
    return [growth for growth in _growths(runs) if _is_enough(growth, runs)]


def _growths(runs: Sequence[Sequence[Reading]]) -> Iterator[GrowthByPair]:
    """Yield the resources that the head keeps more of with every call, in every run, and more than the base."""
    for resource in KEPT:
        known = [more for readings in runs if (more := _more_a_call(readings, resource)) is not None]
        if len(known) == len(runs):
            yield GrowthByPair(resource, tuple(known))


def _more_a_call(readings: Sequence[Reading], resource: Resource) -> float | None:
    """Return how much more a call of the head keeps than one of the base; None if that is not steady growth."""
    steps = [_slope(stretch, "head", resource.of) for stretch in itertools.pairwise(readings)]
    head, base = _slope(readings, "head", resource.of), _slope(readings, "base", resource.of)
    once = max(0.0, _slope(readings[:2], "base", resource.of))  # the first calls of each side keep something for good
    if resource.least:
        is_steady = min(steps) > 0 and steps[-1] >= _ABATES * (steps[0] - once)
        is_steady = is_steady and _without_largest(readings, resource.of) >= _SPREADS * (head - base)
    else:  # a rare resource does not grow in every stretch
        is_steady = min(steps) >= 0 and max(steps[len(steps) // 2 :]) > 0
    return head - base if is_steady and head > max(base, _OF_BASE * base) else None


def _without_largest(readings: Sequence[Reading], of: Callable[[Usage], float]) -> float:
    """Return how much more a call keeps on the head by all stretches but the one with the largest difference.

    What the head keeps once, for example a copy that it replaces every now and then, came in one of them.
    """
    stretches = itertools.pairwise(readings)
    more = [(_slope(each, "head", of) - _slope(each, "base", of), _calls(each, "head")) for each in stretches]
    rest = sorted(more)[:-1]
    return sum(slope * calls for slope, calls in rest) / max(1, sum(calls for _, calls in rest))


def _slope(readings: Sequence[Reading], side: str, of: Callable[[Usage], float]) -> float:
    first, last = getattr(readings[0], side), getattr(readings[-1], side)
    return (of(last) - of(first)) / max(1, _calls(readings, side))


def _calls(readings: Sequence[Reading], side: str) -> int:
    calls: int = getattr(readings[-1], side).calls - getattr(readings[0], side).calls
    return calls


def _is_enough(growth: GrowthByPair, runs: Sequence[Sequence[Reading]]) -> bool:
    """Whether growth is worth failing for, and above the noise of allocators."""
    in_all = [more * _calls(readings, "head") for more, readings in zip(growth.more, runs, strict=True)]
    return growth.least >= growth.resource.least and min(in_all) >= growth.resource.least_in_all


def _never_collects(live: Live) -> bool:
    """Whether the collector is off on the head alone: it runs in no pair, though it is long due, and on the base."""
    return all(
        pair.head.collections == 0 < pair.base.collections
        and max((reading.head.waiting_objects for reading in pair.readings), default=0) > _OVERDUE
        for pair in live.pairs
    )


def _waiting(runs: Sequence[Sequence[Reading]], *, for_good: bool) -> float | None:
    """Return the bytes per call, beyond the base's, that waited for the collector in every pair; None if few did.

    If they wait ``for_good``, the limits are those of memory that is kept.
    """
    more = []
    for readings in runs:
        head, base = (_waiting_a_call(readings, side) for side in ("head", "base"))
        kept = max(_PRIVATE.least, _PRIVATE.least_in_all / max(1, _calls(readings, "head")))
        least = kept if for_good else _WAITING_LEAST
        if head < max(least, _WAITING_TIMES * base):
            return None
        more.append(head - base)
    return min(more)


def _waiting_a_call(readings: Sequence[Reading], side: str) -> float:
    later: list[Usage] = [getattr(reading, side) for reading in readings[1:]]
    return sum(usage.waiting_bytes for usage in later) / max(1, _calls(readings, side))
