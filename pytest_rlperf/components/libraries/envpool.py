"""EnvPool's pools that step all envs at once. It has no other component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_rlperf.components.contracts import ACTION, ACTIONS, ENV_STEP, Stepper, check_observations, check_rows
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.errors import ComponentError

if TYPE_CHECKING:
    from envpool import EnvPool

_FOLLOWED = 16  # calls in a check


class EnvPoolStepper(Stepper):
    """Steps all envs of a pool with actions drawn beforehand, and counts the steps that were no resets.

    The call after an episode's end resets that env and ignores its action.
    """

    def __init__(self, env: EnvPool, seed: int) -> None:
        config = env.config
        if env.is_async or not hasattr(env, "observation_space") or config["max_num_players"] != 1:
            raise ComponentError(
                "rlperf_vecenv_step supports EnvPool's gymnasium interface, and pools of one player that step all envs "
                "at once; for others give a thunk: rlperf_vecenv_step(step, num_envs=…)"
            )
        super().__init__(env, config["num_envs"], _draw_actions(env, config["num_envs"], seed))
        self._stepped: list[Any] = []  # an array a call, 0 where an env was reset; the pool makes new ones

    def check(self) -> None:
        """Reset and follow each env for some calls; ComponentError names what is wrong."""
        __tracebackhide__ = True
        self._follow(self.env.reset(), np.ones(self.num_envs, np.bool_))
        due = np.zeros(self.num_envs, np.bool_)
        for _ in range(_FOLLOWED):
            received = self.env.step(next(self._actions))
            self._follow(received, due)
            due = np.logical_or(received[2], received[3])
        self._stepped = [received[-1]["elapsed_step"]]

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            received = self.env.step(actions)
        self._stepped.append(received[-1]["elapsed_step"])

    def count(self) -> float:
        """Return the env steps since the last count, resets left out; of a check's, those of its last call."""
        steps = sum(int(np.count_nonzero(stepped)) for stepped in self._stepped)
        self._stepped.clear()
        return float(steps)

    def _follow(self, received: Any, due: Any) -> None:
        """Check what a call returned, and that just those envs were reset that were due: after an episode's end."""
        __tracebackhide__ = True
        stepped = received[-1]["elapsed_step"]
        check_rows(self.num_envs, {"elapsed_step": stepped.shape})
        check_observations(received[0], self.num_envs)
        wrong = np.flatnonzero(due != (stepped == 0))
        if wrong.size:
            found, expected = ("a step", "its reset") if due[wrong[0]] else ("a reset", "a step")
            raise ComponentError(
                f"env {wrong[0]} returned {found}, expected {expected}: the call after an episode's end is counted as "
                "a reset"
            )


def _draw_actions(env: Any, rows: int, seed: int) -> list[Any]:
    """Return batches of actions of the type that the pool takes without conversion."""
    routing = ("env_id", "players.env_id")
    specs = {name: spec for name, spec in env.spec.action_array_spec.items() if name not in routing}
    (spec,) = specs.values()
    space = env.spec.gymnasium_action_space
    space.seed(seed)
    return [np.stack([space.sample() for _ in range(rows)]).astype(spec.dtype) for _ in range(ACTIONS)]


LIBRARY = Library(
    name="envpool",
    module="envpool",
    requirement="envpool",
    vecenv=(Adapter("envpool.python.envpool:EnvPoolMixin", EnvPoolStepper),),
    environments=("envpool.python.envpool:EnvPoolMixin.step",),
    starter="test_envpool.py",
)
