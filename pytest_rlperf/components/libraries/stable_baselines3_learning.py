"""Stable-Baselines3's replay buffer, GAE, SAC update and PPO rollout."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.logger import Logger

from pytest_rlperf.components.arrays import check_device, leaves, to_numpy
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model import Probe
from pytest_rlperf.probes import probes_for
from pytest_rlperf.probes.attach import put

_BATCHES_AT_LEAST = 4  # an agent's empty buffer is filled with, to sample from
_ROWS_JUDGED = 1024  # of a rollout, by the policy that is said to have made it
_TOLERANCE = 1e-3  # of log-probabilities and values that are computed again, in batches of another size
_COLLECT_PHASES = {
    "policy": ["policy.forward", "policy.predict_values", f"{PPO.collect_rollouts.__module__}:obs_as_tensor"],
    "env_step": "env.step",
    "store": ["rollout_buffer.add", "rollout_buffer.reset", "_update_info_buffer"],
    "gae": "rollout_buffer.compute_returns_and_advantage",
}


class ReplaySampler:
    """Draws from ``buffer``, which has something in it; a batch on a GPU is waited for."""

    def __init__(self, buffer: ReplayBuffer, batch_size: int) -> None:
        if buffer.size() == 0:
            raise ComponentError(f"the {type(buffer).__qualname__} is empty: buffer.add(…) what is to be sampled first")
        self._buffer = buffer
        self._batch_size = batch_size

    def draw(self) -> Any:
        """Draw a batch."""
        return self._buffer.sample(self._batch_size)

    def shapes(self, batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every array's shape; ComponentError where one is not on the buffer's device."""
        __tracebackhide__ = True
        for path, tensor in leaves(batch):
            check_device(f"the batch's {path}", tensor, self._buffer.device)
            yield path, tuple(tensor.shape)


class RolloutGae:
    """Calls ``compute_returns_and_advantage`` of a copy of the buffer that has the rollout's size and discounts.

    ``given`` is a RolloutBuffer or that method of one, which is left as it is. The method takes tensors and NumPy
    arrays whatever the ``backend``.
    """

    is_normalised = False

    def __init__(self, given: Any, rollout: Mapping[str, Any], backend: str) -> None:
        buffer = given.__self__ if isinstance(given, MethodType) else given
        if not isinstance(buffer, RolloutBuffer):
            raise ComponentError("rlperf_gae needs a RolloutBuffer, or that method of one: of the class it has no data")
        self._buffer = copy.copy(buffer)
        self._buffer.buffer_size, self._buffer.n_envs = rollout["rewards"].shape
        self._buffer.gamma, self._buffer.gae_lambda = rollout["gamma"], rollout["lam"]
        self._buffer.reset()  # which makes arrays of its own
        for name in ("rewards", "values", "episode_starts"):
            getattr(self._buffer, name)[:] = rollout[name]
        self._buffer.pos, self._buffer.full = self._buffer.buffer_size, True
        self._last_values = self._buffer.to_torch(rollout["last_values"][:, None])
        self._last_dones = rollout["last_dones"].astype(bool)

    def call(self) -> None:
        """Compute advantages and returns, into the buffer."""
        self._buffer.compute_returns_and_advantage(self._last_values, self._last_dones)

    def advantages(self, _: None) -> Any:
        """Return the advantages."""
        return self._buffer.advantages


class SacUpdater:
    """Calls ``agent.train(1, batch_size)``: with the learning rates' schedule before the step, and records after it.

    An agent without a logger gets one that writes nowhere. An empty replay buffer is filled by ``agent.learn``, with
    random actions and no update.
    """

    def __init__(self, agent: SAC, batch_size: int) -> None:
        self.owner: SAC = agent
        self.steps: int | None = 2 if agent.ent_coef_optimizer is None else 3
        self._batch_size = batch_size
        _have_logger(agent)
        if agent.replay_buffer is None or agent.replay_buffer.size() == 0:
            _fill(agent, _BATCHES_AT_LEAST * batch_size)
        progress = agent._current_progress_remaining
        if agent.lr_schedule(progress) == 0:
            raise ComponentError(
                f"the learning rate is 0 at progress_remaining={progress:g}: give an agent that has not come to the "
                "end of its schedule"
            )

    def update(self) -> None:
        """Do one gradient step of every part."""
        self.owner.train(1, self._batch_size)

    def check(self) -> None:
        """Check that an update draws one batch, of the size and to the device it is said to be of."""
        __tracebackhide__ = True
        with _drawn_of(self.owner.replay_buffer) as batches:
            self.update()
        sizes, size = [len(batch.actions) for batch in batches], self._batch_size
        if sizes != [size]:
            raise ComponentError(f"train(1, {size}) drew batches of {sizes} transitions, expected one of {size}")
        for path, tensor in leaves(batches[0]):
            check_device(f"the batch's {path}", tensor, self.owner.device)


class PpoRoller:
    """Calls ``agent.collect_rollouts`` with its env, its rollout buffer and no callback of the user's.

    ``collect_rollouts`` empties the buffer itself. The env is reset once, here, unless the agent has learnt in it.
    """

    def __init__(self, agent: PPO, n_steps: int) -> None:
        if agent.env is None:
            raise ComponentError("the agent has no env to collect from: agent.set_env(env)")
        if n_steps != agent.n_steps:
            raise ComponentError(
                f"the agent's rollouts are of {agent.n_steps} steps, not {n_steps}: PPO(…, n_steps={n_steps}), or "
                f"rlperf_ppo_collect(agent, n_steps={agent.n_steps})"
            )
        self.n_steps = n_steps
        self.num_envs: int = agent.n_envs
        self.setup: Callable[[], None] | None = None
        self._agent = agent
        self._env = agent.env
        self._is_complete = False
        _have_logger(agent)
        _, self._callback = agent._setup_learn(n_steps * agent.n_envs, reset_num_timesteps=False)
        callback = probes_for({"callback": ["update_locals", "on_step"]}, self._callback)
        self.probes: tuple[Probe, ...] = (*probes_for(_COLLECT_PHASES, agent), *callback)

    def collect(self) -> RolloutBuffer:
        """Collect a rollout into the agent's buffer."""
        buffer = self._agent.rollout_buffer
        self._is_complete = self._agent.collect_rollouts(self._env, self._callback, buffer, self.n_steps)
        return buffer

    def check(self, rollout: RolloutBuffer) -> None:
        """Check that the rollout is full, finite, and what the agent's policy does; ComponentError says what is not."""
        __tracebackhide__ = True
        if not (self._is_complete and rollout.full and rollout.pos == self.n_steps):
            raise ComponentError(f"collect_rollouts stored {rollout.pos} steps, expected {self.n_steps}")
        for name in ("rewards", "values", "log_probs", "advantages", "returns"):
            if not np.isfinite(getattr(rollout, name)).all():
                raise ComponentError(f"collect_rollouts left NaN or infinity in {name}")
        self._check_policy(rollout)
        _check_advantages(rollout)

    def env_steps(self, rollout: RolloutBuffer) -> float:
        """Return how many env steps the rollout is of: a VecEnv resets within the step, so every row is one."""
        return float(rollout.pos * rollout.n_envs)

    def _check_policy(self, rollout: RolloutBuffer) -> None:
        """Ask the agent's policy for the values and log-probabilities of what is stored, as an update does."""
        __tracebackhide__ = True
        policy = self._agent.policy
        total = rollout.pos * rollout.n_envs
        rows = np.unique(np.linspace(0, total - 1, min(total, _ROWS_JUDGED)).astype(int))
        of_rows = {name: _flat(getattr(rollout, name), rows) for name in ("observations", "actions")}
        observations, _ = policy.obs_to_tensor(of_rows["observations"])
        actions = torch.as_tensor(of_rows["actions"], dtype=torch.float32, device=self._agent.device)
        if policy.action_space.shape == ():
            actions = actions.long().flatten()
        with torch.no_grad():
            values, log_probs, _ = policy.evaluate_actions(observations, actions)
        for name, again in (("log_probs", log_probs), ("values", values)):
            stored, now = _flat(getattr(rollout, name), rows).ravel(), to_numpy(again).ravel()
            worst = int(np.abs(stored - now).argmax())
            if not np.allclose(stored, now, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise ComponentError(
                    f"the rollout is not of the agent's policy: stored {name} of {stored[worst]:.6g}, expected "
                    f"{now[worst]:.6g} by the policy as it is"
                )


def _check_advantages(rollout: RolloutBuffer) -> None:
    """Check advantages by GAE's recurrence, over all steps but the last, whose next value is not stored."""
    __tracebackhide__ = True
    going_on = 1.0 - rollout.episode_starts[1:]
    deltas = rollout.rewards[:-1] + rollout.gamma * going_on * rollout.values[1:] - rollout.values[:-1]
    expected = deltas + rollout.gamma * rollout.gae_lambda * going_on * rollout.advantages[1:]
    scale = max(1.0, float(np.abs(rollout.advantages).max()))
    if not np.allclose(rollout.advantages[:-1], expected, atol=_TOLERANCE * scale):
        raise ComponentError("the rollout's advantages are not GAE of its rewards and values: were they computed?")


def _flat(array: Any, rows: Any) -> Any:
    """Return some rows of an array of shape (n_steps, n_envs, …), counted env by env; of a dictionary, each."""
    if isinstance(array, Mapping):
        return {key: _flat(value, rows) for key, value in array.items()}
    return RolloutBuffer.swap_and_flatten(array)[rows]


def _have_logger(agent: BaseAlgorithm) -> None:
    """Give an agent that has not learnt yet a logger that writes nowhere: an update records with it."""
    if getattr(agent, "_logger", None) is None:
        agent.set_logger(Logger(folder=None, output_formats=[]))


def _fill(agent: SAC, transitions: int) -> None:
    """Fill an agent's buffer from its env, by random actions; where it is in its schedules stays as it was."""
    if agent.env is None:
        raise ComponentError("the agent's replay buffer is empty, and it has no env to fill it: agent.set_env(env)")
    before = agent.learning_starts, agent._current_progress_remaining
    agent.learning_starts = math.inf  # type: ignore[assignment]  # until then it takes random actions
    try:
        agent.learn(transitions, log_interval=None)  # type: ignore[arg-type]
    finally:
        agent.learning_starts, agent._current_progress_remaining = before


@contextmanager
def _drawn_of(buffer: Any) -> Iterator[list[Any]]:
    """Yield a list that gets every batch drawn of ``buffer`` while the body runs."""
    batches: list[Any] = []
    sample = buffer.sample

    def watched(*args: Any, **kwargs: Any) -> Any:
        batches.append(sample(*args, **kwargs))
        return batches[-1]

    undo = put(buffer, "sample", watched)
    try:
        yield batches
    finally:
        undo()
