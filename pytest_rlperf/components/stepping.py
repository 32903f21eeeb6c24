"""What adapters for vector envs have in common: actions drawn beforehand, and phases of one name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_rlperf.timers import hierarchical_timer

ACTIONS = 64  # distinct batches of actions, drawn before anything is timed
ACTION = hierarchical_timer("action")
ENV_STEP = hierarchical_timer("env_step")


class EveryEnvStepper:
    """Steps envs that reset within the step: every call is a step of all ``num_envs`` of them."""

    def __init__(self, num_envs: int, actions: Iterator[Any], step: Callable[[Any], Any]) -> None:
        self.num_envs = num_envs
        self._actions = actions
        self._step = step
        self._calls = 0

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            self._step(actions)
        self._calls += 1

    def count(self) -> float:
        """Return the env steps since this was last asked; of a check's, the last call's."""
        calls, self._calls = self._calls, 0
        return float(calls * self.num_envs)
