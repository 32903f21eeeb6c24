"""What may be said of figures on an accelerator: nothing of disturbed ones, nor of other devices' or settings'."""

from __future__ import annotations

from pytest_rlperf.model import DeviceFigures, Result

_ADVICE = {
    "throttled": "let it cool down, raise its power limit, or have it for yourself",
    "recompiled": "have every shape compiled before the measured call, or keep shapes fixed",
    "memory was asked": "do not empty the allocator's cache within a call, and let none of its tensors grow",
}


def broken_by_device(result: Result) -> tuple[str, str] | None:
    """Return why a result's figures on a device are worthless, if they are."""
    for worker in result.workers:
        if worker.device is not None and worker.device.disturbed:
            what = worker.device.disturbed
            advice = [text for word, text in _ADVICE.items() if word in what]
            return "device", f"{worker.device.device} was not fit to be measured on: {what}; {'; '.join(advice)}"
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
    changed = [
        f"{name} was {was.flags.get(name, 'unknown')} and is {now.flags.get(name, 'unknown')}"
        for name in {**was.flags, **now.flags}
        if was.flags.get(name) != now.flags.get(name)
    ]
    if changed:
        return f"other settings compute other things: {', '.join(changed)}"
    return None


def _figures(result: Result) -> DeviceFigures | None:
    return result.workers[0].device if result.workers else None


def _place(figures: DeviceFigures | None) -> str:
    return "the host" if figures is None else figures.device


def _kind(figures: DeviceFigures) -> str:
    """Return a device without its number: which of several equal ones it was makes no difference."""
    return figures.device.partition(":")[0]
