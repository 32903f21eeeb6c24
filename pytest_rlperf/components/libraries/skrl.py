"""Stepping skrl's wrapped envs, of its PyTorch side."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from skrl.envs.wrappers.torch import Wrapper
from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper
from skrl.utils.spaces.torch import flatten_tensorized_space, sample_space, tensorize_space

from pytest_rlperf.components.arrays import check_device
from pytest_rlperf.components.stepping import ACTION, ACTIONS, ENV_STEP
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import hierarchical_timer

_CHECKED_STEPS = 256  # at most, until an episode has ended
_RESET = hierarchical_timer("reset")


class SkrlStepper:
    """Steps a wrapped env with actions drawn beforehand, and counts the steps that were no resets.

    A vector env resets itself; under gymnasium's NEXT_STEP that takes a call of its own, which is no step. A single env
    is reset as skrl's trainers do it, part of what stepping on takes.
    """

    def __init__(self, env: Wrapper, seed: int) -> None:
        self.env = env
        self.num_envs: int = env.num_envs
        self.mode = _autoreset_mode(env)
        self._actions = cycle(_batches_of_actions(env, seed))
        if "_seed" in vars(env):
            env._seed = seed  # which its first reset goes by; it can be told in no other way
        self._calls = 0
        self._ended: list[Any] = []
        self._resets_due = 0

    def check(self) -> None:
        """Reset, step until an episode has ended and once more, and check; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.reset()
        before: Any = None
        for _ in range(_CHECKED_STEPS):
            over = self._check_step(self.env.step(next(self._actions)))
            if self.num_envs == 1 and over.any():
                self.env.reset()
            if before is not None and before.any():
                self._check_reset(before, over)
                break
            before = over
        self._calls, self._ended = 0, []
        self._resets_due = int(over.sum()) if self.mode == "NextStep" else 0
        self.call()

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self.env.step(actions)
        self._calls += 1
        if self.mode == "NextStep":
            self._ended.append((terminated, truncated))
        if self.num_envs == 1 and (terminated.any() or truncated.any()):
            with _RESET:
                self.env.reset()

    def count(self) -> float:
        """Return the env steps since this was last asked, resets left out; of a check's, the last call's."""
        calls, self._calls = self._calls, 0
        # What ended with a call is reset by the next one, which may be another slice's.
        due = [self._resets_due, *(int((terminated | truncated).sum()) for terminated, truncated in self._ended)]
        self._ended.clear()
        self._resets_due = due[-1]
        return float(calls * self.num_envs - sum(due[:-1]))

    def _check_reset(self, before: Any, over: Any) -> None:
        """Check that no episode ended with the step that should have reset its env."""
        __tracebackhide__ = True
        again = torch.nonzero((before & over).flatten()).flatten().tolist()
        if again and self.mode == "NextStep":
            raise ComponentError(
                f"env {again[0]}'s episode ended, and with the next step again, which should have reset it: does the "
                "env reset itself?"
            )

    def _check_step(self, stepped: tuple[Any, ...]) -> Any:
        """Check one step, and return in which envs an episode ended."""
        __tracebackhide__ = True
        observations, rewards, terminated, truncated, _ = stepped
        for name, tensor in (
            ("observations", observations),
            ("rewards", rewards),
            ("terminated", terminated),
            ("truncated", truncated),
        ):
            if tensor.shape[0] != self.num_envs or (name != "observations" and tensor.shape[1:] != (1,)):
                raise ComponentError(
                    f"step() returned {name} of shape {tuple(tensor.shape)}; {self.num_envs} envs have "
                    f"({self.num_envs}, {'…' if name == 'observations' else 1})"
                )
            check_device(f"step()'s {name}", tensor, self.env.device)
        return terminated | truncated


def _autoreset_mode(env: Wrapper) -> str:
    """Return how a wrapped env resets: gymnasium's name for it, or "Explicit" for a single env."""
    __tracebackhide__ = True
    if not getattr(env, "_vectorized", env.num_envs > 1):
        return "Explicit"
    if not isinstance(env, GymnasiumWrapper):
        return "SameStep"  # simulators of many envs do it so, and gymnasium's predecessor
    mode = (env.metadata or {}).get("autoreset_mode")
    name = "NextStep" if mode is None else str(getattr(mode, "value", mode))
    if name == "Disabled":
        raise ComponentError(
            "the vector env does not reset itself (autoreset_mode=DISABLED), and skrl's wrapper resets it but once: "
            "after their first episodes its envs do not go on. Make it with NEXT_STEP or SAME_STEP"
        )
    return name


def _batches_of_actions(env: Wrapper, seed: int) -> list[Any]:
    """Return actions as an agent gives them: on the env's device, a row an env."""
    space = env.action_space
    state = torch.random.get_rng_state()
    batches = []
    for number in range(ACTIONS):
        space.seed(seed + number)  # from which the vector's space, made anew each time, takes its own
        sample = sample_space(space, batch_size=env.num_envs)
        batches.append(flatten_tensorized_space(tensorize_space(space, sample, device=env.device)))
    torch.random.set_rng_state(state)
    return batches
