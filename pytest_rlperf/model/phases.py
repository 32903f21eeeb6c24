"""The phases of traced slices: merged, and as shares of a call."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from operator import mul
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf.model.device import Bound, DeviceTimes
from pytest_rlperf.model.measured import Phase, SliceRecord


class Block(NamedTuple):
    """One slice from each side, one right after the other."""

    base: SliceRecord
    head: SliceRecord

    def shares(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return each side's phases: their time outside their children, as shares of the side's own call.

        If a slice is held up, all its phases are held up, so shares are right even if times are not.
        """
        base, head = (
            {phase.path: _own_s(phase) / traced_call_s([side]) for phase in merge_phases([side])} for side in self
        )
        return base, head


def slices_of(blocks: Sequence[Block], side: str) -> list[SliceRecord]:
    """Return the slices of one side, ``"base"`` or ``"head"``, of several blocks."""
    return [getattr(block, side) for block in blocks]


def _own_s(phase: Phase) -> float:
    """Return the time in no child phase, by the device's clock if it has one: the host only launches."""
    times = phase.on_device
    return phase.self_s if times is None or times.self_s is None else times.self_s


def typical_shares(slices: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return every phase's median share of its slice's call; one stall moves a mean, but not a median."""
    counted = merge_phases(slices)
    shares = [{phase.path: phase.total_s / traced_call_s([record]) for phase in record.phases} for record in slices]
    totals = {phase.path: statistics.median(each.get(phase.path, 0.0) for each in shares) for phase in counted}

    def own(path: str) -> float:
        return totals[path] - sum(total for other, total in totals.items() if other.rpartition("/")[0] == path)

    return tuple(replace(phase, total_s=totals[phase.path], self_s=max(0.0, own(phase.path))) for phase in counted)


def merge_phases(traced: Sequence[SliceRecord]) -> tuple[Phase, ...]:
    """Return phases per iteration over all slices, weighted by their calls, so that children still add up."""
    calls = sum(record.calls for record in traced)
    merged: dict[str, Phase] = {}
    times: dict[str, list[tuple[float, DeviceTimes]]] = {}
    for record in traced:
        weight = record.calls / calls
        for phase in record.phases:
            zero = Phase(phase.path, 0.0, 0.0, 0.0, phase.device)
            so_far = merged.get(phase.path, zero)
            merged[phase.path] = replace(
                so_far,
                count=so_far.count + weight * phase.count,
                total_s=so_far.total_s + weight * phase.total_s,
                self_s=so_far.self_s + weight * phase.self_s,
            )
            if phase.on_device is not None:
                times.setdefault(phase.path, []).append((weight, phase.on_device))
    return tuple(replace(phase, on_device=merged_times(times.get(path, []))) for path, phase in merged.items())


def traced_call_s(traced: Sequence[SliceRecord]) -> float:
    """Return the mean seconds of a call in traced slices, of which phases are shares."""
    calls = sum(record.calls for record in traced)
    return sum(record.rounds_s for record in traced) / calls if calls else 0.0


def untraced(traced: Sequence[SliceRecord]) -> tuple[str, ...]:
    """Return why slices that were to be traced have no phases."""
    return tuple(dict.fromkeys(record.note for record in traced if record.note))


def merged_times(found: Sequence[tuple[float, DeviceTimes]]) -> DeviceTimes | None:
    """Return a phase's times on a device over several slices, each with its share of all calls; None without any.

    If one slice does not know the phase's span, the result does not know it either.
    """
    if not found:
        return None
    whole = sum(share for share, _ in found)
    known = [(share, times.allocations) for share, times in found if times.allocations is not None]
    bounds = dict.fromkeys((times.bound for _, times in found), 0.0)
    for share, times in found:
        bounds[times.bound] += share
    bound = max(bounds, key=bounds.__getitem__)
    if bound is Bound.LAUNCH and Bound.SYNC in bounds:
        bound = Bound.SYNC  # only the slice that looks for a wait in step sees it; for others it is a launch
    spans_s, selves_s = ([getattr(times, name) for _, times in found] for name in ("span_s", "self_s"))
    shares = [share for share, _ in found]
    return DeviceTimes(
        span_s=None if None in spans_s else sum(map(mul, shares, spans_s)),
        self_s=None if None in selves_s else sum(map(mul, shares, selves_s)),
        stream=", ".join(dict.fromkeys(times.stream for _, times in found)),
        lag_in_s=sum(share * times.lag_in_s for share, times in found) / whole,
        lag_out_s=sum(share * times.lag_out_s for share, times in found) / whole,
        bound=bound,
        is_synced=any(times.is_synced for _, times in found),
        peak_bytes=max((times.peak_bytes for _, times in found if times.peak_bytes is not None), default=None),
        allocations=sum(share * count for share, count in known) / sum(share for share, _ in known) if known else None,
    )
