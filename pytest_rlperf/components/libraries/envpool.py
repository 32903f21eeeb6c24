"""EnvPool's pools that step all envs at once. It has no other component."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_rlperf.components.contracts import AutoresetStepper, draw_actions
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError

if TYPE_CHECKING:
    from envpool import EnvPool


class EnvPoolStepper(AutoresetStepper):
    """Steps all envs of a pool; the call after an episode's end resets that env and ignores its action."""

    def __init__(self, env: EnvPool, seed: int) -> None:
        config = env.config
        if env.is_async or not hasattr(env, "observation_space") or config["max_num_players"] != 1:
            raise ComponentError(
                "rlperf_vecenv_step supports EnvPool's gymnasium interface, and pools of one player that step all envs "
                "at once; for others, pass a zero-argument function: rlperf_vecenv_step(step, num_envs=…)"
            )
        num_envs = config["num_envs"]
        specs = env.spec.action_array_spec
        (spec,) = (spec for name, spec in specs.items() if name not in ("env_id", "players.env_id"))
        # The type that the pool takes without conversion.
        actions = draw_actions(env.spec.gymnasium_action_space, num_envs, seed)
        super().__init__(env, num_envs, [batch.astype(spec.dtype) for batch in actions], "NextStep")


LIBRARY = Library(
    name="envpool",
    module="envpool",
    requirement="envpool",
    vecenv=(Adapter("envpool.python.envpool:EnvPoolMixin", EnvPoolStepper),),
    environments=("envpool.python.envpool:EnvPoolMixin.step",),
    starter="test_envpool.py",
)
