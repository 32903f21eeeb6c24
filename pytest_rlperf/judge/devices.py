"""What may be said of figures on an accelerator: nothing of disturbed ones, nor of other devices' or settings'."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf.model import POWER_CAP, DeviceFigures, Disturbance, Result, disturbances_text

_THROTTLED = "let it cool down, raise its power limit, or have it for yourself"
_RECOMPILED = "have every shape compiled before the measured call, or keep shapes fixed"
_ALLOCATED = "do not empty the allocator's cache within a call, and let none of its tensors grow"


def broken_by_device(result: Result) -> tuple[str, str] | None:
    """Return why a result's figures on a device are worthless, if they are."""
    found = [worker.device for worker in result.workers if worker.device is not None]
    for figures in found:
        if figures.disturbances:
            return "device", _unfit(figures, disturbances_text(figures.disturbances), figures.disturbances)
    capped = [is_capped for figures in found if (is_capped := _is_capped(figures)) is not None]
    if any(capped) and not all(capped):
        disturbance = Disturbance((POWER_CAP,))
        what = f"{disturbance} in {sum(capped)} of {len(capped)} workers and not in the others"
        return "device", _unfit(found[0], what, [disturbance])
    return None


def other_device(base: Result, head: Result) -> str | None:
    """Return why two results' times on devices say nothing about each other, if they do not."""
    was, now = _figures(base), _figures(head)
    if was is None or now is None:
        if was is now:
            return None
        return f"it ran on {_place(was)}, and now on {_place(now)}: another workload"
    if _kind(was) != _kind(now):
        return f"it ran on {was.device}, and now on {now.device}: another device"
    if was.gated is not now.gated:
        return f"its {was.gated.value} was judged, and now its {now.gated.value}: two figures that are never mixed"
    if {_is_capped(was), _is_capped(now)} == {True, False}:
        if _is_capped(now):
            return f"it was not under its {POWER_CAP}, and now is all the time: other clocks"
        return f"it was under its {POWER_CAP} all the time, and now is not: other clocks"
    changed = [
        f"{name} was {was.flags.get(name, 'unknown')} and is {now.flags.get(name, 'unknown')}"
        for name in {**was.flags, **now.flags}
        if was.flags.get(name) != now.flags.get(name)
    ]
    if changed:
        return f"other settings compute other things: {', '.join(changed)}"
    return None


def _unfit(figures: DeviceFigures, what: str, disturbances: Sequence[Disturbance]) -> str:
    advice = [
        *([_THROTTLED] if any(each.throttled for each in disturbances) else []),
        *([_RECOMPILED] if any(each.recompiled for each in disturbances) else []),
        *([_ALLOCATED] if any(each.allocated for each in disturbances) else []),
    ]
    return f"{figures.device} was not fit to be measured on: {what}; {'; '.join(advice)}"


def _is_capped(figures: DeviceFigures) -> bool | None:
    """Return whether a device was under its power cap, which disturbs nothing if it always is; None where unknown."""
    if figures.conditions is None or figures.conditions.throttled is None:
        return None
    return POWER_CAP in figures.conditions.throttled


def _figures(result: Result) -> DeviceFigures | None:
    return result.workers[0].device if result.workers else None


def _place(figures: DeviceFigures | None) -> str:
    return "the host" if figures is None else figures.device


def _kind(figures: DeviceFigures) -> str:
    """Return a device without its number: which of several equal ones it was makes no difference."""
    return figures.device.partition(":")[0]
