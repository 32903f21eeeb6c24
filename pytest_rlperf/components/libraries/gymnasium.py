"""Stepping a gymnasium vector env, whatever its autoreset mode."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from pytest_rlperf.components.arrays import check_observations
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import hierarchical_timer

_ACTIONS = 64  # distinct batches of actions, drawn before anything is timed
_ACTION = hierarchical_timer("action")
_ENV_STEP = hierarchical_timer("env_step")
_RESET = hierarchical_timer("reset")


class GymnasiumStepper:
    """Steps ``env`` with actions drawn beforehand, and counts the steps that were no resets.

    Under NEXT_STEP autoreset the call after an episode's end resets that env and ignores its action: no step.
    Under DISABLED the ended envs are reset by a masked reset, part of what stepping on takes.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._seed = seed
        env.action_space.seed(seed)
        self._actions = cycle([env.action_space.sample() for _ in range(_ACTIONS)])
        mode = env.metadata.get("autoreset_mode") if env.metadata else None
        # An enum of "NextStep" and the like, or its value. gymnasium 1.0 knows one mode only, and does not name it.
        self.mode = "NextStep" if mode is None else str(getattr(mode, "value", mode))
        self._ended: list[Any] = []
        self._calls = 0
        self._resets_due = 0
        self._copies = True

    def check(self) -> None:
        """Reset, step twice, and check the shapes; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.reset(seed=self._seed)
        obs, reward, terminated, truncated, _ = self.env.step(next(self._actions))
        check_observations(obs, self.num_envs)
        for name, array in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            shape = tuple(np.shape(array))
            if shape != (self.num_envs,):
                raise ComponentError(
                    f"step() returned {name} of shape {shape}; a vector env of {self.num_envs} envs returns "
                    f"({self.num_envs},)"
                )
        self._finish_step(terminated, truncated)
        _, _, again, also, _ = self.env.step(next(self._actions))
        # Where the env hands out its own arrays, a reference kept would change with the next step.
        self._copies = np.shares_memory(terminated, again) or np.shares_memory(truncated, also)
        self._calls, self._ended, self._resets_due = 0, [], 0
        self._finish_step(again, also)

    def call(self) -> None:
        """Step every env once."""
        with _ACTION:
            actions = next(self._actions)
        with _ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._finish_step(terminated, truncated)

    def count(self) -> float:
        """Return the env steps since this was last asked, resets left out; of a check's, the last call's."""
        calls, self._calls = self._calls, 0
        if self.mode != "NextStep":
            return float(calls * self.num_envs)
        ended = [int(np.count_nonzero(np.logical_or(*pair))) for pair in self._ended]
        self._ended.clear()
        if not ended:
            return 0.0
        resets = self._resets_due + sum(ended[:-1])
        self._resets_due = ended[-1]
        return float(calls * self.num_envs - resets)

    def _finish_step(self, terminated: Any, truncated: Any) -> None:
        """Keep what counting needs, and reset where the env does not do so itself."""
        self._calls += 1
        if self.mode == "NextStep":
            pair = (terminated.copy(), truncated.copy()) if self._copies else (terminated, truncated)
            self._ended.append(pair)
        elif self.mode == "Disabled":
            ended = np.logical_or(terminated, truncated)
            if ended.any():
                with _RESET:
                    self.env.reset(options={"reset_mask": ended})
