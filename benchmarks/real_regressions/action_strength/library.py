"""An env whose actions have a strength."""

from __future__ import annotations

import numpy as np

REGRESSED = False


class Env:
    """A point that actions push."""

    def __init__(self, strength: float | None = None) -> None:
        self.strength = (0.0 if REGRESSED else 1.0) if strength is None else strength
        self.state = np.zeros(8)

    def step(self) -> np.ndarray:
        self.state = np.tanh(self.state + self.strength * 0.1)
        return self.state
