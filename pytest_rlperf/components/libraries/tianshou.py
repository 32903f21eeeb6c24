"""Tianshou's vector envs, replay buffers and GAE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBuffer, VectorReplayBuffer, to_torch
from tianshou.env import BaseVectorEnv

from pytest_rlperf.components.arrays import check_observations, leaves
from pytest_rlperf.components.stepping import ACTION, ACTIONS, ENV_STEP
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.timers import hierarchical_timer

_CHECKED_STEPS = 100  # at most, in wait for an episode to end
_RESET = hierarchical_timer("reset")


class TianshouStepper:
    """Steps ``env`` with actions drawn beforehand, and resets what has ended, which is part of stepping on.

    An env that waits for some of its workers only is stepped with those that are ready; what it returns is counted.
    """

    def __init__(self, env: BaseVectorEnv, seed: int) -> None:
        self.env = env
        self.num_envs: int = getattr(env, "wait_num", len(env))
        self._seed = seed
        spaces = env.action_space
        for offset, space in enumerate(spaces):
            space.seed(seed + offset)
        self._actions = cycle([np.stack([space.sample() for space in spaces]) for _ in range(ACTIONS)])
        self._ready: Any = np.arange(len(env))  # ids of the envs that wait for an action
        self._steps = 0

    def check(self) -> None:
        """Reset, step until an episode has ended, and check what comes back; ComponentError says what is wrong."""
        __tracebackhide__ = True
        self.env.seed(self._seed)
        check_observations(self.env.reset()[0], len(self.env))
        for _ in range(_CHECKED_STEPS):
            self._steps = 0
            stepped = self._step(next(self._actions))
            self._check_shapes(*stepped)
            ended = self._ended(*stepped[2:4])
            if len(ended):
                rows = np.shape(self.env.reset(ended)[0])[:1]
                if rows != ended.shape:
                    raise ComponentError(f"reset({ended.tolist()}) returned {rows} rows, expected {ended.shape}")
                break

    def call(self) -> None:
        """Step the envs that are ready once."""
        with ACTION:
            actions = next(self._actions)
        with ENV_STEP:
            _, _, terminated, truncated, _ = self._step(actions)
        ended = self._ended(terminated, truncated)
        if len(ended):
            with _RESET:
                self.env.reset(ended)

    def count(self) -> float:
        """Return the env steps since this was last asked."""
        steps, self._steps = self._steps, 0
        return float(steps)

    def _step(self, actions: Any) -> tuple[Any, ...]:
        if self.env.is_async:
            stepped: tuple[Any, ...] = self.env.step(actions[self._ready], self._ready)
            self._ready = np.array([info["env_id"] for info in stepped[4]])
        else:
            stepped = self.env.step(actions)
        self._steps += len(stepped[4])
        return stepped

    def _ended(self, terminated: Any, truncated: Any) -> Any:
        """Return the ids of the envs whose episode ended."""
        return self._ready[np.logical_or(terminated, truncated)]

    def _check_shapes(self, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> None:
        __tracebackhide__ = True
        rows = len(infos)
        if rows != len(self.env) and not self.env.is_async:
            raise ComponentError(f"step() returned infos of {rows} envs, expected {len(self.env)}")
        check_observations(obs, rows)
        for name, array in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(array)[:1] != (rows,):
                raise ComponentError(f"step() returned {name} of shape {np.shape(array)}, expected {rows} rows")


class TianshouSampler:
    """Draws a batch, with the indices it was drawn from."""

    def __init__(self, buffer: ReplayBuffer, batch_size: int) -> None:
        __tracebackhide__ = True
        if len(buffer) == 0:
            raise ComponentError(f"the {type(buffer).__qualname__} is empty: add transitions before it is measured")
        self._buffer = buffer
        self._batch_size = batch_size

    def draw(self) -> Any:
        """Draw a batch."""
        return self._buffer.sample(self._batch_size)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every array's shape, the indices' last."""
        transitions, indices = batch
        for path, array in leaves(transitions, "batch"):
            yield path, tuple(array.shape)
        yield "indices", tuple(indices.shape)


class TianshouGae:
    """Calls ``compute_episodic_return`` on a buffer with a part an env, which holds the rollout."""

    is_normalised = False

    def __init__(self, function: Callable[..., Any], rollout: Mapping[str, Any], backend: str) -> None:
        n_steps, n_envs = self._shape = rollout["rewards"].shape
        buffer = VectorReplayBuffer(n_steps * n_envs, n_envs)
        none, never = np.zeros(n_envs, np.float32), np.zeros(n_envs, np.bool_)
        for rewards, ends in zip(rollout["rewards"], rollout["ends"].astype(np.bool_), strict=True):
            buffer.add(Batch(obs=none, act=none, rew=rewards, terminated=ends, truncated=never, obs_next=none))
        self._function = function
        self._data = (*self._in_order(buffer), *self._values(rollout, backend))
        self._gamma, self._lam = rollout["gamma"], rollout["lam"]
        self.call()  # Numba compiles what it has not met before

    def call(self) -> Any:
        """Compute returns and advantages, one row an env after the other's."""
        batch, buffer, indices, next_values, values = self._data
        return self._function(batch, buffer, indices, next_values, values, gamma=self._gamma, gae_lambda=self._lam)

    def advantages(self, output: Any) -> Any:
        """Return the second array, with a row a step."""
        n_steps, n_envs = self._shape
        return output[1].reshape(n_envs, n_steps).T

    @staticmethod
    def _in_order(buffer: VectorReplayBuffer) -> tuple[Any, VectorReplayBuffer, Any]:
        batch, indices = buffer.sample(0)  # all there is, as PPO's update takes it
        return batch, buffer, indices

    @staticmethod
    def _values(rollout: Mapping[str, Any], backend: str) -> list[Any]:
        flat = [np.ascontiguousarray(rollout[name].T).reshape(-1) for name in ("next_values", "values")]
        return [to_torch(array) for array in flat] if backend == "torch" else flat
