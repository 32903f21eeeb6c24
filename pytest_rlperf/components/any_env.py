"""Stepping a vector env of one's own: of no library's class, but with ``reset()``, ``step(actions)``, ``num_envs``.

What ``step`` returns is read as gymnasium has it, ``(obs, rewards, terminated, truncated, info)``, or as
Stable-Baselines3 and the older gym have it, ``(obs, rewards, dones, infos)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import cycle
from numbers import Integral
from typing import Any

import numpy as np

from pytest_rlperf.components.arrays import check_observations, leaves, to_numpy
from pytest_rlperf.components.stepping import ACTIONS, EveryEnvStepper
from pytest_rlperf.errors import ComponentError

_CHECKED_STEPS = 100  # at most, in wait for an episode to end and the next one to begin
_ENDS_IN_A_ROW = 10  # of one env, that no series of episodes of one step is taken for
_FINAL = ("final_obs", "final_observation", "terminal_observation")
_ANY_STEP = "a thunk steps any env: rlperf_vecenv_step(step, num_envs={})"


def declared_num_envs(env: Any) -> int | None:
    """Return how many envs a vector env says it has, ``num_envs`` or ``n_envs``; None where it does not say."""
    for name in ("num_envs", "n_envs"):
        value = getattr(env, name, None)
        if isinstance(value, Integral):
            return int(value)
    return None


def declared_mode(env: Any) -> str | None:
    """Return the autoreset mode that an env's metadata name, as gymnasium spells it; None where they name none."""
    metadata = getattr(env, "metadata", None)
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    return None if mode is None else str(getattr(mode, "value", mode))


def can_be_stepped(env: Any) -> bool:
    """Whether something has ``reset`` and ``step``; a class has not yet."""
    return not isinstance(env, type) and all(callable(getattr(env, name, None)) for name in ("reset", "step"))


class AnyStepper(EveryEnvStepper):
    """Steps ``env`` with actions drawn beforehand; it resets within the step, so every call is a step of every env."""

    def __init__(self, env: Any, num_envs: int, seed: int) -> None:
        __tracebackhide__ = True
        self.env = env
        self._seed = seed
        super().__init__(num_envs, cycle(_batches_of_actions(env, num_envs, seed)), env.step)

    def check(self) -> None:
        """Reset, step until the episode after an ended one has begun, and check what comes back.

        ComponentError says what is wrong.
        """
        __tracebackhide__ = True
        self._reset()
        in_a_row = np.zeros(self.num_envs, np.int64)
        for _ in range(_CHECKED_STEPS):
            results = self.env.step(next(self._actions))
            ended = self._check_step(results)
            if _keeps_final(results[-1]) or (in_a_row.any() and not ended[in_a_row > 0].all()):
                break
            in_a_row = np.where(ended, in_a_row + 1, 0)
            if in_a_row.max() > _ENDS_IN_A_ROW:
                raise ComponentError(
                    f"env {in_a_row.argmax()} ended its episode in {in_a_row.max()} steps in a row: is it reset? A "
                    "vector env given to rlperf_vecenv_step resets within the step that ends an episode; where that is "
                    f"left to its user, {_ANY_STEP.format(self.num_envs)}"
                )
        self._calls = 1

    def _reset(self) -> None:
        try:
            takes_seed = "seed" in inspect.signature(self.env.reset).parameters
        except (TypeError, ValueError):
            takes_seed = False
        if takes_seed:
            self.env.reset(seed=self._seed)
            return
        seed = getattr(self.env, "seed", None)
        if callable(seed):
            seed(self._seed)
        self.env.reset()

    def _check_step(self, results: Any) -> Any:
        """Check one step, and return which envs have ended an episode with it."""
        __tracebackhide__ = True
        if not isinstance(results, tuple) or len(results) not in (4, 5):
            what = f"{len(results)} values" if isinstance(results, tuple) else type(results).__qualname__
            raise ComponentError(
                f"step() returned {what}, expected (obs, rewards, terminated, truncated, info) or (obs, rewards, "
                f"dones, infos); {_ANY_STEP.format(self.num_envs)}"
            )
        obs, rewards, *ends, info = results
        if any(True for _ in leaves(obs)):
            check_observations(obs, self.num_envs)
        else:
            self._check_rows("observation", np.shape(obs)[:1])
        names = ("dones",) if len(ends) == 1 else ("terminated", "truncated")
        arrays = [to_numpy(array) for array in (rewards, *ends)]
        for name, array in zip(("rewards", *names), arrays, strict=True):
            self._check_rows(name, array.shape[:1] if array.shape[1:] == (1,) else array.shape)
        if isinstance(info, Sequence):
            self._check_rows("infos", (len(info),))
        return np.logical_or.reduce([array.reshape(-1).astype(np.bool_) for array in arrays[1:]])

    def _check_rows(self, name: str, shape: tuple[int, ...]) -> None:
        __tracebackhide__ = True
        if shape != (self.num_envs,):
            raise ComponentError(
                f"step() returned {name} of shape {shape}; a vector env of {self.num_envs} envs returns "
                f"({self.num_envs},)"
            )


def _keeps_final(info: Any) -> bool:
    """Whether an info has the observation that an episode ended with: that env was reset within the step."""
    infos = info if isinstance(info, Sequence) else (info,)
    return any(isinstance(one, Mapping) and any(name in one for name in _FINAL) for one in infos)


def _batches_of_actions(env: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions for every env, by what the env has to draw them from; ComponentError where it has nothing."""
    __tracebackhide__ = True
    if callable(getattr(env, "sample_actions", None)):
        batches = [env.sample_actions() for _ in range(ACTIONS)]
        if np.shape(batches[0])[:1] != (num_envs,):
            raise ComponentError(f"sample_actions() returned shape {np.shape(batches[0])}, expected {num_envs} rows")
        return batches
    for name in ("single_action_space", "action_space"):
        space = getattr(env, name, None)
        if callable(getattr(space, "sample", None)):
            return _batches_of_space(space, name, num_envs, seed)
    raise ComponentError(
        f"{type(env).__qualname__} has nothing to draw actions from: give it action_space or single_action_space with "
        f"sample(), or a method sample_actions() that returns a row an env; or {_ANY_STEP.format(num_envs)}"
    )


def _batches_of_space(space: Any, name: str, num_envs: int, seed: int) -> list[Any]:
    """Return actions drawn from a space of one env's actions or of all envs'."""
    __tracebackhide__ = True
    if callable(getattr(space, "seed", None)):
        space.seed(seed)
    first = space.sample()
    shape = np.shape(first)
    if isinstance(first, Mapping | tuple):
        raise ComponentError(
            f"{name}.sample() returned {type(first).__qualname__}, which does not stack to a row an env: give the env "
            f"a method sample_actions(), or {_ANY_STEP.format(num_envs)}"
        )
    if name == "action_space" and shape == (num_envs,):
        raise ComponentError(
            f"action_space.sample() has shape {shape}: one action of {num_envs} numbers, or one for each of the "
            f"{num_envs} envs? Give the env single_action_space too, or a method sample_actions()"
        )
    if name == "action_space" and shape[:1] == (num_envs,):
        return [first, *(space.sample() for _ in range(ACTIONS - 1))]
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(ACTIONS)]
