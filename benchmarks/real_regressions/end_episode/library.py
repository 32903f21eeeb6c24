"""An env whose reset builds a scene."""

from __future__ import annotations

import numpy as np

REGRESSED = False


class Scene:
    """Bodies at random places."""

    def __init__(self) -> None:
        self.bodies = [np.random.rand(3) for _ in range(300)]


class Env:
    """Episodes of ten steps."""

    num_envs = 1

    def __init__(self) -> None:
        self.scene = Scene()
        self.time = 0

    def reset(self) -> np.ndarray:
        if REGRESSED:
            self.scene = Scene()
        self.time = 0
        return np.zeros(4)

    def step(self) -> np.ndarray:
        self.time += 1
        state = np.tanh(np.full(4, self.time) * 0.1)
        return self.reset() if self.time == 10 else state
