"""A worker's record, made of its slices."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeVar

from pytest_rlperf.model.device import Conditions, DeviceFigures, Pace
from pytest_rlperf.model.figures import never_waits
from pytest_rlperf.model.measured import Figures, Rounds, SliceRecord, Warm, WorkerRecord

_OFF_TURN_LEAST = 0.1  # of the slices' time: less is usual for a thread that reads one batch ahead, and hides little
T = TypeVar("T")


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

    ``other`` are slices at the pace that is not gated, if the workload uses a device. Only the notes of ``traced``
    slices are kept. On a device, CPU time never stands in for wall time: a process that polls for the device is busy
    while it waits for its own work. What calls leave to threads and child processes is done while others have their
    turn, and is in no figure: it counts as work while idle.
    """
    calls, wall_s = sum(record.calls for record in plain), sum(record.wall_s for record in plain)
    off_turn = sum(record.off_turn_s for record in plain) / wall_s
    device = device_figures(plain, other, traced)
    return WorkerRecord(
        wall=wall,
        cpu=cpu,
        long=warm.shape.long,
        alone=device is None and warm.shape.long and never_waits(plain),
        items_per_call=sum(record.items for record in plain) / calls,
        slices=len(plain),
        calls=calls,
        cpu_share=sum(record.cpu_s for record in plain) / wall_s,
        idle_cpu_share=max(idle_cpu_share, off_turn if off_turn > _OFF_TURN_LEAST else 0.0),
        collections=sum(record.collections for record in plain),
        threads=warm.threads,
        seed=seed,
        device=device,
    )


def rounds_of(sides: Sequence[Sequence[SliceRecord]], *, is_mean: bool) -> list[Rounds | None]:
    """Return all rounds of several processes' plain slices: CPU time if none waits and all have it.

    Return None for each on a device, where slices may have been retaken. ``is_mean`` is whether slices' figures are
    means.
    """
    slices = [record for side in sides for record in side]
    if any(record.device is not None for record in slices):
        return [None] * len(sides)
    by_cpu = all(map(never_waits, sides)) and all(len(each.rounds_cpu_ns) == len(each.rounds_ns) for each in slices)
    return [
        Rounds(
            side[0].calls // len(side[0].rounds_ns),
            tuple(record.first_call for record in side),
            tuple(chain.from_iterable(record.rounds_cpu_ns if by_cpu else record.rounds_ns for record in side)),
            is_mean,
            by_cpu,
        )
        for side in sides
    ]


def device_figures(
    plain: Sequence[SliceRecord], other: Sequence[SliceRecord], traced: Sequence[SliceRecord] = ()
) -> DeviceFigures | None:
    """Return a worker's figures on a device, from its slices at the gated and the other pace; None on the host."""
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
        compiled=statistics.fmean(each.compiled for each in gated),
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


def worst(seen: Iterable[Conditions]) -> Conditions | None:
    """Return the lowest clocks, highest temperature, all reasons and most others; None if there are no conditions."""
    states = list(seen)
    if not states:
        return None
    reasons = _known(state.throttled for state in states)
    return Conditions(
        sm_clock_hz=min(_known(state.sm_clock_hz for state in states), default=None),
        memory_clock_hz=min(_known(state.memory_clock_hz for state in states), default=None),
        temperature_c=max(_known(state.temperature_c for state in states), default=None),
        throttled=tuple(dict.fromkeys(chain.from_iterable(reasons))) if reasons else None,
        others=max(_known(state.others for state in states), default=None),
    )


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None
