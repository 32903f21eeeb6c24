"""A vector env's step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pytest_rlperf.components.adapters import Adapter, Stepper, adapter_for, libraries_known
from pytest_rlperf.components.any_env import AnyStepper, Face, can_be_stepped, declared_mode, declared_num_envs
from pytest_rlperf.components.arrays import attribute
from pytest_rlperf.components.calling import check_takes
from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Workload
from pytest_rlperf.timers import hierarchical_timer

_ENV_STEP = hierarchical_timer("env_step")
_THUNK_CALL = "rlperf_vecenv_step calls a thunk without arguments"
_OF_GYMNASIUM = Adapter("gymnasium.vector", "VectorEnv", "gymnasium:GymnasiumStepper")  # for what says it is alike


def vecenv_workload(env: Any, num_envs: int | None = None) -> Workload:
    """Return the workload of stepping ``env``, or a thunk that makes one.

    That is a vector env of a library that is known, or of one's own: with ``reset()``, ``step(actions)``, ``num_envs``
    and something to draw actions from (see ``any_env``). An env made by the thunk is closed afterwards; one that was
    given is the giver's to close. With ``num_envs`` a thunk does not make an env but steps one, of any kind.
    """
    __tracebackhide__ = True
    if num_envs is not None:
        check_count("num_envs", num_envs)
        if callable(env) or not can_be_stepped(env):
            return _stepping_workload(env, num_envs)
    close: Callable[[], None] = _keep_open
    if callable(env) and attribute(env, "step") is None:
        check_takes(_THUNK_CALL, env, (), "rlperf_vecenv_step(lambda: make(…))")
        env = env()
        close = attribute(env, "close") or _keep_open
    try:
        stepper = _stepper(env, num_envs, seed=random.getrandbits(31))
    except BaseException:
        close()  # nobody else will
        raise
    return Workload(
        component="vecenv_step",
        call=stepper.call,
        items=float(stepper.num_envs),
        unit="env step",
        check=stepper.check,
        count=stepper.count,
        close=close,
        holds=(stepper.env,),
    )


def _stepping_workload(step: Any, num_envs: int) -> Workload:
    __tracebackhide__ = True
    if not callable(step):
        raise ComponentError(
            f"with num_envs=…, rlperf_vecenv_step needs a thunk that steps every env once, not "
            f"{type(step).__qualname__}"
        )
    instead = f"rlperf_vecenv_step(lambda: env.step(actions), num_envs={num_envs})"
    check_takes(_THUNK_CALL, step, (), instead)

    def call() -> object:
        with _ENV_STEP:
            return step()

    def check() -> None:
        __tracebackhide__ = True
        returned = step()
        if can_be_stepped(returned):
            raise ComponentError(
                f"the thunk returned {type(returned).__qualname__}, an env, and steps nothing: with num_envs=… it has "
                "to step every env once; one that makes an env is given without num_envs"
            )

    return Workload(
        component="vecenv_step",
        call=call,
        items=float(num_envs),
        unit="env step",
        check=check,
        holds=(step,),
    )


def _keep_open() -> None:
    """Leave an env open that was open when it came."""


def _stepper(env: Any, num_envs: int | None, seed: int) -> Stepper:
    """Choose by what the env is."""
    __tracebackhide__ = True
    make = adapter_for("vecenv", env)
    if make is not None:
        stepper: Stepper = make(env, seed)
        _check_told(num_envs, stepper.num_envs)
        return stepper
    declared = declared_num_envs(env)
    if declared is not None:
        check_count("num_envs", declared)
        _check_told(num_envs, declared)
    num_envs = num_envs or declared
    if can_be_stepped(env) and num_envs is not None:
        if declared_mode(env) in ("NextStep", "Disabled"):
            face = Face(env, num_envs, seed)
            gymnasium_stepper: Stepper = _OF_GYMNASIUM.load()(face, seed)
            return gymnasium_stepper
        return AnyStepper(env, num_envs, seed)
    raise ComponentError(
        f"rlperf_vecenv_step knows the vector envs of {libraries_known('vecenv')}, and others by their reset(), "
        f"step(actions) and num_envs, not {_described(env)}; for another, give a thunk that steps it and the number of "
        "envs: rlperf_vecenv_step(step, num_envs=8)"
    )


def _check_told(told: int | None, declared: int) -> None:
    """Raise ComponentError where the test says another number of envs than the env does."""
    __tracebackhide__ = True
    if told is not None and told != declared:
        raise ComponentError(f"num_envs={told}, but the env says that it has {declared}: leave num_envs out")


def _described(env: Any) -> str:
    """Say what something is, and what it lacks of a vector env."""
    if isinstance(env, type):
        return f"the class {env.__qualname__} (give an instance, or lambda: {env.__name__}(…))"
    if not can_be_stepped(env):
        return type(env).__qualname__
    return f"{type(env).__qualname__}, which has no num_envs"
