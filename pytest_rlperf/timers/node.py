"""One path of a tree that is being recorded, and the merging of trees that are frozen.

Paths of one name are added up, and each worker's own tree is kept beside the sums.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pytest_rlperf.model.timing import Gauge, Mode, TimerTree, Timing


class TimerModeError(ValueError):
    """One path was entered by timers of two modes."""


def key_of(name: str, mode: Mode) -> str:
    """Return the key of a path among its siblings, which is one object for equal names and modes."""
    # Interned, so that scopes compare keys by identity. The mode is part of it, so that no scope finds another mode's.
    return sys.intern(name if mode is Mode.SUM else f"{mode.value}\0{name}")


class Node:
    """A path in one thread's tree. It is open at most once at a time, so its start is kept here.

    ``total_ns`` is of entries that have ended. ``low_ns`` and ``high_ns`` are the shortest and longest entry so far: an
    entry between them changes neither extreme and needs no :meth:`note`. Where recent entries are kept, no entry lies
    between them, so that each is noted.
    """

    __slots__ = (
        "children",
        "count",
        "high_ns",
        "key",
        "last_ns",
        "low_ns",
        "max_ns",
        "merged",
        "min_ns",
        "mode",
        "name",
        "parent",
        "recent",
        "start_ns",
        "task_roots",
        "total_ns",
    )

    def __init__(self, name: str, mode: Mode, parent: Node | None, keep: int = 0) -> None:
        self.name = name
        self.mode = mode
        self.key = key_of(name, mode)
        self.parent: Node = self if parent is None else parent  # a root is never left
        self.children: dict[str, Node] = {}
        self.task_roots: list[Node] = []  # of tasks that began while this was open in their thread
        self.recent: deque[int] | None = deque(maxlen=keep) if keep else None
        self.start_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget all entries that have ended."""
        self.count = self.total_ns = self.last_ns = 0
        self.merged: tuple[Timing, ...] = ()
        self.min_ns: int | None = None
        self.max_ns: int | None = None
        self.low_ns, self.high_ns = 1, 0
        if self.recent is not None:
            self.recent.clear()

    def clear_all(self) -> None:
        """Forget all entries here and below."""
        pending = [self]
        while pending:
            node = pending.pop()
            node.clear()
            pending += [*node.children.values(), *node.task_roots]

    def new_child(self, name: str, mode: Mode, keep: int) -> Node:
        """Return a new child; TimerModeError where there is one of that name and another mode."""
        for other in Mode:
            if other is not mode and key_of(name, other) in self.children:
                raise TimerModeError(
                    f"timer {name!r} was first entered in mode {other.value!r}, and is now entered in mode "
                    f"{mode.value!r}: a timer has one mode at one place of the tree; give one of the two another name"
                )
        node = Node(name, mode, self, keep)
        self.children[node.key] = node
        return node

    def child(self, name: str, mode: Mode = Mode.SUM, keep: int = 0) -> Node:
        """Return the child of that name, made where there is none."""
        node = self.children.get(key_of(name, mode))
        return self.new_child(name, mode, keep) if node is None else node

    def close(self, elapsed_ns: int) -> None:
        """Count an entry."""
        self.last_ns = elapsed_ns
        self.count += 1
        self.total_ns += elapsed_ns
        if not self.low_ns <= elapsed_ns <= self.high_ns:
            self.note(elapsed_ns)

    def note(self, elapsed_ns: int) -> None:
        """Update the extremes by an entry, and keep it where recent entries are kept."""
        self.min_ns = elapsed_ns if self.min_ns is None else min(self.min_ns, elapsed_ns)
        self.max_ns = elapsed_ns if self.max_ns is None else max(self.max_ns, elapsed_ns)
        if self.recent is None:
            self.low_ns, self.high_ns = self.min_ns, self.max_ns
        else:
            self.recent.append(elapsed_ns)

    def add(self, timings: Sequence[Timing]) -> None:
        """Add timings of another tree below this path; they add up with paths of the same name and mode."""
        self.merged = merge_timings([self.merged, timings])

    def timings(self, open_ns: Mapping[Node, int], *, forgotten: bool = False) -> tuple[Timing, ...]:
        """Return the timings of all paths below this one.

        ``open_ns`` are the durations so far of open entries. With ``forgotten``, entries that have ended do not count:
        they are about to be cleared.
        """
        order = [self]
        for node in order:  # which grows: trees are as deep as the code that was timed recurses
            order += [*node.children.values(), *node.task_roots]
        below: dict[Node, tuple[Timing, ...]] = {}
        frozen: dict[Node, Timing | None] = {}
        for node in reversed(order):
            own = [part for child in node.children.values() if (part := frozen[child]) is not None]
            aside = [parts for root in node.task_roots if (parts := below[root])]
            # One task at a time takes its turn within this path; several overlap.
            found = merge_timings([own, *aside], are_parallel=len(aside) > 1) if aside else tuple(own)
            below[node] = merge_timings([found, node.merged]) if node.merged and not forgotten else found
            frozen[node] = node._frozen(below[node], open_ns.get(node), forgotten=forgotten)
        return below[self]

    def _frozen(self, below: tuple[Timing, ...], open_ns: int | None, *, forgotten: bool) -> Timing | None:
        count, total_ns = (0, 0) if forgotten else (self.count, self.total_ns)
        if not (count or total_ns or below) and open_ns is None:
            return None  # it was cleared, and has not been entered since
        # Another thread that records meanwhile updates a path's children before the path.
        least_ns = sum(part.total_ns for part in below if not part.is_parallel)
        return Timing(
            name=self.name,
            count=count,
            total_ns=max(total_ns + (open_ns or 0), least_ns),
            min_ns=self.min_ns if count else None,
            max_ns=self.max_ns if count else None,
            last_ns=self.last_ns if count else None,
            children=below,
            mode=self.mode,
            recent_ns=tuple(self.recent) if count and self.recent is not None else (),
        )


# --------------------------------------------------------------------------- merging frozen trees

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
