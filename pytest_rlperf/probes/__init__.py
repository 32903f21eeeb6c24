"""Phases for code that one cannot edit: from methods, PyTorch's own events, and other libraries' timers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes.attach import Undo, put, together
from pytest_rlperf.probes.torch import Ranges, follow, phase_name
from pytest_rlperf.timers.process import hierarchical_timer


def standing_probes() -> tuple[Probe, ...]:
    """Return the probes that any code is measured with: for the timers and ranges of libraries that are loaded."""
    return (LiveTimers(), Ranges()) if "torch" in sys.modules else (LiveTimers(),)


# Stand-ins have the names of their originals.
_MLAGENTS = ("mlagents_envs.timers", "pytest_rlperf.compat.mlagents")
_SAMPLE_FACTORY = ("sample_factory.utils.timing", "pytest_rlperf.compat.sample_factory")


class LiveTimers:
    """Makes phases of the scopes of ML-Agents' and Sample Factory's timers, where those are loaded."""

    def attach(self) -> Undo:
        """Follow them from now on; they go on timing for themselves."""
        return together(self._watch())

    def _watch(self) -> Iterator[Undo]:
        for name in _MLAGENTS:
            stack = getattr(sys.modules.get(name), "TimerStack", None)
            if stack is not None:
                yield from follow(stack, "push", "pop")
        for name in _SAMPLE_FACTORY:
            context = getattr(sys.modules.get(name), "TimingContext", None)
            if context is not None:
                yield from _follow_context(context)


def _follow_context(context: Any) -> Iterator[Undo]:
    """Follow a class of context managers that have a ``_key``."""
    enter, leave = context.__enter__, context.__exit__

    def followed_enter(self: Any) -> Any:
        done = enter(self)
        hierarchical_timer(phase_name(self._key)).__enter__()
        return done

    def followed_exit(self: Any, *error: Any) -> Any:
        hierarchical_timer(phase_name(self._key)).__exit__(None, None, None)
        return leave(self, *error)

    yield put(context, "__enter__", followed_enter)
    yield put(context, "__exit__", followed_exit)
