"""Gridlab's vector envs, memory and advantages: all that a library needs to be known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_rlperf.components.contracts import (
    ACTIONS,
    GaeCall,
    Sampler,
    Stepper,
    check_observations,
    check_rows,
)
from pytest_rlperf.components.libraries import Adapter, Library


class GridsStepper(Stepper):
    def __init__(self, env: Any, seed: int) -> None:
        space = env.envs[0].action_space
        space.seed(seed)
        actions = [np.stack([space.sample() for _ in range(env.num_envs)]) for _ in range(ACTIONS)]
        super().__init__(env, env.num_envs, actions)

    def check(self) -> None:
        self.env.begin()
        obs, rewards, over = self.step(next(self._actions))
        check_observations(obs, self.num_envs)
        check_rows(self.num_envs, {"rewards": rewards.shape, "over": over.shape})
        self._calls = 1

    def step(self, actions: Any) -> Any:
        return self.env.advance(actions)


class MemorySampler(Sampler):
    def draw(self) -> Any:
        return self.buffer.sample(how_many=self.batch_size)


class Credit(GaeCall):
    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        worth = np.vstack([rollout["values"], rollout["last_values"]])
        self._call = partial(function, rollout["rewards"], worth, rollout["ends"], rollout["gamma"], rollout["lam"])

    def call(self) -> Any:
        return self._call()

    def advantages(self, output: Any) -> Any:
        return output


LIBRARY = Library(
    name="gridlab",
    module="gridlab",
    requirement="gridlab",
    vecenv=(Adapter("gridlab:Grids", GridsStepper),),
    replay=(Adapter("gridlab:Memory", MemorySampler),),
    gae=(Adapter("gridlab:credit", Credit),),
    environments=("gridlab:Grids.advance",),
    starter=str(Path(__file__).parents[1] / "gridlab_tests.py"),
)
