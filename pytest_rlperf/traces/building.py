"""Trees under construction, and walks through finished trees that no depth can exhaust."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_rlperf.model import Mode, Timing
from pytest_rlperf.traces.reading import Malformed

# Python's stack holds about a thousand calls; callers may walk a tree recursively.
DEEPEST = 500


@dataclass
class Draft:
    """A timing that still grows."""

    name: str
    count: int = 0
    total_ns: int = 0
    min_ns: int | None = None
    max_ns: int | None = None
    last_ns: int | None = None
    mode: Mode = Mode.SUM
    recent_ns: tuple[int, ...] = ()
    is_parallel: bool = False
    children: list[Draft] = field(default_factory=list)
    _by_name: dict[str, Draft] = field(default_factory=dict)

    def child(self, name: str) -> Draft:
        """Return the one child called ``name``, made where there is none."""
        known = self._by_name.get(name)
        if known is None:
            known = self._by_name[name] = Draft(name)
            self.children.append(known)
        return known

    def enter(self, took_ns: int) -> None:
        """Count one more entry."""
        self.count += 1
        self.total_ns += took_ns
        self.min_ns = took_ns if self.min_ns is None else min(self.min_ns, took_ns)
        self.max_ns = took_ns if self.max_ns is None else max(self.max_ns, took_ns)
        self.last_ns = took_ns

    def frozen(self) -> Timing:
        """Return this timing and everything below it, as of now."""
        order = [self]
        for draft in order:
            order.extend(draft.children)
        done: dict[int, Timing] = {}
        for draft in reversed(order):
            done[id(draft)] = Timing(
                draft.name,
                draft.count,
                draft.total_ns,
                draft.min_ns,
                draft.max_ns,
                draft.last_ns,
                tuple(done.pop(id(child)) for child in draft.children),
                draft.mode,
                draft.recent_ns,
                draft.is_parallel,
            )
        return done[id(self)]


def check_depth(depth: int, place: str) -> None:
    """Raise Malformed where ``depth`` is more than DEEPEST."""
    if depth > DEEPEST:
        raise Malformed(f"{place}: the tree is nested more than {DEEPEST} deep", "keep fewer levels")


def planted(rows: Iterable[tuple[int, Draft, str]]) -> Timing | None:
    """Return the tree of drafts given parents first, each with its depth and its place; None where there are none."""
    above: list[Draft] = []
    root = None
    for depth, draft, place in rows:
        if (depth == 0) != (root is None) or depth > len(above):
            raise Malformed(f"{place}: a depth of {depth} does not follow one of {len(above) - 1}")
        check_depth(depth, place)
        del above[depth:]
        if above:
            above[-1].children.append(draft)
        else:
            root = draft
        above.append(draft)
    return None if root is None else root.frozen()


def levels(root: Timing) -> Iterator[tuple[int, Timing]]:
    """Yield a timing and all below it with their depths, parents first."""
    waiting = [(0, root)]
    while waiting:
        depth, timing = waiting.pop()
        yield depth, timing
        waiting.extend((depth + 1, child) for child in reversed(timing.children))
