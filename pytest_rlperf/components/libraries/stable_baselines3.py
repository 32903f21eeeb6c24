"""Stable-Baselines3's vector envs, replay buffers, GAE, SAC updates, PPO rollouts, PPO updates and whole iterations."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_rlperf.components.contracts import (
    GaeCall,
    Learner,
    Roller,
    Updater,
    check_finite,
    check_of_policy,
    draw_actions,
)
from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.components.vecenv import AnyStepper
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.probes import put
from pytest_rlperf.probes.functions import probes_for

if TYPE_CHECKING:
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.vec_env import VecEnv

_BATCHES_AT_LEAST = 4  # to fill an agent's empty buffer with
_TOLERANCE = 1e-3  # for advantages that are computed again
_ROWS_JUDGED = 1024  # of a rollout, by the agent's policy
_COLLECT_PHASES = {
    "policy": [
        "policy.forward",
        "policy.predict_values",
        "stable_baselines3.common.on_policy_algorithm:obs_as_tensor",
    ],
    "env_step": "env.step",
    "store": ["rollout_buffer.add", "rollout_buffer.reset", "_update_info_buffer"],
    "gae": "rollout_buffer.compute_returns_and_advantage",
}


class VecEnvStepper(AnyStepper):
    """Steps a VecEnv, which resets within the step; its action space is that of one env."""

    def __init__(self, env: VecEnv, seed: int) -> None:
        super().__init__(env, env.num_envs, draw_actions(env.action_space, env.num_envs, seed), seed)

    def check_step(self, results: Any) -> bool:
        """Check one step, and that an env whose episode ended with it was reset."""
        __tracebackhide__ = True
        begun = super().check_step(results)
        _, _, dones, infos = results
        for index in np.flatnonzero(dones):
            if "terminal_observation" not in infos[index]:
                raise ComponentError(
                    f"env {index} is done and its info has no 'terminal_observation': a VecEnv resets within the step "
                    "that ends an episode, and keeps its last observation there"
                )
        return begun


def _gae(given: Any, rollout: Mapping[str, Any], backend: str) -> GaeCall:
    """Return a call of ``compute_returns_and_advantage`` on a copy of a buffer, with the rollout's size and discounts.

    ``given`` is a RolloutBuffer, which stays as it is, or that method of one. The method takes tensors and NumPy
    arrays whatever the ``backend``.
    """
    from stable_baselines3.common.buffers import RolloutBuffer

    buffer = given.__self__ if isinstance(given, MethodType) else given
    if not isinstance(buffer, RolloutBuffer):
        raise ComponentError(
            "rlperf_gae needs a RolloutBuffer, or that method of one: the method of the class has no data"
        )
    buffer = copy.copy(buffer)
    buffer.buffer_size, buffer.n_envs = rollout["rewards"].shape
    buffer.gamma, buffer.gae_lambda = rollout["gamma"], rollout["lam"]
    buffer.reset()  # makes new arrays
    for name in ("rewards", "values", "episode_starts"):
        getattr(buffer, name)[:] = rollout[name]
    buffer.pos, buffer.full = buffer.buffer_size, True
    last_values = buffer.to_torch(rollout["last_values"][:, None])
    call = partial(buffer.compute_returns_and_advantage, last_values, rollout["last_dones"].astype(bool))
    return GaeCall(call, lambda _: buffer.advantages)


def _updater(agent: SAC, batch_size: int) -> Updater:
    """Return calls of ``agent.train(1, batch_size)``, with the schedules before the step and records after it.

    An agent without a logger gets one that writes nowhere. An empty replay buffer is filled by ``agent.learn``, with
    random actions and no update.
    """
    _have_logger(agent)
    if agent.replay_buffer is None or agent.replay_buffer.size() == 0:
        _fill_by_learning(agent, _BATCHES_AT_LEAST * batch_size)
    steps = 2 if agent.ent_coef_optimizer is None else 3
    return Updater(agent, lambda: agent.train(1, batch_size), steps, (agent.replay_buffer,))


class PpoRoller(Roller):
    """Calls ``agent.collect_rollouts`` with its env, its rollout buffer and no user callback.

    ``collect_rollouts`` empties the buffer itself. The env is reset once, here, unless the agent has learnt in it.
    """

    def __init__(self, agent: PPO, n_steps: int) -> None:
        if agent.env is None:
            raise ComponentError("the agent has no env to collect from: agent.set_env(env)")
        if n_steps != agent.n_steps:
            raise ComponentError(
                f"the agent's rollouts have {agent.n_steps} steps, not {n_steps}: PPO(…, n_steps={n_steps}), or "
                f"rlperf_ppo_collect(agent, n_steps={agent.n_steps})"
            )
        self.n_steps = n_steps
        self.num_envs: int = agent.n_envs
        self._agent = agent
        self._env = agent.env
        self._is_complete = False
        _have_logger(agent)
        _, self._callback = agent._setup_learn(n_steps * agent.n_envs, reset_num_timesteps=False)
        callback = probes_for({"callback": ["update_locals", "on_step"]}, self._callback)
        self.probes = (*probes_for(_COLLECT_PHASES, agent), *callback)

    def collect(self) -> RolloutBuffer:
        """Collect a rollout into the agent's buffer."""
        buffer = self._agent.rollout_buffer
        self._is_complete = self._agent.collect_rollouts(self._env, self._callback, buffer, self.n_steps)
        return buffer

    def check(self, rollout: RolloutBuffer) -> None:
        """Check that the rollout is full, finite and made by the agent's policy; ComponentError names what is wrong."""
        __tracebackhide__ = True
        if not (self._is_complete and rollout.full and rollout.pos == self.n_steps):
            raise ComponentError(
                f"the rollout is not full: collect_rollouts stored {rollout.pos} steps, expected {self.n_steps}"
            )
        names = ("rewards", "values", "log_probs", "advantages", "returns")
        check_finite((name, getattr(rollout, name)) for name in names)
        self._check_policy(rollout)
        _check_advantages(rollout)

    def env_steps(self, rollout: RolloutBuffer) -> float:
        """Return how many env steps the rollout has: every row, as a VecEnv resets within the step."""
        return float(rollout.pos * rollout.n_envs)

    def _check_policy(self, rollout: RolloutBuffer) -> None:
        """Compute the values and log-probabilities of some stored rows with the agent's policy, as an update does."""
        __tracebackhide__ = True
        import torch

        policy = self._agent.policy
        total = rollout.pos * rollout.n_envs
        rows = np.unique(np.linspace(0, total - 1, min(total, _ROWS_JUDGED)).astype(int))
        stored = {
            name: _flat(getattr(rollout, name), rows) for name in ("observations", "actions", "log_probs", "values")
        }
        observations, _ = policy.obs_to_tensor(stored.pop("observations"))
        actions = torch.as_tensor(stored.pop("actions"), dtype=torch.float32, device=self._agent.device)
        if policy.action_space.shape == ():
            actions = actions.long().flatten()
        with torch.no_grad():
            values, log_probs, _ = policy.evaluate_actions(observations, actions)
        check_of_policy(stored, {"log_probs": log_probs, "values": values})


def _check_advantages(rollout: RolloutBuffer) -> None:
    """Check advantages by GAE's recurrence, for all steps but the last, whose next value is not stored."""
    __tracebackhide__ = True
    going_on = 1.0 - rollout.episode_starts[1:]
    deltas = rollout.rewards[:-1] + rollout.gamma * going_on * rollout.values[1:] - rollout.values[:-1]
    expected = deltas + rollout.gamma * rollout.gae_lambda * going_on * rollout.advantages[1:]
    scale = max(1.0, float(np.abs(rollout.advantages).max()))
    if not np.allclose(rollout.advantages[:-1], expected, atol=_TOLERANCE * scale):
        raise ComponentError("the rollout's advantages are not GAE of its rewards and values: were they computed?")


class PpoLearner(Learner):
    """Calls ``agent.train()`` on its rollout buffer, and ``agent.learn`` for one rollout.

    The buffer, which an update flattens, is restored as it was collected. Schedules stay where they are.
    """

    def __init__(self, agent: PPO, n_steps: int) -> None:
        self.owner = agent
        self.roller = PpoRoller(agent, n_steps)
        self._rollout: dict[str, Any] = {}
        self.probes = tuple(probes_for({"forward": "policy.evaluate_actions"}, agent))
        self.iteration_probes = tuple(probes_for({"collect": "collect_rollouts", "update": "train"}, agent))
        # learn() is told to collect only one rollout, so each rollout would end the schedules.
        put(agent, "_update_current_progress_remaining", lambda *_: None)

    def collect(self) -> None:
        """Collect the rollout into the agent's buffer."""
        __tracebackhide__ = True
        self._rollout = _copied(vars(super().collect()))

    def restore(self) -> None:
        """Restore the arrays by step and env."""
        vars(self.owner.rollout_buffer).update(_copied(self._rollout))

    def update(self) -> None:
        """Do all epochs."""
        self.owner.train()

    def iterate(self) -> None:
        """Learn from one more rollout."""
        self.owner.learn(int(self.env_steps()), reset_num_timesteps=False)


def _copied(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a buffer's attributes, with copies of dictionaries, in which arrays are replaced."""
    return {name: dict(value) if isinstance(value, dict) else value for name, value in attributes.items()}


def _flat(array: Any, rows: Any) -> Any:
    """Return rows, counted env by env, of an array of shape (n_steps, n_envs, …), or of each in a dictionary."""
    from stable_baselines3.common.buffers import RolloutBuffer

    if isinstance(array, Mapping):
        return {key: _flat(value, rows) for key, value in array.items()}
    return RolloutBuffer.swap_and_flatten(array)[rows]


def _have_logger(agent: BaseAlgorithm) -> None:
    """Give an agent that has not learnt yet a logger that writes nowhere: an update records with it."""
    if getattr(agent, "_logger", None) is None:
        from stable_baselines3.common.logger import Logger

        agent.set_logger(Logger(folder=None, output_formats=[]))


def _fill_by_learning(agent: SAC, transitions: int) -> None:
    """Fill an agent's buffer from its env, with random actions; its schedules stay where they were."""
    if agent.env is None:
        raise ComponentError("the agent's replay buffer is empty, and it has no env to fill it: agent.set_env(env)")
    before = agent.learning_starts, agent._current_progress_remaining
    agent.learning_starts = math.inf  # type: ignore[assignment]  # until then it takes random actions
    try:
        agent.learn(transitions, log_interval=None)  # type: ignore[arg-type]
    finally:
        agent.learning_starts, agent._current_progress_remaining = before


LIBRARY = Library(
    name="sb3",
    module="stable_baselines3",
    requirement="stable-baselines3",
    vecenv=(Adapter("stable_baselines3.common.vec_env:VecEnv", VecEnvStepper),),
    gae=(
        Adapter("stable_baselines3.common.buffers:RolloutBuffer", _gae),
        Adapter("stable_baselines3.common.buffers:RolloutBuffer.compute_returns_and_advantage", _gae),
    ),
    sac=(Adapter("stable_baselines3:SAC", _updater, attrgetter("batch_size")),),
    ppo=(Adapter("stable_baselines3:PPO", PpoRoller, attrgetter("n_steps")),),
    learn=(Adapter("stable_baselines3:PPO", PpoLearner, attrgetter("n_steps")),),
    environments=("stable_baselines3.common.vec_env:VecEnv.step",),
    starter="test_sb3.py",
)
