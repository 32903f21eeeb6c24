"""Whether this process has timers at all, decided once, before anything is timed.

``RLPERF_TIMERS=on`` arms them and records from the start, ``standby`` arms them and waits to be switched on. Anything
else leaves nothing of them: a decorated function is the function itself, and a scope does nothing.
"""

from __future__ import annotations

import os
import warnings

VARIABLE = "RLPERF_TIMERS"
_ON = frozenset({"on", "1", "true", "yes"})
_STANDBY = frozenset({"standby"})
_OFF = frozenset({"", "off", "0", "false", "no"})


def _read(setting: str) -> tuple[bool, bool]:
    """Return whether timers are armed, and whether they record from the start."""
    value = setting.strip().lower()
    if value not in _ON | _STANDBY | _OFF:
        warnings.warn(
            f"{VARIABLE}={setting} is none of on, standby and off: timers stay off", RuntimeWarning, stacklevel=2
        )
    return value in _ON | _STANDBY, value in _ON


ARMED, STARTS_ON = _read(os.environ.get(VARIABLE, ""))


def child_environment(*, recording: bool) -> dict[str, str]:
    """Return the variables that give another process timers in the state of this one's."""
    return {VARIABLE: ("on" if recording else "standby") if ARMED else "off"}


def tell_children(*, recording: bool) -> None:
    """Have processes that are started from now on begin in this state."""
    os.environ.update(child_environment(recording=recording))


def refuse(action: str) -> None:
    """Warn that timers were left out of this process, so that nothing can be switched."""
    warnings.warn(
        f"{action} does nothing: timers were not armed when pytest_rlperf.timers was imported. "
        f"Set {VARIABLE}=on (or standby) in the environment before Python starts",
        RuntimeWarning,
        stacklevel=3,
    )
