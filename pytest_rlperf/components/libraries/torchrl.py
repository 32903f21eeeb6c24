"""Stepping a TorchRL env, or many in one."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch
from torchrl.envs import EnvBase, GymWrapper, TransformedEnv

from pytest_rlperf.components.stepping import ACTION, ACTIONS, ENV_STEP
from pytest_rlperf.errors import ComponentError

_STEPS_CHECKED = 100  # in which most envs come to an end, and are to go on from a reset


class TorchRLStepper:
    """Steps ``env`` by ``step_and_maybe_reset`` with actions drawn beforehand, without gradients, as collectors do.

    What has ended is reset within the call, so every call is a step of every env; but a vector env of gymnasium's under
    NEXT_STEP takes a call for it, which TorchRL passes on as a step. An env of batch size () is one env.
    """

    def __init__(self, env: EnvBase, seed: int) -> None:
        self.env = env
        self.num_envs: int = env.batch_size.numel()
        env.set_seed(seed)  # which starts processes, where there are any: a check is to tell how long a call takes
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self._actions = cycle([env.full_action_spec.rand() for _ in range(ACTIONS)])
        self._carried: Any = None  # from step to step, with what the next one starts from
        self._calls = 0
        self._has_reset_calls = _has_reset_calls(env)
        self._ended: list[Any] = []
        self._resets_due = 0

    def check(self) -> None:
        """Reset, step until an episode has ended, and check what comes back; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self._carried = self.env.reset()
        for _ in range(_STEPS_CHECKED):
            self._carried.update(next(self._actions))
            stepped = self._step().get("next")
            for key in (*self.env.reward_keys, *self.env.done_keys):
                self._check_shape(key, stepped.get(key, None))
            self._check_reset()
            if stepped.get("done").any():
                break
        self._calls, self._ended, self._resets_due = 1, self._ended[-1:], 0

    def call(self) -> None:
        """Step every env once."""
        with ACTION:
            self._carried.update(next(self._actions))
        with ENV_STEP:
            self._step()
        self._calls += 1

    def count(self) -> float:
        """Return the env steps since this was last asked; ComponentError where an env has been stepped past its end."""
        __tracebackhide__ = True
        self._check_reset()
        calls, self._calls = self._calls, 0
        if not self._ended:
            return float(calls * self.num_envs)
        # Where all end together TorchRL resets them itself.
        due = [0 if done.all() else int(done.sum()) for done in self._ended]
        self._ended.clear()
        resets, self._resets_due = self._resets_due + sum(due[:-1]), due[-1]
        return float(calls * self.num_envs - resets)

    @torch.no_grad()
    def _step(self) -> Any:
        """Step, and keep what the next step starts from."""
        stepped, self._carried = self.env.step_and_maybe_reset(self._carried)
        if self._has_reset_calls:
            self._ended.append(stepped.get(("next", "done")))
        return stepped

    def _check_shape(self, key: Any, tensor: Any) -> None:
        __tracebackhide__ = True
        expected = tuple(self.env.batch_size)
        shape = None if tensor is None else tuple(tensor.shape)
        if shape is None or shape[: len(expected)] != expected:
            found = "no" if shape is None else f"of shape {shape} the"
            raise ComponentError(
                f"step_and_maybe_reset() returned {found} {key!r}; an env of batch size {expected} has one an env"
            )

    def _check_reset(self) -> None:
        """Raise ComponentError where an env that has ended goes on from there."""
        __tracebackhide__ = True
        if self._carried is None:
            return
        for key in self.env.done_keys:
            ended = int(self._carried.get(key).sum())
            if ended:
                raise ComponentError(
                    f"step_and_maybe_reset() left {ended} of {self.num_envs} envs {key!r}: it is to reset those that "
                    "have ended, and else steps after their end are timed"
                )


def _has_reset_calls(env: EnvBase) -> bool:
    """Whether an env wraps one of gymnasium's that resets in a call of its own, as ``GymEnv(num_envs=…)`` makes it."""
    while isinstance(env, TransformedEnv):
        env = env.base_env
    metadata = getattr(env._env, "metadata", None) if isinstance(env, GymWrapper) else None
    mode = (metadata or {}).get("autoreset_mode")
    return str(getattr(mode, "value", mode)) == "NextStep"
