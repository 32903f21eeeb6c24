"""Gridlab's vector envs, memory and advantages: all that a library needs to be known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_rlperf.components.contracts import GaeCall, Stepper, check_observations, check_rows, draw_actions
from pytest_rlperf.components.libraries import Adapter, Library


class GridsStepper(Stepper):
    def __init__(self, env: Any, seed: int) -> None:
        super().__init__(env, env.num_envs, draw_actions(env.envs[0].action_space, env.num_envs, seed))

    def reset(self) -> Any:
        return self.env.begin()

    def step(self, actions: Any) -> Any:
        return self.env.advance(actions)

    def check_step(self, results: Any) -> bool:
        obs, rewards, over = results
        check_observations(obs, self.num_envs)
        check_rows(self.num_envs, {"rewards": rewards, "over": over})
        return bool(over.any())


def drawing(memory: Any, batch_size: int) -> Callable[[], Any]:
    return lambda: memory.sample(how_many=batch_size)


def credit(function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> GaeCall:
    worth = np.vstack([rollout["values"], rollout["last_values"]])
    call = partial(function, rollout["rewards"], worth, rollout["ends"], rollout["gamma"], rollout["lam"])
    return GaeCall(call, lambda output: output)


LIBRARY = Library(
    name="gridlab",
    module="gridlab",
    requirement="gridlab",
    vecenv=(Adapter("gridlab:Grids", GridsStepper),),
    replay=(Adapter("gridlab:Memory", drawing),),
    gae=(Adapter("gridlab:credit", credit),),
    environments=("gridlab:Grids.advance",),
    starter=str(Path(__file__).parents[1] / "gridlab_tests.py"),
)
