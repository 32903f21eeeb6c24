"""Phases on a device: the means of their entries over iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_rlperf.devices.entries import Entry, Look, Untimed
from pytest_rlperf.model.device import Bound, DeviceTimes
from pytest_rlperf.model.measured import Phase

# A launch is some 5 µs on its way to the device, and events resolve half a microsecond: behind by a few launches is
# not behind. Of a long phase, the last kernel may well take longer than that and still have waited for its launch.
NEAR_NS = 20_000
NEAR_SHARE = 0.1


def bound_of(entry: Entry) -> Bound:
    """Return what bounds the time of one entry, by how far the device was behind the host at its edges.

    Behind at the end: the device has work queued. Behind before but not at the end: the host waited, or did something
    else until the device had caught up, which looks the same. Never behind: the device waited for the host.
    """
    near_ns = max(NEAR_NS, NEAR_SHARE * (entry.device_ns or 0))
    if entry.lag_out_ns is not None and entry.lag_out_ns > near_ns:
        return Bound.DEVICE
    return Bound.SYNC if entry.peak_lag_ns > near_ns else Bound.LAUNCH


class _Total:
    """The sums over all entries of one path."""

    def __init__(self) -> None:
        self.count = self.host_ns = self.host_self_ns = 0
        self.marked = self.captured = 0
        self.span_ns: int | None = 0
        self.self_ns: int | None = 0
        self.lag_in_ns = self.lag_out_ns = 0
        self.streams: dict[str, None] = {}
        self.bounds: Counter[Bound] = Counter()
        self.peak_bytes: int | None = None
        self.allocations: int | None = None
        self.syncs = 0

    def add(self, entry: Entry) -> None:
        self.count += 1
        self.host_ns += entry.host_end_ns - entry.host_start_ns
        self.host_self_ns += entry.host_self_ns
        self.captured += entry.untimed is Untimed.CAPTURED
        if entry.lag_in_ns is None or entry.lag_out_ns is None:
            return
        self.marked += 1
        self.span_ns = _sum(self.span_ns, entry.device_ns)
        self.self_ns = _sum(self.self_ns, entry.device_self_ns)
        self.lag_in_ns += entry.lag_in_ns
        self.lag_out_ns += entry.lag_out_ns
        self.streams |= dict.fromkeys(entry.streams)
        # Where entries differ, the longest ones decide what bounds the path's time.
        self.bounds[bound_of(entry)] += 1 + (entry.device_ns or 0)

    def look(self, looks: Sequence[Look]) -> None:
        """Add the looks from an entry's beginning to its end."""
        seen = [look.memory for look in looks]
        first, last = seen[0], seen[-1]
        if first is not None and last is not None:
            peaks = [first.allocated_bytes, *(memory.peak_bytes for memory in seen[1:] if memory is not None)]
            self.peak_bytes = max(self.peak_bytes or 0, *peaks)
            self.allocations = (self.allocations or 0) + last.allocations - first.allocations
        self.syncs += (looks[-1].syncs or 0) - (looks[0].syncs or 0)

    def device_times(self, iterations: int, looked: int, *, is_synced: bool) -> DeviceTimes | None:
        """Return the device's times per iteration, None where it has none, as of a phase captured into a graph."""
        if not self.marked:
            return None
        bound = Bound.SYNC if is_synced else self.bounds.most_common(1)[0][0]
        return DeviceTimes(
            span_s=None if self.span_ns is None else self.span_ns / iterations / 1e9,
            self_s=None if self.self_ns is None else self.self_ns / iterations / 1e9,
            stream=", ".join(self.streams),
            lag_in_s=self.lag_in_ns / self.marked / 1e9,
            lag_out_s=self.lag_out_ns / self.marked / 1e9,
            # Where the device is not behind, only the counted waits show whether the host waited.
            bound=Bound.SYNC if bound is Bound.LAUNCH and self.syncs else bound,
            is_synced=is_synced,
            peak_bytes=self.peak_bytes,
            allocations=None if self.allocations is None else self.allocations / looked,
        )


class PhaseTotals:
    """The sums over all phases, and the number of iterations."""

    def __init__(self) -> None:
        self.iterations = 0
        self.looked = 0
        self._paths: dict[tuple[str, ...], _Total] = {}

    def add(self, entries: Iterable[Entry]) -> None:
        """Add the entries of one iteration."""
        self.iterations += 1
        for entry in entries:
            self._at(entry.path).add(entry)

    def look(self, entries: Iterable[Entry], looks: Sequence[Look]) -> None:
        """Add an iteration that looked at the device's memory; its times do not count."""
        self.looked += 1
        for entry in entries:
            first, last = entry.looks
            self._at(entry.path).look(looks[first : last + 1])

    def phases(self, device: str, *, is_synced: bool) -> tuple[Phase, ...]:
        """Return the means per iteration, each path after the one above it."""
        order = {path: number for number, path in enumerate(self._paths)}
        places = {
            path: tuple(order.get(path[: length + 1], len(order)) for length in range(len(path)))
            for path in self._paths
        }
        return tuple(
            Phase(
                path="/".join(path),
                count=total.count / self.iterations,
                total_s=total.host_ns / self.iterations / 1e9,
                self_s=total.host_self_ns / self.iterations / 1e9,
                device=device,
                on_device=total.device_times(self.iterations, self.looked, is_synced=is_synced),
            )
            for path, total in sorted(self._paths.items(), key=lambda item: places[item[0]])
            if total.count
        )

    def captured(self) -> list[str]:
        """Return the paths that were captured into a graph."""
        return ["/".join(path) for path, total in self._paths.items() if total.captured]

    def across_streams(self) -> list[str]:
        """Return the paths whose edges are on different streams."""
        return ["/".join(path) for path, total in self._paths.items() if total.marked and total.span_ns is None]

    def _at(self, path: tuple[str, ...]) -> _Total:
        return self._paths.setdefault(path, _Total())


def _sum(total: int | None, more: int | None) -> int | None:
    return None if total is None or more is None else total + more
