"""A collector that adds a rollout to a buffer, which it checks for what should not be there."""

from __future__ import annotations

import numpy as np

REGRESSED = False
STEPS = 256


class Buffer:
    """A ring of transitions, of which so many are stored."""

    def __init__(self, size: int, stored: int) -> None:
        self.obs = np.random.rand(size, 8).astype(np.float32)
        self.size, self.stored, self.at = size, stored, 0

    def add(self, rollout: np.ndarray) -> None:
        end = self.at + len(rollout)
        self.obs[np.arange(self.at, end) % self.size] = rollout
        self.at, self.stored = end % self.size, min(self.size, self.stored + len(rollout))

    def has_null(self, rows: slice) -> bool:
        return bool(np.isnan(self.obs[rows]).any())


class Trainer:
    """Collects and checks."""

    def __init__(self, size: int, stored: int) -> None:
        self.buffer = Buffer(size, stored)
        self.state = np.zeros(8, np.float32)
        self.weights = np.random.rand(8, 8).astype(np.float32) / 8

    def collect(self) -> np.ndarray:
        rollout = np.empty((STEPS, 8), np.float32)
        for step in range(STEPS):
            self.state = np.tanh(self.state @ self.weights + 0.1)
            rollout[step] = self.state
        self.buffer.add(rollout)
        whole = slice(self.buffer.stored) if REGRESSED else slice(max(0, self.buffer.at - STEPS), self.buffer.at)
        assert not self.buffer.has_null(whole)
        return rollout
