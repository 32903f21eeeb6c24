"""The contracts of components: what a library's adapter does, and the checks that all adapters share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from pytest_rlperf.components.checks import attribute, finished, leaves, refusal, signature_of, to_numpy
from pytest_rlperf.errors import ComponentError, see
from pytest_rlperf.model.measured import Probe
from pytest_rlperf.timers import Timer, hierarchical_timer

_CHECKED_STEPS = 100  # at most, until an episode has ended
ACTIONS = 64  # distinct batches of actions, drawn before anything is timed
ACTION = hierarchical_timer("action")
ENV_STEP = hierarchical_timer("env_step")
RESET = hierarchical_timer("reset")
_POLICY_TOLERANCE = 1e-3  # for log-probabilities and values that are computed again, in batches of another size


def timed_call(timer: Timer, function: Callable[[], object]) -> Callable[[], object]:
    """Return a call of ``function`` within a phase, for a workload."""

    def call() -> object:
        with timer:
            return function()

    return call


# --------------------------------------------------------------------------- vector envs


class Stepper(ABC):
    """Steps every env of a vector env in each call, by actions drawn beforehand; made with the env and a seed.

    Calls that only reset an env do not count. If an env spends a call on a reset, as under gymnasium's NEXT_STEP, the
    subclass appends a value for ``_n_ended`` to ``_ended`` once per call.
    """

    unit = "env step"

    def __init__(self, env: Any, num_envs: int, actions: Iterable[Any]) -> None:
        self.env = env
        self.num_envs = num_envs
        self._actions: Iterator[Any] = cycle(actions)
        self._calls = 0
        self._ended: list[Any] = []
        self._before: Any = None  # which episodes the step before ended, within a check
        self._due = 0  # resets that the next call makes, which may belong to another slice
        self._checked = 0  # steps of the last check

    @abstractmethod
    def reset(self) -> object:
        """Reset every env before a check, by the seed."""

    @abstractmethod
    def check_step(self, results: Any) -> bool:
        """Check what a step returned, and return whether that is enough; ComponentError names what is wrong."""

    def check(self) -> object:
        """Reset, step until an episode has ended, and check what each step returns.

        Return what the last step returned, without its infos.
        """
        __tracebackhide__ = True
        self.reset()
        self._ended, self._due, self._before = [], 0, None
        for self._checked in range(1, _CHECKED_STEPS + 1):
            self.count()
            results = finished(self.step(next(self._actions)), "step(actions)")
            is_enough = self.check_step(results)
            self._calls = 1
            self.finish(results)
            if is_enough:
                break
        return results[:-1] if isinstance(results, tuple) else None

    def checked(self) -> int:
        """Return how many steps the last check took."""
        return self._checked

    def call(self) -> object:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            results = self.step(actions)
        self._calls += 1
        self.finish(results)
        return results

    def step(self, actions: Any) -> Any:
        """Step every env once with these actions."""
        return self.env.step(actions)

    def finish(self, results: Any) -> None:  # noqa: B027 - most envs reset within the step
        """Do what follows a step: note the ends of episodes, or reset."""

    def count(self) -> float:
        """Return the env steps since the last count, without resets; a check counts only its last call."""
        calls, self._calls = self._calls, 0
        *resets, self._due = [self._due, *(self._n_ended(ended) for ended in self._ended)]
        self._ended.clear()
        return float(calls * self.num_envs - sum(resets))

    def _n_ended(self, ended: Any) -> int:
        """Return how many episodes ended with a call, by its entry in ``_ended``."""
        return int(ended.sum())


class AutoresetStepper(Stepper):
    """Steps an env that resets by one of gymnasium's autoreset modes; a step returns flags as arrays or tensors.

    Under ``NextStep``, the call after an episode's end resets that env and ignores its action; it is not a step. Under
    ``SameStep``, the step that ends an episode resets. Under ``Disabled``, ``reset_ended`` does, as part of a step.
    """

    def __init__(self, env: Any, num_envs: int, actions: Iterable[Any], mode: str) -> None:
        super().__init__(env, num_envs, actions)
        self.mode = mode

    def reset(self) -> None:
        """Reset every env before a check."""
        self.env.reset()

    def reset_ended(self, ended: Any) -> None:
        """Reset the envs whose episodes have ended."""
        self.env.reset()

    def check_step(self, results: Any) -> bool:
        """Check the rows, and that no env ended twice in a row without its mode's reset in between.

        Under ``SameStep``, an episode of one step may end twice in a row; the info then has its last observation.
        """
        __tracebackhide__ = True
        obs, rewards, terminated, truncated, info = results
        check_observations(obs, self.num_envs)
        check_rows(self.num_envs, {"reward": rewards, "terminated": terminated, "truncated": truncated})
        ended = terminated | truncated
        before, self._before = self._before, ended
        if before is None:
            return False
        again = np.flatnonzero(to_numpy(before & ended))
        has_reset = self.mode == "SameStep" and ("final_obs" in info or "final_observation" in info)
        if again.size and self.mode != "Disabled" and not has_reset:
            raise ComponentError(
                f"env {again[0]} ended its episode in two steps in a row: under autoreset mode {self.mode} it has to "
                f"be reset by {'the second' if self.mode == 'NextStep' else 'the first'} of them"
            )
        return bool(before.any())

    def finish(self, results: Any) -> None:
        """Note which episodes ended, for the count, or reset those envs if they do not reset themselves."""
        if self.mode == "SameStep":
            return
        ended = results[2] | results[3]
        if self.mode == "NextStep":
            self._ended.append(ended)
        elif ended.any():
            with RESET:
                self.reset_ended(ended)


def reset_by_seed(env: Any, seed: int) -> Any:
    """Reset an env for the first time, by a seed if it takes one."""
    __tracebackhide__ = True
    signature = signature_of(env.reset)
    if signature is not None and "seed" in signature.parameters:
        return reset_first(env, seed=seed)
    seed_if_possible(env, seed)
    return reset_first(env)


def reset_first(env: Any, **given: int) -> Any:
    """Reset an env for the first time; ComponentError if that fails."""
    __tracebackhide__ = True
    try:
        return env.reset(**given)
    except Exception as error:
        call = f"{type(env).__qualname__}.reset({', '.join(f'{name}={value}' for name, value in given.items())})"
        raise ComponentError(
            f"{call} failed: {type(error).__name__}: {error}; make this call work by itself, then measure "
            f"it{see('reading-a-report.md#error')}"
        ) from error


def seed_if_possible(seeded: Any, seed: int) -> None:
    """Seed an env or a space if its ``seed`` is a method that takes one."""
    method = attribute(seeded, "seed")
    if callable(method) and not refusal(method, seed):
        method(seed)


def draw_actions(space: Any, num_envs: int, seed: int) -> list[Any]:
    """Return batches of actions, each with one action from a space for every env."""
    space.seed(seed)
    return [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(ACTIONS)]


def autoreset_mode(env: Any) -> str | None:
    """Return the autoreset mode in an env's metadata, as gymnasium spells it; None if they name none.

    Metadata hold the enum's member or its value. gymnasium 1.0 knows only NEXT_STEP, and does not name it.
    """
    metadata = attribute(env, "metadata")
    mode = metadata.get("autoreset_mode") if isinstance(metadata, Mapping) else None
    return None if mode is None else str(getattr(mode, "value", mode))


def check_observations(observations: Any, num_envs: int) -> None:
    """Raise ComponentError unless every array of a step's observations has a row per env."""
    __tracebackhide__ = True
    for path, array in leaves(observations, "observation"):
        if tuple(array.shape[:1]) != (num_envs,):
            raise ComponentError(
                f"step() returned {path} of shape {tuple(array.shape)}; expected {num_envs} rows, one per env"
            )


def check_rows(num_envs: int, arrays: Mapping[str, Any]) -> None:
    """Raise ComponentError unless every array of a step, by its name, has one value per env."""
    __tracebackhide__ = True
    for name, array in arrays.items():
        shape = tuple(np.shape(array))
        if shape not in ((num_envs,), (num_envs, 1)):
            raise ComponentError(
                f"step() returned {name} of shape {shape}; a vector env of {num_envs} envs returns {(num_envs,)}"
            )


# --------------------------------------------------------------------------- components of one function
# A replay buffer's adapter takes the buffer and a batch size, and returns a function that draws a batch.


@dataclass(frozen=True)
class GaeCall:
    """A library's GAE; made of what the user gave, a random rollout (see ``gae``), and the backend.

    ``call`` computes advantages from arguments that are made ready beforehand, in the library's own layout.
    ``advantages`` takes them from its output, as an array of shape (n_steps, n_envs). They are compared with the
    rollout's, standardised if ``is_normalised``. Without ``is_compared``, only shape and finiteness are checked.
    """

    call: Callable[[], Any]
    advantages: Callable[[Any], Any]
    is_normalised: bool = False
    is_compared: bool = True


@dataclass(frozen=True)
class Updater:
    """A library's SAC step, one gradient step of every part; made of the agent and a batch size.

    ``owner`` holds the modules and optimizers. ``steps`` is how many optimizer steps one update takes, or None if that
    is not known. An update draws one batch from ``buffers``.
    """

    owner: object
    update: Callable[[], object]
    steps: int | None = None
    buffers: tuple[Any, ...] = ()


# --------------------------------------------------------------------------- PPO rollouts


class Roller(ABC):
    """Collects rollouts; made with the agent, or what else collects, and a rollout's steps per env.

    ``setup`` prepares a rollout, untimed, if needed: it empties buffers. ``probes`` time the phases ``policy``,
    ``env_step``, ``store`` and ``gae`` from outside.
    """

    n_steps: int
    num_envs: int
    setup: Callable[[], None] | None = None
    probes: tuple[Probe, ...] = ()

    @abstractmethod
    def collect(self) -> Any:
        """Collect a rollout."""

    @abstractmethod
    def check(self, rollout: Any) -> None:
        """Check that a rollout is full, finite and made by the given policy; ComponentError names what is wrong."""

    def env_steps(self, rollout: Any) -> float:
        """Return how many env steps a rollout has: all of its rows, if envs reset within the step."""
        return float(self.n_steps * self.num_envs)


# --------------------------------------------------------------------------- PPO updates and whole iterations


class Learner(ABC):
    """Does a library's PPO updates, and whole iterations of its training; made with the agent and a rollout's steps.

    ``owner`` holds the modules and optimizers, ``roller`` collects. ``probes`` time parts of an update from outside:
    ``forward``, ``backward`` and ``step``. Without probes, modules, backward passes and optimizers are timed.
    ``iteration_probes`` time the two parts of an iteration, ``collect`` and ``update``.
    """

    owner: Any
    roller: Roller
    probes: tuple[Probe, ...] = ()
    iteration_probes: tuple[Probe, ...] = ()

    def collect(self) -> Any:
        """Return the rollout that every update uses, collected once; ComponentError if it is not full."""
        __tracebackhide__ = True
        rollout = self.roller.collect()
        self.roller.check(rollout)
        return rollout

    @abstractmethod
    def update(self) -> object:
        """Do one update: all epochs and minibatches."""

    def restore(self) -> None:  # noqa: B027 - most updates leave the rollout as it was
        """Restore what an update has used up in the rollout."""

    @abstractmethod
    def iterate(self) -> object:
        """Collect a rollout and update, as the agent's own training does."""

    def env_steps(self) -> Any:
        """Return how many env steps the last iteration took."""
        return float(self.roller.n_steps * self.roller.num_envs)


# --------------------------------------------------------------------------- checks of rollouts


def check_finite(arrays: Iterable[tuple[str, Any]]) -> None:
    """Raise ComponentError if a named array of a rollout holds NaN or infinity."""
    __tracebackhide__ = True
    for name, array in arrays:
        if not is_finite(array):
            raise ComponentError(f"the rollout has NaN or infinity in {name}")


def is_finite(array: Any) -> bool:
    """Return whether an array or a number holds neither NaN nor infinity."""
    values = to_numpy(array)
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())


def check_of_policy(
    stored: Mapping[str, Any],
    again: Mapping[str, Any],
    *,
    tolerance: float = _POLICY_TOLERANCE,
    exceptions: float = 0.0,
    advice: str = "",
) -> None:
    """Raise ComponentError unless a rollout stores the log-probabilities and values the policy gives ``again``.

    Up to the share ``exceptions`` of each array may differ.
    """
    __tracebackhide__ = True
    for name, array in stored.items():
        kept, now = to_numpy(array).ravel(), to_numpy(again[name]).ravel()
        differs = ~np.isclose(kept, now, rtol=tolerance, atol=tolerance)
        if differs.mean() > exceptions:
            worst = int(np.abs(kept - now).argmax())
            count = np.count_nonzero(differs)
            raise ComponentError(
                f"the agent's current policy did not produce this rollout: {count} of {differs.size} {name} differ, "
                f"most of all {kept[worst]:.6g} where the policy now gives {now[worst]:.6g}{advice}"
            )


class Cuts:
    """Phases of a loop without timers: calls of some functions begin and end them.

    A phase that begins after a call, such as storing, lasts until the next of these calls.
    """

    def __init__(self) -> None:
        self._open: AbstractContextManager[object] | None = None

    def around(
        self,
        during: AbstractContextManager[object] | None,
        after: AbstractContextManager[object] | None = None,
        *,
        resumes: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator: the phase ``during`` lasts as long as the call, and ``after`` begins at its end.

        With ``resumes``, the phase that was open before the call goes on after it.
        """

        def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
            def cutting(*args: Any, **kwargs: Any) -> Any:
                before = self._open
                self.switch(during)
                try:
                    return function(*args, **kwargs)
                finally:
                    self.switch(before if resumes else after)

            return cutting

        return decorated

    def switch(self, phase: AbstractContextManager[object] | None = None) -> None:
        """End the open phase, and begin another, if any."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open = phase
        if phase is not None:
            phase.__enter__()
