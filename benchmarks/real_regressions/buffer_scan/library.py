"""A collector that adds a rollout to a buffer, which it checks for what should not be there."""

from __future__ import annotations

import numpy as np

REGRESSED = False
STEPS = 256
DIMS = 17  # of HalfCheetah's observations


class Buffer:
    """A ring of transitions, of which so many are stored."""

    def __init__(self, size: int, stored: int) -> None:
        self.obs, self.next_obs = (np.random.rand(size, DIMS) for _ in range(2))
        self.size, self.stored, self.at = size, stored, 0

    def add(self, rollout: np.ndarray) -> None:
        end = self.at + len(rollout) - 1
        rows = np.arange(self.at, end) % self.size
        self.obs[rows], self.next_obs[rows] = rollout[:-1], rollout[1:]
        self.at, self.stored = end % self.size, min(self.size, self.stored + len(rows))

    def has_null(self, rows: slice) -> bool:
        return any(bool(np.isnan(part[rows]).any()) for part in (self.obs, self.next_obs))


class Trainer:
    """Collects and checks."""

    def __init__(self, size: int, stored: int) -> None:
        self.buffer = Buffer(size, stored)
        self.state = np.zeros(DIMS)
        self.weights = np.random.rand(DIMS, DIMS) / DIMS

    def collect(self) -> np.ndarray:
        rollout = np.empty((STEPS + 1, DIMS))
        for step in range(STEPS + 1):
            self.state = np.tanh(self.state @ self.weights + 0.1)
            rollout[step] = self.state
        self.buffer.add(rollout)
        whole = slice(self.buffer.stored) if REGRESSED else slice(max(0, self.buffer.at - STEPS), self.buffer.at)
        assert not self.buffer.has_null(whole)
        return rollout
