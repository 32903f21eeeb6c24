"""Whether a measurement can be judged at all, and whether two results can be compared."""

from __future__ import annotations

from pytest_rlperf.model import reasons
from pytest_rlperf.model.device import POWER_CAP, DeviceFigures
from pytest_rlperf.model.measured import Result
from pytest_rlperf.model.reasons import Reason, Work
from pytest_rlperf.model.stored import StoredResult

_IDLE_CPU_SHARE = 0.02
_PHASES_OVER = 1.02  # phases may not add up to more than the whole, reading errors aside


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
    found = [worker.device for worker in result.workers if worker.device is not None]
    for figures in found:
        if figures.disturbances:
            return reasons.DeviceDisturbed(figures.device, figures.disturbances)
    capped = [is_capped for figures in found if (is_capped := _is_capped(figures)) is not None]
    if any(capped) and not all(capped):
        return reasons.CapInSomeWorkers(found[0].device, sum(capped), len(capped))
    return None


def incomparable(stored: StoredResult, result: Result, *, stores: bool) -> Reason | None:
    """Return why a result cannot be compared with the stored one, if it cannot."""
    then = stored.result
    if not then.is_same_work(result):
        return reasons.OtherWorkload(_work(then), _work(result), stores)
    if {worker.long for worker in then.workers} != {worker.long for worker in result.workers}:
        return reasons.OtherAverage(all(worker.long for worker in result.workers), stores)
    if then.start != result.start:
        return reasons.OtherStart(result.start, stores)
    return other_device(then, result, None, stores=stores)


def other_device(base: Result, head: Result, base_label: str | None, *, stores: bool = False) -> Reason | None:
    """Return why two results' times on devices cannot be compared, if they cannot.

    ``base_label`` names base of a live comparison; None stands for the baseline.
    """
    was, now = _figures(base), _figures(head)
    difference = _difference(was, now)
    return None if difference is None else reasons.OtherDevice(difference, base_label, stores)


def _difference(was: DeviceFigures | None, now: DeviceFigures | None) -> reasons.DeviceDifference | None:
    if was is None or now is None:
        return None if was is now else reasons.OtherPlace(_place(was), _place(now))
    if _kind(was) != _kind(now):
        return reasons.OtherPlace(was.device, now.device)
    if was.gated is not now.gated:
        return reasons.OtherPace(was.gated, now.gated)
    if {_is_capped(was), _is_capped(now)} == {True, False}:
        return reasons.OtherCap(now=_is_capped(now) is True)
    changed = tuple(
        reasons.SettingChange(name, was.flags.get(name), now.flags.get(name))
        for name in {**was.flags, **now.flags}
        if was.flags.get(name) != now.flags.get(name)
    )
    return reasons.OtherSettings(changed) if changed else None


def _is_capped(figures: DeviceFigures) -> bool | None:
    """Return whether a device was under its power cap, which disturbs nothing if it always is; None where unknown."""
    if figures.conditions is None or figures.conditions.throttled is None:
        return None
    return POWER_CAP in figures.conditions.throttled


def _figures(result: Result) -> DeviceFigures | None:
    return result.workers[0].device if result.workers else None


def _place(figures: DeviceFigures | None) -> str | None:
    return None if figures is None else figures.device


def _kind(figures: DeviceFigures) -> str:
    """Return a device without its number: which of several equal ones it was makes no difference."""
    return figures.device.partition(":")[0]


def _work(result: Result) -> Work:
    return Work(result.component, result.unit, result.items)
