"""gymnasium's vector envs."""

from __future__ import annotations

from typing import Any

from pytest_rlperf.components.contracts import ACTIONS, AutoresetStepper, autoreset_mode, reset_first
from pytest_rlperf.components.libraries import Adapter, Library


class GymnasiumStepper(AutoresetStepper):
    """Steps a vector env, which states its autoreset mode."""

    def __init__(self, env: Any, seed: int) -> None:
        env.action_space.seed(seed)
        actions = [env.action_space.sample() for _ in range(ACTIONS)]
        super().__init__(env, env.num_envs, actions, autoreset_mode(env) or "NextStep")
        self._seed = seed

    def reset(self) -> None:
        """Reset every env, by the seed."""
        __tracebackhide__ = True
        reset_first(self.env, seed=self._seed)

    def reset_ended(self, ended: Any) -> None:
        """Reset the envs whose episodes have ended."""
        self.env.reset(options={"reset_mask": ended})


LIBRARY = Library(
    name="gymnasium",
    module="gymnasium",
    requirement="gymnasium",
    vecenv=(Adapter("gymnasium.vector:VectorEnv", GymnasiumStepper),),
    environments=("gymnasium:Env.step", "gymnasium.vector:VectorEnv.step"),
    starter="start_gymnasium.py",
)
