"""rlox's vector envs, replay buffers and GAE."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count, cycle
from typing import Any

import numpy as np
import rlox

from pytest_rlperf.components.arrays import check_device, check_observations, leaves
from pytest_rlperf.components.stepping import ACTIONS, EveryEnvStepper
from pytest_rlperf.errors import ComponentError

_CHECKED_STEPS = 256  # at most, until an episode has ended: Pendulum's are 200 steps long


class RloxStepper(EveryEnvStepper):
    """Steps ``env`` with actions drawn beforehand: a VecEnv of Rust, a GymVecEnv, or a VecNormalize around one.

    All of them reset within the step, so every call is a step of every env.
    """

    def __init__(self, env: Any, seed: int) -> None:
        self.env = env
        self._seed = seed
        actions = cycle(_batches_of_actions(env.action_space, env.num_envs(), seed))
        super().__init__(env.num_envs(), actions, env.step_all)

    def check(self) -> None:
        """Reset, step until an episode ends, and check what comes back; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.reset_all(seed=self._seed)
        for _ in range(_CHECKED_STEPS):
            if self._check_step(self.env.step_all(next(self._actions))):
                break
        self._calls = 1

    def _check_step(self, result: Mapping[str, Any]) -> bool:
        """Check one step, and return whether an episode ended with it."""
        __tracebackhide__ = True
        check_observations(result["obs"], self.num_envs)
        for name in ("rewards", "terminated", "truncated", "terminal_obs"):
            shape = np.shape(result[name]) if name != "terminal_obs" else (len(result[name]),)
            if shape != (self.num_envs,):
                raise ComponentError(
                    f"step_all() returned {name} of shape {shape}; {self.num_envs} envs have ({self.num_envs},)"
                )
        ended = np.flatnonzero(np.logical_or(result["terminated"], result["truncated"]))
        for index in ended:
            if result["terminal_obs"][index] is None:
                raise ComponentError(
                    f"env {index}'s episode ended, and step_all() gave no terminal_obs for it: it was not reset within "
                    "the step, and the next one is none or goes on after the end"
                )
        return bool(ended.size)


def _batches_of_actions(space: Any, num_envs: int, seed: int) -> list[Any]:
    """Return actions as rlox's collectors give them: a list of discrete ones, else a float32 row an env."""
    kind = space.get("type") if isinstance(space, Mapping) else None
    generator = np.random.default_rng(seed)
    if kind == "discrete":
        return [generator.integers(space["n"], size=num_envs).tolist() for _ in range(ACTIONS)]
    if kind == "box":
        shape = (num_envs, *space["shape"])
        return [generator.uniform(space["low"], space["high"], shape).astype(np.float32) for _ in range(ACTIONS)]
    if not hasattr(space, "sample"):
        raise ComponentError(f"the env's action_space is {space!r:.60}, expected a space to draw actions from")
    space.seed(seed)
    batches = [np.stack([space.sample() for _ in range(num_envs)]) for _ in range(ACTIONS)]
    return [batch.tolist() if hasattr(space, "n") else batch for batch in batches]


class RloxSampler:
    """Draws from a replay buffer, with another seed each time: one seed is always the same batch."""

    def __init__(self, buffer: Any, batch_size: int) -> None:
        self._sample = partial(buffer.sample, batch_size)
        self._seeds = count(random.getrandbits(31))

    def draw(self) -> Any:
        """Draw a batch."""
        return self._sample(seed=next(self._seeds))

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every array's shape."""
        for path, array in leaves(batch):
            yield path, tuple(array.shape)


class RloxGpuSampler(RloxSampler):
    """Draws from a GPUReplayBuffer; batches it has prefetched are thrown away.

    Such a batch costs nothing to draw, and is of the size it was prefetched with.
    """

    def __init__(self, buffer: Any, batch_size: int) -> None:
        super().__init__(buffer, batch_size)
        self._device = buffer.device
        while buffer.prefetch_queue_size:
            self._sample(seed=0)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor's shape; ComponentError where one is not on the buffer's device."""
        __tracebackhide__ = True
        for path, tensor in leaves(batch):
            check_device(f"the batch's {path}", tensor, self._device)
            yield path, tuple(tensor.shape)


class RloxGae:
    """Calls ``compute_gae`` of one env for each env in turn, on float64 rows made ready beforehand."""

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        self._function = function
        rewards, values, ends = (_env_major(rollout[name], np.float64) for name in ("rewards", "values", "ends"))
        discounts = rollout["gamma"], rollout["lam"]
        last_values = map(float, rollout["last_values"])
        self._calls = [(*env, *discounts) for env in zip(rewards, values, ends, last_values, strict=True)]

    def call(self) -> list[Any]:
        """Compute advantages and returns, env by env."""
        return [self._function(*arguments) for arguments in self._calls]

    def advantages(self, output: list[Any]) -> Any:
        """Return the advantages."""
        return np.stack([advantages for advantages, _ in output], axis=1)


class RloxBatchedGae:
    """Calls ``compute_gae_batched``, or its variant of float32, on flat arrays that have one env after the other."""

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        dtype = np.float32 if function is rlox.compute_gae_batched_f32 else np.float64
        n_steps, _ = rollout["rewards"].shape
        arrays = [_env_major(rollout[name], dtype).ravel() for name in ("rewards", "values", "ends")]
        arguments = (*arrays, rollout["last_values"].astype(dtype), n_steps, rollout["gamma"], rollout["lam"])
        self.call = partial(function, *arguments)
        self._n_steps = n_steps

    def advantages(self, output: Any) -> Any:
        """Return the advantages."""
        return np.reshape(output[0], (-1, self._n_steps)).T


def _env_major(array: Any, dtype: Any) -> Any:
    """Return a rollout's array of shape (n_steps, n_envs) with a contiguous row an env."""
    return np.ascontiguousarray(array.T, dtype=dtype)
