"""A vector env's step."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, Protocol

from pytest_rlperf.components.sizes import check_count
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Workload
from pytest_rlperf.timers import hierarchical_timer

_ENV_STEP = hierarchical_timer("env_step")


class Stepper(Protocol):
    """Steps one library's vector env."""

    env: Any
    num_envs: int

    def check(self) -> None:
        """Reset and step once, and check what comes back."""

    def call(self) -> None:
        """Step every env once."""

    def count(self) -> float:
        """Return the env steps since this was last asked."""


def vecenv_workload(env: Any, num_envs: int | None = None) -> Workload:
    """Return the workload of stepping ``env``: gymnasium's VectorEnv, Stable-Baselines3's VecEnv, or a thunk for one.

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

    return Workload("vecenv_step", call, items=float(num_envs), unit="env step", check=lambda: _discard(step()))


def _discard(_: object) -> None:
    """Drop what a check has no use for."""


def _keep_open() -> None:
    """Leave an env open that was open when it came."""


def _stepper(env: Any, seed: int) -> Stepper:
    """Choose by what the env is; only a library that is loaded already can have made it."""
    __tracebackhide__ = True
    vector = sys.modules.get("gymnasium.vector")
    if vector is not None and isinstance(env, vector.VectorEnv):
        from pytest_rlperf.components.libraries.gymnasium import GymnasiumStepper

        return GymnasiumStepper(env, seed)
    vec_env = sys.modules.get("stable_baselines3.common.vec_env")
    if vec_env is not None and isinstance(env, vec_env.VecEnv):
        from pytest_rlperf.components.libraries.stable_baselines3 import StableBaselines3Stepper

        return StableBaselines3Stepper(env, seed)
    raise ComponentError(
        f"rlperf_vecenv_step knows gymnasium's VectorEnv and Stable-Baselines3's VecEnv, not {type(env).__qualname__}; "
        "for another, give a thunk that steps it and the number of envs: rlperf_vecenv_step(step, num_envs=8)"
    )
