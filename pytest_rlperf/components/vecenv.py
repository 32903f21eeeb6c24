"""An env's step: a library's vector env, a user's own, a single env, or whatever a thunk steps.

A user's own vector env belongs to no library's class, but has ``reset()``, ``step(actions)`` and ``num_envs``. Without
``num_envs``, an object with an action space is a single env. ``step`` returns ``(obs, rewards, terminated, truncated,
info)``, as in gymnasium, or ``(obs, rewards, dones, infos)``, as in the older gym and in libraries that follow it. Envs
with many agents and functional JAX envs are recognised by their methods too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pytest_rlperf.components.agents import agents_stepper
from pytest_rlperf.components.checks import (
    attribute,
    check_count,
    check_takes,
    finished,
    num_envs_of,
    to_numpy,
)
from pytest_rlperf.components.contracts import (
    ACTIONS,
    ENV_STEP,
    RESET,
    Stepper,
    autoreset_mode,
    check_observations,
    check_rows,
    is_finite,
    reset_by_seed,
    seed_if_possible,
    timed_call,
)
from pytest_rlperf.components.functional import FunctionalStepper, is_functional
from pytest_rlperf.components.libraries import adapter_for, libraries_known
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload

_ENDS_IN_A_ROW = 10  # of one env; a longer series of episodes of one step is taken for an env that is not reset
_ANY_STEP = "pass a zero-argument function that steps every env: rlperf_vecenv_step(step, num_envs={})"
_CALL = "rlperf_vecenv_step calls its function without arguments"


def vecenv_workload(env: Any, num_envs: int | None = None) -> Workload:
    """Return the workload of stepping ``env``, or an env that a thunk makes.

    ``env`` is a known library's vector env, or a user's own with ``reset()``, ``step(actions)``, ``num_envs`` and
    something to draw actions from (see this module). It can be a single env, which is reset when its episode ends; a
    PettingZoo env, whose agents' steps are counted; or a functional JAX env, mapped over ``num_envs`` states. An env
    that the thunk made is closed afterwards; the caller closes one that was given. With ``num_envs``, a thunk steps an
    env of any kind instead of making one.
    """
    __tracebackhide__ = True
    if num_envs is not None:
        check_count("num_envs", num_envs)
        if not is_functional(env):
            return _stepping_workload(env, num_envs)
    close: Callable[[], None] = _keep_open
    if callable(env) and attribute(env, "step") is None:
        check_takes(_CALL, env, (), "rlperf_vecenv_step(lambda: make(…))")
        env = env()
        own = attribute(env, "close")
        close = own if callable(own) else _keep_open
    try:
        stepper = _stepper(env, num_envs, seed=random.getrandbits(31))
    except BaseException:
        close()  # the fixture made it
        raise
    return Workload(
        component="vecenv_step",
        call=stepper.call,
        items=float(stepper.num_envs),
        unit=stepper.unit,
        check=stepper.check,
        count=stepper.count,
        checked=stepper.checked,
        close=close,
        holds=(stepper.env,),
    )


def _stepping_workload(step: Any, num_envs: int) -> Workload:
    __tracebackhide__ = True
    if not callable(step):
        raise ComponentError(
            "with num_envs=…, rlperf_vecenv_step needs a zero-argument function that steps every env once, not "
            f"{type(step).__qualname__}; a vector env has its own num_envs: leave the argument out"
        )
    instead = f"rlperf_vecenv_step(lambda: env.step(actions), num_envs={num_envs})"
    check_takes(_CALL, step, (), instead)

    def check() -> object:
        __tracebackhide__ = True
        returned = finished(step(), "the function")
        if can_be_stepped(returned):
            raise ComponentError(
                f"the function returned {type(returned).__qualname__}, an env, and stepped nothing: with num_envs=… "
                "it must step every env once; for a function that makes an env, leave num_envs out"
            )
        return returned

    return Workload(
        component="vecenv_step",
        call=timed_call(ENV_STEP, step),
        items=float(num_envs),
        unit="env step",
        check=check,
        holds=(step,),
    )


def _keep_open() -> None:
    """Leave open an env that was given open."""


def _stepper(env: Any, given: int | None, seed: int) -> Stepper:
    """Choose the stepper by what the env is."""
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.vecenv, env)
    if make is None and is_functional(env):
        return FunctionalStepper(env, given, seed)
    make = make or agents_stepper(env)
    if make is not None:
        stepper: Stepper = make(env, seed)
        return stepper
    if not can_be_stepped(env):
        what = f"the class {env.__qualname__}, only an instance" if isinstance(env, type) else type(env).__qualname__
        raise ComponentError(
            f"rlperf_vecenv_step does not support {what}. It supports the vector envs of "
            f"{libraries_known(lambda library: library.vecenv)}, single envs, PettingZoo's, JAX's functional envs, and "
            "any object that has reset(), step(actions) and num_envs. For any other vector env, pass a "
            "zero-argument function that steps it, and the number of envs: rlperf_vecenv_step(step, num_envs=8)"
        )
    num_envs = num_envs_of(env)
    if num_envs is None and callable(attribute(attribute(env, "action_space"), "sample")):
        return SingleStepper(env, seed)
    if num_envs is None:
        raise ComponentError(
            f"{type(env).__qualname__} has neither num_envs, as a vector env has, nor action_space with sample(), as a "
            "single env has; for any other env, pass a zero-argument function: rlperf_vecenv_step(step, num_envs=8)"
        )
    check_count("num_envs", num_envs)
    mode = autoreset_mode(env)
    if mode in ("NextStep", "Disabled"):
        raise ComponentError(
            f"{type(env).__qualname__} has autoreset_mode {mode}, but is not a gymnasium.vector.VectorEnv: derive it "
            f"from that class, or {_ANY_STEP.format(num_envs)}"
        )
    return AnyStepper(env, num_envs, _batches_of_actions(env, num_envs, seed), seed)


def can_be_stepped(env: Any) -> bool:
    """Whether an object, not a class, has ``reset`` and ``step``."""
    return not isinstance(env, type) and all(callable(attribute(env, name)) for name in ("reset", "step"))


class AnyStepper(Stepper):
    """Steps an env that resets within the step, and returns tuples like gymnasium's or gym's."""

    def __init__(self, env: Any, num_envs: int, actions: list[Any], seed: int) -> None:
        super().__init__(env, num_envs, actions)
        self._seed = seed
        self._in_a_row = np.zeros(num_envs, np.int64)  # steps that ended an episode

    def reset(self) -> None:
        """Reset every env, by the seed if it takes one."""
        __tracebackhide__ = True
        self._in_a_row[:] = 0
        reset_by_seed(self.env, self._seed)

    def check_step(self, results: Any) -> bool:
        """Check one step, and return whether the episode after an ended one has begun."""
        __tracebackhide__ = True
        ended = self._check_rows(results)
        goes_on = bool(self._in_a_row.any()) and not ended[self._in_a_row > 0].all()
        self._in_a_row = np.where(ended, self._in_a_row + 1, 0)
        if self._in_a_row.max() > _ENDS_IN_A_ROW:
            raise ComponentError(
                f"env {self._in_a_row.argmax()} ended its episode in {self._in_a_row.max()} steps in a row: is it "
                "reset? A vector env given to rlperf_vecenv_step resets within the step that ends an episode; for an "
                f"env that its user resets, {_ANY_STEP.format(self.num_envs)}"
            )
        return goes_on

    def _check_rows(self, results: Any) -> Any:
        """Check what a step returned, and return which envs ended an episode in it."""
        __tracebackhide__ = True
        _check_tuple(results, self.num_envs)
        obs, rewards, *ends, _ = results
        check_observations(obs, self.num_envs)
        names = ("dones",) if len(ends) == 1 else ("terminated", "truncated")
        flags = dict(zip(names, map(to_numpy, ends), strict=True))
        check_rows(self.num_envs, {"rewards": rewards, **flags})
        return np.logical_or.reduce([array.reshape(-1).astype(np.bool_) for array in flags.values()])


class SingleStepper(AnyStepper):
    """Steps one env, and resets it when an episode ends, as its user does."""

    def __init__(self, env: Any, seed: int) -> None:
        seed_if_possible(env.action_space, seed)
        super().__init__(env, 1, [env.action_space.sample() for _ in range(ACTIONS)], seed)

    def check_step(self, results: Any) -> bool:
        """Check that a step returned a tuple with a finite reward; return whether it ended an episode."""
        __tracebackhide__ = True
        _check_tuple(results, 1)
        for ended in results[2:-1]:
            if isinstance(ended, Mapping) or np.prod(np.shape(ended)) != 1:
                raise ComponentError(
                    f"step() returned {ended!r} for whether the episode has ended, expected True or False; "
                    f"{_ANY_STEP.format(1)}"
                )
        if not is_finite(results[1]):
            raise ComponentError(f"step() returned the reward {results[1]!r}, which is not finite")
        return _has_ended(results)

    def finish(self, results: Any) -> None:
        """Reset the env if its episode has ended."""
        if _has_ended(results):
            with RESET:
                self.env.reset()


def _has_ended(results: Any) -> bool:
    """Return whether a step of a single env ended its episode."""
    return bool(results[2]) or (len(results) == 5 and bool(results[3]))


def _check_tuple(results: Any, num_envs: int) -> None:
    """Raise ComponentError unless a step returned the tuple that gymnasium's or gym's envs return."""
    __tracebackhide__ = True
    if not isinstance(results, tuple) or len(results) not in (4, 5):
        what = f"{len(results)} values" if isinstance(results, tuple) else type(results).__qualname__
        raise ComponentError(
            f"step() returned {what}, expected (obs, rewards, terminated, truncated, info) or (obs, rewards, "
            f"dones, infos); {_ANY_STEP.format(num_envs)}"
        )


def _batches_of_actions(env: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions for every env, from its ``sample_actions()``, or from the space of one env or of all."""
    __tracebackhide__ = True
    sample = attribute(env, "sample_actions")
    if callable(sample):
        check_takes("rlperf_vecenv_step calls env.sample_actions()", sample, (), _ANY_STEP.format(num_envs))
        batches = [sample() for _ in range(ACTIONS)]
        try:
            rows = f"{len(batches[0])} rows"
        except TypeError:
            rows = type(batches[0]).__qualname__
        if rows != f"{num_envs} rows":
            raise ComponentError(f"sample_actions() returned {rows}, expected {num_envs} rows, one for each env")
        return batches
    single, space = attribute(env, "single_action_space"), attribute(env, "action_space")
    space = space if single is None else single
    if not callable(attribute(space, "sample")):
        raise ComponentError(
            f"{type(env).__qualname__} has nothing to draw actions from: give it single_action_space or action_space "
            f"with sample(), or a method sample_actions() that returns a row for each env, or "
            f"{_ANY_STEP.format(num_envs)}"
        )
    seed_if_possible(space, seed)
    shape = np.shape(space.sample())
    if single is None and shape == (num_envs,):
        raise ComponentError(
            f"action_space.sample() has shape {shape}: one action of {num_envs} numbers, or one for each of the "
            f"{num_envs} envs? Give the env single_action_space too, or a method sample_actions()"
        )
    draws = 1 if single is None and shape[:1] == (num_envs,) else num_envs
    drawn = ([space.sample() for _ in range(draws)] for _ in range(ACTIONS))
    return [batch[0] if draws == 1 else np.stack(batch) for batch in drawn]
