"""The checks whether a measurement can be judged, and whether two results can be compared."""

from __future__ import annotations

from pytest_rlperf.model import reasons
from pytest_rlperf.model.device import DeviceFigures
from pytest_rlperf.model.measured import Result, work_text
from pytest_rlperf.model.reasons import Code, Reason
from pytest_rlperf.model.stored import StoredResult

_IDLE_CPU_SHARE = 0.02
_PHASES_OVER = 1.02  # except for reading errors, phases must not add up to more than the whole


def broken_rule(result: Result) -> Reason | None:
    """Return the rule that a measurement broke, if it broke one."""
    disturbed = _disturbed(result)
    if disturbed is not None:
        return disturbed
    idle = max(worker.idle_cpu_share for worker in result.workers)
    if idle > _IDLE_CPU_SHARE:
        return reasons.BackgroundWork(idle)
    whole_s = result.traced_call_s
    parts_s = sum(phase.total_s for phase in result.phases if phase.depth == 0)
    if whole_s and parts_s > _PHASES_OVER * whole_s:
        return reasons.PhasesOverCall(parts_s, whole_s)
    return None


def _disturbed(result: Result) -> Reason | None:
    """Return why a result's figures on a device are worthless, if they are."""
    for figures in (worker.device for worker in result.workers):
        if figures is not None and figures.disturbances:
            return reasons.DeviceDisturbed(figures.device, figures.disturbances)
    return None


def incomparable(stored: StoredResult, result: Result, *, stores: bool) -> Reason | None:
    """Return why a result cannot be compared with the stored one, if it cannot."""
    then = stored.result
    found = None
    if not then.is_same_work(result):
        found = ("a call's work", _work(then), _work(result))
    elif {worker.long for worker in then.workers} != {worker.long for worker in result.workers}:
        found = ("the figure of a slice", _average(then), _average(result))
    elif then.start != result.start:
        found = ("the start of processes", then.start.value, result.start.value)
    if found is not None:
        return reasons.Incomparable(Code.WORKLOAD, *found, None, stores)
    return other_device(then, result, None, stores=stores)


def other_device(base: Result, head: Result, base_label: str | None, *, stores: bool = False) -> Reason | None:
    """Return why two results' times on devices cannot be compared, if they cannot.

    ``base_label`` names the base of a live comparison; None stands for the baseline.
    """
    difference = _difference(_figures(base), _figures(head))
    return None if difference is None else reasons.Incomparable(Code.DEVICE, *difference, base_label, stores)


def _difference(was: DeviceFigures | None, now: DeviceFigures | None) -> tuple[str, str, str] | None:
    """Return the name of a difference between figures on devices, and its values then and now."""
    if was is None or now is None:
        return None if was is now else ("the device", _place(was), _place(now))
    if _kind(was) != _kind(now):
        return "the device", was.device, now.device
    if was.gated is not now.gated:
        return "the time that is judged", was.gated.value, now.gated.value
    names = [name for name in {**was.flags, **now.flags} if was.flags.get(name) != now.flags.get(name)]
    if not names:
        return None
    then, today = (", ".join(f"{name}={each.flags.get(name, 'unknown')}" for name in names) for each in (was, now))
    return "the device's settings", then, today


def _figures(result: Result) -> DeviceFigures | None:
    return result.workers[0].device if result.workers else None


def _place(figures: DeviceFigures | None) -> str:
    return "the host" if figures is None else figures.device


def _kind(figures: DeviceFigures) -> str:
    """Return a device without its number: equal devices are interchangeable."""
    return figures.device.partition(":")[0]


def _work(result: Result) -> str:
    return work_text(result.component, result.unit, result.items)


def _average(result: Result) -> str:
    return "its mean round" if all(worker.long for worker in result.workers) else "its median round"
