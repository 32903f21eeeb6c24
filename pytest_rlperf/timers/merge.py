"""Merging frozen trees: paths of one name are added up, and each worker's own tree is kept beside the sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_rlperf.model.timing import Gauge, TimerTree, Timing

WINDOW = 100  # the default number of last entries whose mean a timer of mode MEAN reports


def add_timings(one: Timing, other: Timing) -> Timing:
    """Return two timings of one path as one: counts and times add up, and the last entry is that of ``other``."""
    # One tree may have kept fewer than its window, because there were no more entries.
    window = max(WINDOW, len(one.recent_ns), len(other.recent_ns))
    return replace(
        one,
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        min_ns=_of_known(min, one.min_ns, other.min_ns),
        max_ns=_of_known(max, one.max_ns, other.max_ns),
        last_ns=one.last_ns if other.last_ns is None else other.last_ns,
        children=merge_timings([one.children, other.children]),
        recent_ns=(one.recent_ns + other.recent_ns)[-window:],
        is_parallel=one.is_parallel or other.is_parallel,
    )


def merge_timings(groups: Sequence[Sequence[Timing]], *, are_parallel: bool = False) -> tuple[Timing, ...]:
    """Return the paths of all groups; those of one name and mode are added up.

    With ``are_parallel``, every group but the first ran beside the others, and its paths are marked so.
    """
    found: dict[tuple[str, str], Timing] = {}
    for number, group in enumerate(groups):
        for timing in group:
            new = replace(timing, is_parallel=True) if are_parallel and number else timing
            key = (timing.name, timing.mode.value)
            found[key] = add_timings(found[key], new) if key in found else new
    return tuple(found.values())


def merge(
    tree: TimerTree, other: TimerTree, root_name: str, *, is_parallel: bool = True, worker: str | None = None
) -> TimerTree:
    """Return ``tree`` with ``other`` below it as ``root_name``, added to an existing path of that name.

    ``other`` itself stays in ``workers``, as ``worker`` or by its own name; gauges are added up. Parallel paths are no
    part of the time of the path above them.
    """
    below = replace(other.root, name=root_name, is_parallel=is_parallel)
    root = replace(tree.root, children=merge_timings([tree.root.children, [below]]))
    if not is_parallel:
        root = replace(root, total_ns=max(root.total_ns, sum(t.total_ns for t in root.children if not t.is_parallel)))
    return replace(
        tree,
        root=root,
        gauges=add_gauges([tree.gauges, other.gauges]),
        workers=add_workers([*tree.workers, called(other, worker)]),
    )


def called(tree: TimerTree, name: str | None) -> TimerTree:
    """Return the tree, renamed unless ``name`` is None."""
    return tree if name is None else replace(tree, root=replace(tree.root, name=name))


def add_workers(trees: Iterable[TimerTree]) -> tuple[TimerTree, ...]:
    """Return the trees; those of one name are added up, and likewise the workers' trees within them."""
    found: dict[str, TimerTree] = {}
    for tree in trees:
        known = found.get(tree.name)
        found[tree.name] = (
            tree
            if known is None
            else replace(
                known,
                root=add_timings(known.root, tree.root),
                gauges=add_gauges([known.gauges, tree.gauges]),
                metadata={**known.metadata, **tree.metadata},
                workers=add_workers([*known.workers, *tree.workers]),
            )
        )
    return tuple(found.values())


def add_gauges(groups: Iterable[Mapping[str, Gauge]]) -> dict[str, Gauge]:
    """Return the gauges of all groups; those of one name become one, with the last value and the sum of counts."""
    found: dict[str, Gauge] = {}
    for group in groups:
        for name, gauge in group.items():
            known = found.get(name)
            found[name] = (
                gauge
                if known is None
                else Gauge(
                    gauge.value,
                    min(known.low, gauge.low),
                    max(known.high, gauge.high),
                    known.count + gauge.count,
                )
            )
    return found


def _of_known(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
