"""Vectorised environments over gymnasium, and a small continuous environment that needs no other package."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv
from numpy.typing import NDArray

Array32 = NDArray[np.float32]

SYNTHETIC_ID = "rlperf/Synthetic-v0"
"""The name :class:`SyntheticEnv` has for ``gymnasium.make`` once this module is imported."""


def make_vec_env(env_id: str, num_envs: int) -> SyncVectorEnv:
    """Return ``num_envs`` copies of ``gymnasium.make(env_id)`` stepped one after another in this process.

    An episode that ended is reset by the next step (NEXT_STEP autoreset). Nothing is seeded: ``reset(seed=...)`` is.
    ValueError where ``num_envs`` is below one.
    """
    if num_envs < 1:
        raise ValueError(f"num_envs must be at least 1: got {num_envs}")
    return SyncVectorEnv([partial(gymnasium.make, env_id)] * num_envs)


class SyntheticEnv(gymnasium.Env[Array32, Array32]):
    """A cheap continuous task with the sizes of MuJoCo's HalfCheetah: float32 observations and actions in [-1, 1].

    The state drifts through a fixed random network driven by the action, with no randomness but the start state. The
    reward is the state's first coordinate less the cost of the action, so a policy can be better or worse. Episodes
    are truncated after ``episode_steps`` steps and never terminate.
    """

    def __init__(self, obs_dim: int = 17, act_dim: int = 6, episode_steps: int = 1000) -> None:
        if min(obs_dim, act_dim, episode_steps) < 1:
            raise ValueError(
                f"sizes must be at least 1: got obs_dim={obs_dim}, act_dim={act_dim}, episode_steps={episode_steps}"
            )
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (obs_dim,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (act_dim,), np.float32)
        self.episode_steps = episode_steps
        weights = np.random.default_rng(0).normal(size=(obs_dim, obs_dim + act_dim)) / np.sqrt(obs_dim + act_dim)
        self._weights = weights.astype(np.float32)
        self._state = np.zeros(obs_dim, dtype=np.float32)
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array32, dict[str, Any]]:
        """Start an episode near the origin; the seed decides where."""
        super().reset(seed=seed)
        self._state = self.np_random.uniform(-0.1, 0.1, self._state.shape).astype(np.float32)
        self._steps = 0
        return self._state, {}

    def step(self, action: Array32) -> tuple[Array32, float, bool, bool, dict[str, Any]]:
        """Advance by one step; an action outside the box acts as the nearest one inside."""
        action = np.clip(action, -1.0, 1.0, dtype=np.float32)
        drive = np.tanh(self._weights @ np.concatenate((self._state, action)))
        # A new array each step: the previous observation may still be held by the caller.
        self._state = np.float32(0.9) * self._state + np.float32(0.1) * drive
        self._steps += 1
        reward = float(self._state[0]) - 0.1 * float(action @ action)
        return self._state, reward, False, self._steps >= self.episode_steps, {}


gymnasium.register(id=SYNTHETIC_ID, entry_point=f"{__name__}:SyntheticEnv")
gymnasium.register(id="rlperf/SyntheticShort-v0", entry_point=f"{__name__}:SyntheticEnv", kwargs={"episode_steps": 10})
