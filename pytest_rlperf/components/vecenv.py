"""A vector env's step: of a library's vector env, of one's own, or of whatever a thunk steps.

An env of one's own is of no library's class, but has ``reset()``, ``step(actions)`` and ``num_envs``. ``step`` returns
``(obs, rewards, terminated, truncated, info)``, as in gymnasium, or ``(obs, rewards, dones, infos)``, as in the older
gym and in libraries that follow it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from numbers import Integral
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute, check_count, check_takes, finished, signature_of, takes, to_numpy
from pytest_rlperf.components.contracts import (
    ACTION,
    ACTIONS,
    ENV_STEP,
    RESET,
    Stepper,
    autoreset_mode,
    check_observations,
    check_rows,
    timed_call,
)
from pytest_rlperf.components.libraries import adapter_for, libraries_known
from pytest_rlperf.errors import ComponentError, see
from pytest_rlperf.model.measured import Workload

_CHECKED_STEPS = 100  # at most, until an episode has ended and the next one begun
_ENDS_IN_A_ROW = 10  # of one env; a longer series of episodes of one step is taken for an env that is not reset
_ANY_STEP = "a thunk steps any env: rlperf_vecenv_step(step, num_envs={})"
_THUNK_CALL = "rlperf_vecenv_step calls a thunk without arguments"


def vecenv_workload(env: Any, num_envs: int | None = None) -> Workload:
    """Return the workload of stepping ``env``, or a thunk that makes one.

    That is a vector env of a library that is known, or of one's own: with ``reset()``, ``step(actions)``, ``num_envs``
    and something to draw actions from (see this module). An env made by the thunk is closed afterwards; one that was
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
        close()  # the fixture made it
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

    def check() -> object:
        __tracebackhide__ = True
        returned = finished(step(), "the thunk")
        if can_be_stepped(returned):
            raise ComponentError(
                f"the thunk returned {type(returned).__qualname__}, an env, and steps nothing: with num_envs=… it has "
                "to step every env once; one that makes an env is given without num_envs"
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
    """Leave an env open that was open when it came."""


def _stepper(env: Any, num_envs: int | None, seed: int) -> Stepper:
    """Choose by what the env is."""
    __tracebackhide__ = True
    make = adapter_for(lambda library: library.vecenv, env)
    if make is not None:
        stepper = make(env, seed)
        _check_given(num_envs, stepper.num_envs)
        return stepper
    declared = _declared_num_envs(env)
    if declared is not None:
        check_count("num_envs", declared)
        _check_given(num_envs, declared)
    num_envs = num_envs or declared
    if can_be_stepped(env) and num_envs is not None:
        mode = autoreset_mode(env)
        if mode in ("NextStep", "Disabled"):
            raise ComponentError(
                f"{type(env).__qualname__} has autoreset_mode {mode}, and is no vector env of gymnasium's: derive it "
                f"from gymnasium.vector.VectorEnv, or {_ANY_STEP.format(num_envs)}"
            )
        return AnyStepper(env, num_envs, seed)
    if can_be_stepped(env):
        raise ComponentError(
            f"{type(env).__qualname__} has no num_envs: where it steps several envs, pass their number, "
            "rlperf_vecenv_step(env, num_envs=8); for any other env, give a thunk: rlperf_vecenv_step(step, num_envs=8)"
        )
    raise ComponentError(
        f"rlperf_vecenv_step does not support {_described(env)}. It supports the vector envs of "
        f"{libraries_known(lambda library: library.vecenv)}, and any object that has reset(), step(actions) and "
        "num_envs. For any other vector env, pass a function without arguments that steps it, and the number of envs: "
        "rlperf_vecenv_step(step, num_envs=8)"
    )


def _check_given(given: int | None, declared: int) -> None:
    """Raise ComponentError where the test gives another number of envs than the env has."""
    __tracebackhide__ = True
    if given is not None and given != declared:
        raise ComponentError(f"num_envs={given}, but the env has num_envs={declared}: leave num_envs out")


def _described(env: Any) -> str:
    """Return in words what something is."""
    if isinstance(env, type):
        return f"the class {env.__qualname__} (give an instance, or lambda: {env.__name__}(…))"
    return type(env).__qualname__


def _declared_num_envs(env: Any) -> int | None:
    """Return a vector env's ``num_envs`` or ``n_envs``, be it 0 or True; None where neither is a number."""
    for name in ("num_envs", "n_envs"):
        value = attribute(env, name)
        if isinstance(value, bool):
            return value
        if isinstance(value, Integral):
            return int(value)
    return None


def can_be_stepped(env: Any) -> bool:
    """Whether something has ``reset`` and ``step``; a class has not yet."""
    return not isinstance(env, type) and all(callable(attribute(env, name)) for name in ("reset", "step"))


class AutoresetStepper(Stepper):
    """Steps an env that resets by one of gymnasium's autoreset modes, which its metadata name.

    Under NEXT_STEP autoreset the call after an episode's end resets that env and ignores its action: no step.
    Under DISABLED the ended envs are reset by a masked reset, part of what stepping on takes.
    """

    def __init__(self, env: Any, seed: int) -> None:
        env.action_space.seed(seed)
        super().__init__(env, env.num_envs, [env.action_space.sample() for _ in range(ACTIONS)])
        self._seed = seed
        self.mode = autoreset_mode(env) or "NextStep"
        self._copies = True

    def check(self) -> object:
        """Reset, step until an episode has ended, and check what comes back; ComponentError names what is wrong.

        Returned is what the last step did, but for its infos.
        """
        __tracebackhide__ = True
        _reset(self.env, seed=self._seed)
        before: Any = None
        for step in range(_CHECKED_STEPS):
            results = finished(self.env.step(next(self._actions)), "step(actions)")
            obs, reward, terminated, truncated, info = results
            check_observations(obs, self.num_envs)
            flags = {"reward": reward, "terminated": terminated, "truncated": truncated}
            check_rows(self.num_envs, {name: np.shape(array) for name, array in flags.items()})
            if before is not None:
                self._check_resets(before, terminated, truncated)
            if step == 1:
                # Where the env hands out its own arrays, a reference kept would change with the next step.
                self._copies = np.shares_memory(before[0], terminated) or np.shares_memory(before[1], truncated)
            has_ended = before is not None and bool(before[2].any())
            self._calls, self._ended, self._due = 0, [], int(before[2].sum()) if has_ended else 0
            self._finish_step(terminated, truncated)
            if has_ended:
                break
            before = terminated, truncated, np.logical_or(terminated, truncated), info
        return results[:4]

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._finish_step(terminated, truncated)

    def _n_ended(self, ended: tuple[Any, Any]) -> int:
        return int(np.count_nonzero(np.logical_or(*ended)))

    def _check_resets(self, before: Any, terminated: Any, truncated: Any) -> None:
        """Check that no env ended twice in a row without the reset that its mode has in between.

        An episode of one step may end twice in a row under SAME_STEP, where the info has the observation it ended with.
        """
        __tracebackhide__ = True
        *_, ended, info = before
        again = np.flatnonzero(np.logical_and(ended, np.logical_or(terminated, truncated)))
        if self.mode == "Disabled" or not again.size:
            return
        if self.mode == "SameStep" and ("final_obs" in info or "final_observation" in info):
            return
        raise ComponentError(
            f"env {again[0]} ended its episode in two steps in a row: under autoreset mode {self.mode} it has to be "
            f"reset by {'the second' if self.mode == 'NextStep' else 'the first'} of them"
        )

    def _finish_step(self, terminated: Any, truncated: Any) -> None:
        """Keep which episodes ended, for the count, and reset where the env does not do so itself."""
        self._calls += 1
        if self.mode == "NextStep":
            pair = (terminated.copy(), truncated.copy()) if self._copies else (terminated, truncated)
            self._ended.append(pair)
        elif self.mode == "Disabled":
            ended = np.logical_or(terminated, truncated)
            if ended.any():
                with RESET:
                    self.env.reset(options={"reset_mask": ended})


class AnyStepper(Stepper):
    """Steps an env of one's own, which resets within the step."""

    def __init__(self, env: Any, num_envs: int, seed: int) -> None:
        __tracebackhide__ = True
        self._seed = seed
        super().__init__(env, num_envs, _batches_of_actions(env, num_envs, seed))

    def check(self) -> object:
        """Reset, step until the episode after an ended one has begun, and check what comes back.

        ComponentError names what is wrong. Returned is what the last step did, but for its infos.
        """
        __tracebackhide__ = True
        _reset_seeded(self.env, self._seed)
        in_a_row = np.zeros(self.num_envs, np.int64)
        for _ in range(_CHECKED_STEPS):
            results = finished(self.env.step(next(self._actions)), "step(actions)")
            ended = self._check_step(results)
            if in_a_row.any() and not ended[in_a_row > 0].all():
                break
            in_a_row = np.where(ended, in_a_row + 1, 0)
            if in_a_row.max() > _ENDS_IN_A_ROW:
                raise ComponentError(
                    f"env {in_a_row.argmax()} ended its episode in {in_a_row.max()} steps in a row: is it reset? A "
                    "vector env given to rlperf_vecenv_step resets within the step that ends an episode; for an env "
                    f"that its user resets, {_ANY_STEP.format(self.num_envs)}"
                )
        self._calls = 1
        return results[:-1]

    def _check_step(self, results: Any) -> Any:
        """Check one step, and return which envs have ended an episode with it."""
        __tracebackhide__ = True
        if not isinstance(results, tuple) or len(results) not in (4, 5):
            what = f"{len(results)} values" if isinstance(results, tuple) else type(results).__qualname__
            raise ComponentError(
                f"step() returned {what}, expected (obs, rewards, terminated, truncated, info) or (obs, rewards, "
                f"dones, infos); {_ANY_STEP.format(self.num_envs)}"
            )
        obs, rewards, *ends, _ = results
        check_observations(obs, self.num_envs)
        names = ("dones",) if len(ends) == 1 else ("terminated", "truncated")
        flags = {name: to_numpy(values) for name, values in zip(names, ends, strict=True)}
        for name, array in {"rewards": to_numpy(rewards), **flags}.items():
            check_rows(self.num_envs, {name: array.shape[:1] if array.shape[1:] == (1,) else array.shape})
        return np.logical_or.reduce([array.reshape(-1).astype(np.bool_) for array in flags.values()])


def _reset_seeded(env: Any, seed: int) -> None:
    __tracebackhide__ = True
    signature = signature_of(env.reset)
    if signature is not None and "seed" in signature.parameters:
        _reset(env, seed=seed)
    else:
        _seed(env, seed)
        _reset(env)


def _reset(env: Any, **given: int) -> None:
    """Reset an env for the first time; ComponentError where that fails."""
    __tracebackhide__ = True
    try:
        env.reset(**given)
    except Exception as error:
        call = f"{type(env).__qualname__}.reset({', '.join(f'{name}={value}' for name, value in given.items())})"
        raise ComponentError(
            f"{call} failed: {type(error).__name__}: {error}; make this call work by itself, then measure "
            f"it{see('reading-a-report.md#error')}"
        ) from error


def _seed(seeded: Any, seed: int) -> None:
    """Seed an env or a space, where its ``seed`` is a method that takes one."""
    method = attribute(seeded, "seed")
    if callable(method) and takes(method, seed):
        method(seed)


def _batches_of_actions(env: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions for every env, of ``single_action_space``, or of ``action_space``, of one env or of all."""
    __tracebackhide__ = True
    single, space = attribute(env, "single_action_space"), attribute(env, "action_space")
    space = space if single is None else single
    if not callable(attribute(space, "sample")):
        raise ComponentError(
            f"{type(env).__qualname__} has nothing to draw actions from: give it single_action_space or action_space "
            f"with sample(), or {_ANY_STEP.format(num_envs)}"
        )
    _seed(space, seed)
    shape = np.shape(space.sample())
    if single is None and shape == (num_envs,):
        raise ComponentError(
            f"action_space.sample() has shape {shape}: one action of {num_envs} numbers, or one for each of the "
            f"{num_envs} envs? Give the env single_action_space too"
        )
    if single is None and shape[:1] == (num_envs,):
        return [space.sample() for _ in range(ACTIONS)]
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(ACTIONS)]
