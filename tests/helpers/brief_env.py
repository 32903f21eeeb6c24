"""A gymnasium env of short episodes, for tests of vector envs; importable where gymnasium is installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

Env: Any = gymnasium.Env


class BriefEnv(Env):  # type: ignore[misc]
    """Has episodes of one to five steps, ended by termination and by truncation in turns; counts steps and resets."""

    def __init__(self, action_space: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space or gymnasium.spaces.Discrete(3)
        self.n_steps = self.n_resets = self.left = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.n_resets += 1
        self.left = int(self.np_random.integers(1, 6))
        return self.np_random.random(2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.shape(action) == self.action_space.shape
        assert not isinstance(self.action_space, gymnasium.spaces.Discrete) or self.action_space.contains(action)
        assert self.left > 0, "stepped after its end"
        self.n_steps += 1
        self.left -= 1
        terminated, truncated = (self.left == 0 and self.n_resets % 2 == turn for turn in (0, 1))
        return self.np_random.random(2).astype(np.float32), 1.0, terminated, truncated, {}

    def close(self) -> None:
        self.closed = True
