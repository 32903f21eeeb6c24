"""EnvPool's pools: all envs at once, or those that are ready first. It has no other component."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_rlperf.components.contracts import ACTION, ACTIONS, ENV_STEP, Stepper, check_observations
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.components.samples import Samples
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import hierarchical_timer

if TYPE_CHECKING:
    from envpool import EnvPool

_FOLLOWED = 16  # calls in a check, or what all envs take to come back twice
_ROUTING = ("env_id", "players.env_id")
_RECV = hierarchical_timer("recv")
_SEND = hierarchical_timer("send")


class EnvPoolStepper(Stepper):
    """Steps a pool with actions drawn beforehand, and counts the steps that were no resets.

    The call after an episode's end resets that env and ignores its action. Where the pool's ``batch_size`` is smaller
    than its number of envs, a call receives the envs that are ready, ``batch_size`` of them, and sends them off again.
    """

    def __init__(self, env: EnvPool, seed: int) -> None:
        self.env: Any = env
        config: dict[str, Any] = self.env.config
        self._is_async: bool = self.env.is_async
        self.num_envs: int = config["batch_size"] if self._is_async else config["num_envs"]
        self._all_envs: int = config["num_envs"]
        self._actions = cycle(_draw_actions(self.env, self.num_envs, seed))
        self._stepped: list[Any] = []  # an array a call, not 0 where an env was stepped
        self._ended: dict[int, bool] = {}

    def check(self) -> None:
        """Reset and follow each env for some calls; ComponentError names what is wrong."""
        __tracebackhide__ = True
        self._ended.clear()
        if self._is_async:
            self.env.async_reset()
        else:
            self._follow(self.env.reset())
        for _ in range(max(_FOLLOWED, math.ceil(2 * self._all_envs / self.num_envs))):
            self._follow(self._step(next(self._actions)))
        del self._stepped[:-1]

    def call(self) -> None:
        """Step the envs of one batch once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            self._step(actions)

    def count(self) -> float:
        """Return the env steps since the last count, resets left out; of a check's, those of its last call."""
        steps = sum(int(np.count_nonzero(stepped)) for stepped in self._stepped)
        self._stepped.clear()
        return float(steps)

    def _step(self, actions: Any) -> Any:
        if self._is_async:
            with _RECV:
                received = self.env.recv()
            env_id, stepped = _routing(received)
            with _SEND:
                self.env.send(actions, env_id)
        else:
            received = self.env.step(actions)
            _, stepped = _routing(received)
        self._stepped.append(stepped)  # the pool fills arrays of its own for every batch
        return received

    def _follow(self, received: Any) -> None:
        """Check a batch, and that an env is reset when it is due: at the start, and after each episode's end."""
        __tracebackhide__ = True
        env_id, stepped = _routing(received)
        rows = len(set(env_id.tolist()))
        if rows != self.num_envs:
            raise ComponentError(
                f"the pool returned {rows} different envs, expected {self.num_envs}: is it fresh? A pool in use still "
                "has answers of earlier calls to return"
            )
        check_observations(received[0] if isinstance(received, tuple) else received, self.num_envs)
        for env, was_stepped, has_ended in zip(env_id.tolist(), stepped.tolist(), _ends(received), strict=True):
            is_due = self._ended.get(env, True)
            if is_due == bool(was_stepped):
                found, expected = ("a step", "its reset") if is_due else ("a reset", "a step")
                raise ComponentError(
                    f"env {env} returned {found}, expected {expected}: the call after an episode's end is counted as a "
                    "reset, which fails for a pool that is not fresh"
                )
            self._ended[env] = has_ended


def _draw_actions(env: Any, rows: int, seed: int) -> list[Any]:
    """Return batches of actions of the type that the pool takes without conversion."""
    __tracebackhide__ = True
    specs = {name: spec for name, spec in env.spec.action_array_spec.items() if name not in _ROUTING}
    if env.config["max_num_players"] != 1 or len(specs) != 1:
        raise ComponentError(
            f"rlperf_vecenv_step draws one array of actions for pools of one player, not {', '.join(specs)} for up to "
            f"{env.config['max_num_players']}; give a thunk that steps it: rlperf_vecenv_step(step, num_envs={rows})"
        )
    (spec,) = specs.values()
    space = env.spec.gymnasium_action_space
    space.seed(seed)
    return [np.stack([space.sample() for _ in range(rows)]).astype(spec.dtype) for _ in range(ACTIONS)]


def _routing(received: Any) -> tuple[Any, Any]:
    """Return a batch's env ids, and an array that is 0 where an env was reset."""
    if hasattr(received, "step_type"):
        return received.observation.env_id, received.step_type
    return received[-1]["env_id"], received[-1]["elapsed_step"]


def _ends(received: Any) -> list[bool]:
    """Return which envs of a batch are at their episode's end."""
    if hasattr(received, "step_type"):
        ends = received.step_type == 2  # dm_env's LAST
    elif len(received) == 2:
        ends = np.zeros(len(received[-1]["env_id"]), np.bool_)
    else:
        ends = np.logical_or(received[2], received[3])
    flags: list[bool] = ends.tolist()
    return flags


def _cartpoles(num_envs: int) -> Any:
    """Return a pool of CartPoles of C++ that steps all envs at once, on one thread."""
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, num_threads=1)


_STARTER = """\
import envpool


def test_envpool_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: envpool.make("CartPole-v1", env_type="gymnasium", num_envs=8, seed=1))
"""

LIBRARY = Library(
    name="envpool",
    module="envpool",
    requirement="envpool",
    vecenv=(Adapter("envpool.python.envpool:EnvPoolMixin", EnvPoolStepper),),
    environments=("envpool.python.envpool:EnvPoolMixin.step",),
    samples=Samples(native_vecenv=_cartpoles),
    starter=_STARTER,
)
