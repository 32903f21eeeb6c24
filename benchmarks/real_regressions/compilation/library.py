"""An update that compiles its kernel when it is first called."""

from __future__ import annotations

import numpy as np

REGRESSED = False


class Agent:
    """A compiled update; compiling is a search over schedules."""

    def __init__(self) -> None:
        self.compiled = False
        self.weights = np.random.rand(64, 64)

    def compile(self) -> None:
        tried = 1_500 if REGRESSED else 50
        for _ in range(tried):
            sum(number * number for number in range(20_000))
        self.compiled = True

    def update(self) -> np.ndarray:
        if not self.compiled:
            self.compile()
        self.weights = np.tanh(self.weights @ self.weights / 64)
        return self.weights
