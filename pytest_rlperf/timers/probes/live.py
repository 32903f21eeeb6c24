"""Phases that other libraries' own timers tell of, while they run."""

from __future__ import annotations

import sys
from typing import Any

from pytest_rlperf.timers.probes.attach import Undo, put, together
from pytest_rlperf.timers.probes.torch import phase_name
from pytest_rlperf.timers.process import hierarchical_timer

_MLAGENTS = ("mlagents_envs.timers", "pytest_rlperf.compat.mlagents")
_SAMPLE_FACTORY = ("sample_factory.utils.timing",)


class LiveTimers:
    """Makes phases of the scopes of ML-Agents' and Sample Factory's timers, where those are loaded."""

    def attach(self) -> Undo:
        """Follow them from now on; they go on timing for themselves."""
        undoes: list[Undo] = []
        for name in _MLAGENTS:
            stack = getattr(sys.modules.get(name), "TimerStack", None)
            if stack is not None:
                undoes += _follow_stack(stack)
        for name in _SAMPLE_FACTORY:
            context = getattr(sys.modules.get(name), "TimingContext", None)
            if context is not None:
                undoes += _follow_context(context)
        return together(undoes)


def _follow_stack(stack: Any) -> list[Undo]:
    """Follow a class with ``push(name)`` and ``pop()``."""
    push, pop = stack.push, stack.pop
    names: list[str] = []

    def followed_push(self: Any, name: str) -> Any:
        done = push(self, name)
        names.append(phase_name(name))
        hierarchical_timer(names[-1]).__enter__()
        return done

    def followed_pop(self: Any) -> Any:
        if names:
            hierarchical_timer(names.pop()).__exit__(None, None, None)
        return pop(self)

    return [put(stack, "push", followed_push), put(stack, "pop", followed_pop)]


def _follow_context(context: Any) -> list[Undo]:
    """Follow a class of context managers that have a ``_key``."""
    enter, leave = context.__enter__, context.__exit__

    def followed_enter(self: Any) -> Any:
        done = enter(self)
        hierarchical_timer(phase_name(self._key)).__enter__()
        return done

    def followed_exit(self: Any, *error: Any) -> Any:
        hierarchical_timer(phase_name(self._key)).__exit__(None, None, None)
        return leave(self, *error)

    return [put(context, "__enter__", followed_enter), put(context, "__exit__", followed_exit)]
