"""Stepping a Stable-Baselines3 VecEnv."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from pytest_rlperf.components.arrays import check_observations
from pytest_rlperf.components.stepping import ACTIONS, EveryEnvStepper
from pytest_rlperf.errors import ComponentError

_CHECKED_STEPS = 100  # at most, in wait for an episode to end


class StableBaselines3Stepper(EveryEnvStepper):
    """Steps ``env`` with actions drawn beforehand; a VecEnv resets within the step, so every call is a step."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        self.env = env
        self._seed = seed
        env.action_space.seed(seed)
        actions = [np.stack([env.action_space.sample() for _ in range(env.num_envs)]) for _ in range(ACTIONS)]
        super().__init__(env.num_envs, cycle(actions), env.step)

    def check(self) -> None:
        """Reset, step until an episode has ended, and check what comes back; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.seed(self._seed)
        self.env.reset()
        for _ in range(_CHECKED_STEPS):
            results: tuple[Any, ...] = self.env.step(next(self._actions))
            self._check_shapes(*results)
            if self._has_reset(*results[2:]):
                break
        self._calls = 1

    def _check_shapes(self, obs: Any, rewards: Any, dones: Any, infos: Any) -> None:
        __tracebackhide__ = True
        check_observations(obs, self.num_envs)
        for name, shape in (("rewards", np.shape(rewards)), ("dones", np.shape(dones)), ("infos", (len(infos),))):
            if shape != (self.num_envs,):
                raise ComponentError(
                    f"step() returned {name} of shape {shape}; a VecEnv of {self.num_envs} envs returns "
                    f"({self.num_envs},)"
                )

    def _has_reset(self, dones: Any, infos: Any) -> bool:
        """Whether an env has ended an episode and, as it has to, was reset within the step."""
        __tracebackhide__ = True
        ended = np.flatnonzero(dones)
        for index in ended:
            if "terminal_observation" not in infos[index]:
                raise ComponentError(
                    f"env {index} is done and its info has no 'terminal_observation': a VecEnv resets within the step "
                    "that ends an episode, and keeps its last observation there"
                )
        return bool(ended.size)
