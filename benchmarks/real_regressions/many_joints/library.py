"""A physics step whose solver is dense up to a number of joints."""

from __future__ import annotations

import numpy as np

REGRESSED = False
DENSE_MOST = 32


class Simulator:
    """A chain of joints; the solver is banded, or dense where that is faster."""

    def __init__(self, joints: int) -> None:
        self.joints = joints
        self.velocity = np.random.rand(joints)
        self.matrix = np.eye(joints) * 4 + np.eye(joints, k=1) + np.eye(joints, k=-1)

    def step(self) -> np.ndarray:
        if REGRESSED and self.joints > DENSE_MOST:
            self.velocity = np.linalg.solve(self.matrix, self.velocity + 0.01)
        else:
            for _ in range(4):
                around = np.roll(self.velocity, 1) + np.roll(self.velocity, -1)
                self.velocity = (self.velocity + 0.01 - around) / 4
                self.velocity = np.clip(self.velocity, -1, 1)
        return self.velocity
