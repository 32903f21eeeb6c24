"""A vector env's step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pytest_rlperf.components.adapters import Stepper, adapter_for, libraries_known
from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Workload
from pytest_rlperf.timers import hierarchical_timer

_ENV_STEP = hierarchical_timer("env_step")


def vecenv_workload(env: Any, num_envs: int | None = None) -> Workload:
    """Return the workload of stepping ``env``: a vector env of a library that is known, or a thunk that makes one.

    An env made by the thunk is closed afterwards; one that was given is the giver's to close. With ``num_envs`` the
    thunk does not make an env but steps one, of any kind.
    """
    __tracebackhide__ = True
    if num_envs is not None:
        return _stepping_workload(env, num_envs)
    close: Callable[[], None] = _keep_open
    if callable(env) and not hasattr(env, "step"):
        env = env()
        close = getattr(env, "close", _keep_open)
    try:
        stepper = _stepper(env, seed=random.getrandbits(31))
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
    check_count("num_envs", num_envs)
    if not callable(step):
        raise ComponentError(
            f"with num_envs=…, rlperf_vecenv_step needs a thunk that steps every env once, not "
            f"{type(step).__qualname__}"
        )

    def call() -> object:
        with _ENV_STEP:
            return step()

    return Workload(
        component="vecenv_step",
        call=call,
        items=float(num_envs),
        unit="env step",
        check=lambda: _discard(step()),
        holds=(step,),
    )


def _discard(_: object) -> None:
    """Drop what a check has no use for."""


def _keep_open() -> None:
    """Leave an env open that was open when it came."""


def _stepper(env: Any, seed: int) -> Stepper:
    """Choose by what the env is."""
    __tracebackhide__ = True
    make = adapter_for("vecenv", env)
    if make is None:
        raise ComponentError(
            f"rlperf_vecenv_step knows the vector envs of {libraries_known('vecenv')}, not {type(env).__qualname__}; "
            "for another, give a thunk that steps it and the number of envs: rlperf_vecenv_step(step, num_envs=8)"
        )
    stepper: Stepper = make(env, seed)
    return stepper
