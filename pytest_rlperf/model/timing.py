"""Recorded timings: a tree of named timings, frozen at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Timing:
    """One path of a tree: how often it was entered, and for how long.

    ``count`` is the number of entries that have ended; ``total_ns`` also has the time so far of an open entry.
    ``min_ns``, ``max_ns`` and ``last_ns`` are those of entries that have ended; None if there are none, or if they are
    not known. ``is_parallel`` marks a path that ran beside its parent or in several places at once, so that its time is
    not part of its parent's.
    """

    name: str
    count: int
    total_ns: int
    min_ns: int | None = None
    max_ns: int | None = None
    last_ns: int | None = None
    children: tuple[Timing, ...] = ()
    is_parallel: bool = False

    @property
    def self_ns(self) -> int:
        """The time in no child."""
        return self.total_ns - sum(child.total_ns for child in self.children if not child.is_parallel)

    def child(self, name: str) -> Timing | None:
        """Return the child called ``name``, if there is one."""
        return next((child for child in self.children if child.name == name), None)

    def walk(self) -> Iterator[tuple[tuple[str, ...], Timing]]:
        """Yield every descendant with the names that lead to it, parents first, in the order of their first entry."""
        # Not by recursion: trees are as deep as the code that was timed recurses.
        pending: list[tuple[tuple[str, ...], Timing]] = [((child.name,), child) for child in reversed(self.children)]
        while pending:
            path, timing = pending.pop()
            yield path, timing
            pending += [((*path, child.name), child) for child in reversed(timing.children)]


@dataclass(frozen=True)
class Gauge:
    """A quantity that was set from time to time."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class TimerTree:
    """A whole tree: ``root`` is as long as the tree has been recording, or as all its children together.

    ``workers`` are the trees that were merged into this one, each as it came.
    """

    root: Timing
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    workers: tuple[TimerTree, ...] = ()

    @property
    def name(self) -> str:
        """The root's name: that of the component or process that was timed."""
        return self.root.name

    def at(self, *path: str) -> Timing:
        """Return the timing at a path below the root; KeyError if there is none."""
        here = self.root
        for name in path:
            found = here.child(name)
            if found is None:
                raise KeyError("/".join(path))
            here = found
        return here
