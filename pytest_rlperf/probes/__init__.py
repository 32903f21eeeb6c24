"""Phases for code that one cannot edit: from methods, PyTorch's own events, and other libraries' timers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes.attach import Undo, together
from pytest_rlperf.probes.torch import Ranges, follow, follow_context, phase_name


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
                yield from follow_context(context, lambda scope: phase_name(scope._key))
