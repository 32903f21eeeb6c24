"""Memory by phase: how high a level rose within each phase, and what it was left at."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from pytest_rlperf.counters.recording import WHOLE
from pytest_rlperf.model import Count
from pytest_rlperf.timers.node import Node


class Levels:
    """Follows a level, as memory in use is, through the phases of one call.

    It is told of every stretch between two edges of phases. A phase's peak is over the level that an entry began at, of
    the entry where that is most; its net is what all of its entries added.
    """

    def __init__(self, level: int) -> None:
        self._start = self._last = level
        self._peak = level
        self._bases: dict[Node, int] = {}  # of the phases that are open, the innermost first
        self._peaks: dict[Node, int] = {}
        self._nets: Counter[Node] = Counter()

    def note(self, open_nodes: Sequence[Node], level: int, peak: int) -> None:
        """Take in a stretch: the phases that were open, the level at its end, and the highest within."""
        last, bases = self._last, self._bases
        self._bases = now = {node: bases.get(node, last) for node in open_nodes}
        for node, base in now.items():
            self._peaks[node] = max(self._peaks.get(node, 0), peak - base)
            self._nets[node] += level - last
        self._peak = max(self._peak, peak)
        self._last = level

    def counts(self, paths: dict[Node, str], peak_name: str, net_name: str) -> Iterator[Count]:
        """Yield the peaks and nets; phases without a path, and bytes of 0 in phases, are left out."""
        yield Count(WHOLE, peak_name, self._peak - self._start)
        yield Count(WHOLE, net_name, self._last - self._start)
        peaks: defaultdict[str, int] = defaultdict(int)
        nets: defaultdict[str, int] = defaultdict(int)
        for node, peak in self._peaks.items():
            path = paths.get(node, WHOLE)
            if path != WHOLE:
                peaks[path] = max(peaks[path], peak)
                nets[path] += self._nets[node]
        for name, found in ((peak_name, peaks), (net_name, nets)):
            yield from (Count(path, name, value) for path, value in found.items() if value)
