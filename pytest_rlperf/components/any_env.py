"""Stepping a vector env of one's own: of no library's class, but with ``reset()``, ``step(actions)``, ``num_envs``.

What ``step`` returns is read as gymnasium has it, ``(obs, rewards, terminated, truncated, info)``, or as
Stable-Baselines3 and the older gym have it, ``(obs, rewards, dones, infos)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from numbers import Integral
from types import SimpleNamespace
from typing import Any

import numpy as np

from pytest_rlperf.components.arrays import attribute, check_observations, leaves, to_numpy
from pytest_rlperf.components.calling import takes
from pytest_rlperf.components.stepping import ACTIONS, EveryEnvStepper
from pytest_rlperf.errors import ComponentError

_CHECKED_STEPS = 100  # at most, in wait for an episode to end and the next one to begin
_ENDS_IN_A_ROW = 10  # of one env, that no series of episodes of one step is taken for
_FINAL = ("final_obs", "final_observation", "terminal_observation")
_ANY_STEP = "a thunk steps any env: rlperf_vecenv_step(step, num_envs={})"


def declared_num_envs(env: Any) -> int | None:
    """Return what a vector env says for ``num_envs`` or ``n_envs``, be it 0 or True; None where it says no number."""
    for name in ("num_envs", "n_envs"):
        value = attribute(env, name)
        if isinstance(value, bool):
            return value
        if isinstance(value, Integral):
            return int(value)
    return None


def declared_mode(env: Any) -> str | None:
    """Return the autoreset mode that an env's metadata name, as gymnasium spells it; None where they name none."""
    metadata = attribute(env, "metadata")
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    return None if mode is None else str(getattr(mode, "value", mode))


def can_be_stepped(env: Any) -> bool:
    """Whether something has ``reset`` and ``step``; a class has not yet."""
    return not isinstance(env, type) and all(callable(attribute(env, name)) for name in ("reset", "step"))


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
        _reset(self.env, self._seed)
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
        self._check_observations(obs)
        names = ("dones",) if len(ends) == 1 else ("terminated", "truncated")
        arrays = []
        for name, values in zip(("rewards", *names), (rewards, *ends), strict=True):
            array = _array(f"step() returned {name}", values)
            arrays.append(array)
            self._check_rows(name, array.shape[:1] if array.shape[1:] == (1,) else array.shape)
        if isinstance(info, Sequence):
            self._check_rows("infos", (len(info),))
        return np.logical_or.reduce([array.reshape(-1).astype(np.bool_) for array in arrays[1:]])

    def _check_observations(self, obs: Any) -> None:
        """Check that observations are an array of a row an env, or several in a container, or a list of rows."""
        __tracebackhide__ = True
        if isinstance(obs, list):
            if len(obs) != self.num_envs:
                raise ComponentError(
                    f"step() returned a list of {len(obs)} observations; {self.num_envs} envs have as many. Arrays "
                    "that have a row an env each come in a tuple or a mapping"
                )
            shapes = {_shape("step() returned a list of observations, one of", row) for row in obs}
            if len(shapes) > 1:
                raise ComponentError(
                    f"step() returned observations of different shapes, {', '.join(map(str, sorted(shapes)))}; "
                    f"{_ANY_STEP.format(self.num_envs)}"
                )
        elif any(True for _ in leaves(obs)):
            check_observations(obs, self.num_envs)
        else:
            self._check_rows("observation", _shape("step() returned observations,", obs)[:1])

    def _check_rows(self, name: str, shape: tuple[int, ...]) -> None:
        __tracebackhide__ = True
        if shape != (self.num_envs,):
            raise ComponentError(
                f"step() returned {name} of shape {shape}; a vector env of {self.num_envs} envs returns "
                f"({self.num_envs},)"
            )


class Face:
    """An env of one's own as gymnasium's stepper asks for it: its actions can be drawn, and its reset takes a seed."""

    def __init__(self, env: Any, num_envs: int, seed: int) -> None:
        __tracebackhide__ = True
        self.env = env
        self.num_envs = num_envs
        self.metadata = env.metadata
        self.step = env.step
        space = attribute(env, "action_space")
        reseed = attribute(space, "seed")
        if not (callable(reseed) and takes(reseed, seed) and callable(attribute(space, "sample"))):
            batches = cycle(_batches_of_actions(env, num_envs, seed))
            space = SimpleNamespace(seed=lambda _: None, sample=partial(next, batches))
        self.action_space = space
        if declared_mode(env) == "Disabled" and not _takes_keyword(env.reset, "options"):
            raise ComponentError(
                f"{type(env).__qualname__} has autoreset_mode Disabled, and its reset() takes no options: ended envs "
                f"are reset by env.reset(options={{'reset_mask': ended}}); {_ANY_STEP.format(num_envs)}"
            )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset every env with a seed, or those that the options name."""
        if seed is not None:
            return _reset(self.env, seed)
        return self.env.reset(options=options)


def _reset(env: Any, seed: int) -> Any:
    if _takes_keyword(env.reset, "seed"):
        return env.reset(seed=seed)
    _seed(env, seed)
    return env.reset()


def _takes_keyword(function: Any, name: str) -> bool:
    """Whether a function has a parameter of that name; what does not tell its parameters has none."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _seed(seeded: Any, seed: int) -> None:
    """Seed an env or a space, where its ``seed`` is a method that takes one."""
    method = attribute(seeded, "seed")
    if callable(method) and takes(method, seed):
        method(seed)


def _array(what: str, values: Any) -> Any:
    """Return values as an array; ComponentError where they make none."""
    __tracebackhide__ = True
    try:
        return to_numpy(values)
    except (TypeError, ValueError) as error:
        raise ComponentError(f"{what} that make no array: {error}") from None


def _shape(what: str, values: Any) -> tuple[int, ...]:
    """Return the shape of an array or of what makes one; ComponentError where it makes none."""
    __tracebackhide__ = True
    shape = attribute(values, "shape")
    return tuple(_array(what, values).shape if shape is None else shape)


def _keeps_final(info: Any) -> bool:
    """Whether an info has the observation that an episode ended with: that env was reset within the step."""
    infos = info if isinstance(info, Sequence) else (info,)
    return any(isinstance(one, Mapping) and any(name in one for name in _FINAL) for one in infos)


def _batches_of_actions(env: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions for every env, by what the env has to draw them from; ComponentError where it has nothing."""
    __tracebackhide__ = True
    if callable(attribute(env, "sample_actions")):
        batches = [env.sample_actions() for _ in range(ACTIONS)]
        drawn = _shape("sample_actions() returned actions", batches[0])
        if drawn[:1] != (num_envs,):
            raise ComponentError(f"sample_actions() returned shape {drawn}, expected {num_envs} rows")
        return batches
    for name in ("single_action_space", "action_space"):
        space = attribute(env, name)
        if callable(attribute(space, "sample")):
            return _batches_of_space(space, name, num_envs, seed)
    raise ComponentError(
        f"{type(env).__qualname__} has nothing to draw actions from: give it action_space or single_action_space with "
        f"sample(), or a method sample_actions() that returns a row an env; or {_ANY_STEP.format(num_envs)}"
    )


def _batches_of_space(space: Any, name: str, num_envs: int, seed: int) -> list[Any]:
    """Return actions drawn from a space of one env's actions or of all envs'."""
    __tracebackhide__ = True
    _seed(space, seed)
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
