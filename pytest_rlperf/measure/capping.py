"""A device's power cap: at full load it may be on all the time, which is how the device works, and no disturbance."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf.measure.conditions import CLOCK_STEADY, POWER_CAP, all_reasons
from pytest_rlperf.model import Conditions

CAME_AND_WENT = f"{POWER_CAP} that came and went"


class PowerCap:
    """Tells a power cap that slices of one kind are always under from one that comes and goes.

    It is always on where all tries of a slice were under it, and no slice was kept before that was not. From then on a
    slice that is not under it, or at another clock, is the one that does not count.
    """

    def __init__(self) -> None:
        self._clock_hz: float | None = None  # that the device is held at, where the cap is always on
        self._was_free = False
        self._tries_hz: list[float | None] = []

    def begin(self) -> None:
        """Begin the tries of another slice."""
        self._tries_hz = []

    def disturbing(self, before: Conditions | None, after: Conditions | None) -> tuple[str, ...]:
        """Return the reasons for which a try does not count, by the states of the device before and after it."""
        reasons = all_reasons(state for state in (before, after) if state is not None) or ()
        clock_hz = capped_clock_hz(before, after)
        self._tries_hz.append(clock_hz)
        if self._clock_hz is None:
            return reasons
        if clock_hz is not None and _holds_still([self._clock_hz, clock_hz]):
            return ()
        return tuple(CAME_AND_WENT if reason == POWER_CAP else reason for reason in reasons) or (CAME_AND_WENT,)

    def keep(self) -> None:
        """Take note of a slice that counts."""
        self._was_free = self._was_free or self._clock_hz is None

    def is_always_on(self) -> bool:
        """Whether the tries of this slice, all of them disturbed, show a cap that is always on; that is remembered."""
        tries_hz = [clock_hz for clock_hz in self._tries_hz if clock_hz is not None]
        if self._was_free or self._clock_hz is not None or len(tries_hz) < len(self._tries_hz):
            return False
        if not _holds_still(tries_hz):
            return False
        self._clock_hz = tries_hz[-1]
        return True


def capped_clock_hz(before: Conditions | None, after: Conditions | None) -> float | None:
    """Return the clock that a device was held at by its power cap and nothing else; None where it moved or was not."""
    clocks_hz: list[float] = []
    for state in (before, after):
        if state is None or state.throttled != (POWER_CAP,) or state.sm_clock_hz is None:
            return None
        clocks_hz.append(state.sm_clock_hz)
    return clocks_hz[-1] if _holds_still(clocks_hz) else None


def _holds_still(clocks_hz: Sequence[float]) -> bool:
    return max(clocks_hz) - min(clocks_hz) <= CLOCK_STEADY * max(clocks_hz)
