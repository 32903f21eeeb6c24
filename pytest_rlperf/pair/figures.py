"""A worker's figures, made of its slices."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from operator import mul

from pytest_rlperf.model.device import Bound, DeviceFigures, DeviceTimes, Pace
from pytest_rlperf.model.figures import never_waits
from pytest_rlperf.model.measured import Figures, Phase, SliceRecord, Warm, WorkerRecord
from pytest_rlperf.worker.device_state import worst


def worker_record(
    plain: Sequence[SliceRecord],
    wall: Figures,
    cpu: Figures,
    warm: Warm,
    *,
    seed: int,
    idle_cpu_share: float = 0.0,
    other: Sequence[SliceRecord] = (),
    traced: Sequence[SliceRecord] = (),
) -> WorkerRecord:
    """Return one worker's record, from its plain slices and its figures by both clocks.

    ``other`` are slices at the pace that is not gated, of a workload on a device; of ``traced`` ones only the notes
    are kept. On a device the CPU's time never stands in for the wall's: a process that polls for the device is busy,
    and waits for work of its own.
    """
    calls = sum(record.calls for record in plain)
    device = device_figures(plain, other, traced)
    return WorkerRecord(
        wall=wall,
        cpu=cpu,
        long=warm.shape.long,
        alone=device is None and warm.shape.long and never_waits(plain),
        items_per_call=sum(record.items for record in plain) / calls,
        slices=len(plain),
        calls=calls,
        cpu_share=sum(record.cpu_s for record in plain) / sum(record.wall_s for record in plain),
        idle_cpu_share=idle_cpu_share,
        collections=sum(record.collections for record in plain),
        threads=warm.threads,
        seed=seed,
        device=device,
    )


def device_figures(
    plain: Sequence[SliceRecord], other: Sequence[SliceRecord], traced: Sequence[SliceRecord] = ()
) -> DeviceFigures | None:
    """Return a worker's figures on a device, from its slices at the gated pace and at the other; None on the host."""
    gated = [record.device for record in plain if record.device is not None]
    if not gated:
        return None
    last = gated[-1]
    slices = [*gated, *(record.device for record in other if record.device is not None)]
    paces_s = {
        pace: _median(
            [each.call_s for each in (*plain, *other) if each.device is not None and each.device.pace is pace]
        )
        for pace in Pace
    }
    conditions = worst(state for each in slices for state in (each.before, each.after) if state is not None)
    return DeviceFigures(
        device=last.device,
        gated=last.pace,
        latency_s=paces_s[Pace.LATENCY],
        steady_s=paces_s[Pace.STEADY],
        cycles=_median([each.cycles for each in gated if each.cycles is not None]),
        peak_bytes=max(each.peak_bytes for each in gated),
        allocations=statistics.fmean(each.allocations for each in gated),
        flags=last.flags,
        conditions=conditions,
        disturbances=next((each.disturbances for each in slices if each.disturbances), ()),
        retaken=sum(each.retaken for each in slices),
        notes=tuple(
            dict.fromkeys(
                note for each in (*plain, *other, *traced) if each.device is not None for note in each.device.notes
            )
        ),
    )


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
    """Return the mean seconds of a call in traced slices, the whole that phases are shares of."""
    calls = sum(record.calls for record in traced)
    return sum(record.rounds_s for record in traced) / calls if calls else 0.0


def untraced(traced: Sequence[SliceRecord]) -> tuple[str, ...]:
    """Return why slices that were to be traced have no phases."""
    return tuple(dict.fromkeys(record.note for record in traced if record.note))


def merged_times(found: Sequence[tuple[float, DeviceTimes]]) -> DeviceTimes | None:
    """Return a phase's times on a device over several slices, each with its share of all calls; None without any.

    Where one slice does not know the phase's span, all together do not.
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
        bound = Bound.SYNC  # a wait in step is seen by the slice that looks for it alone, and is a launch to the others
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


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def device_notes(workers: Sequence[WorkerRecord]) -> list[str]:
    """Return notes on how the workers' figures on a device were taken, each one once."""
    figures = [worker.device for worker in workers if worker.device is not None]
    notes = [note for each in figures for note in each.notes]
    retaken = sum(each.retaken for each in figures)
    if retaken:
        notes.append(f"slices that were disturbed on {figures[0].device}, thrown away and retaken: {retaken}")
    others = max((each.conditions.others or 0 for each in figures if each.conditions is not None), default=0)
    if others:
        notes.append(f"other processes use {figures[0].device} too, at most {others} at once")
    return list(dict.fromkeys(notes))
