"""A simulator whose kernels are made by factories, once for each set of arguments."""

from __future__ import annotations

import functools
import hashlib
import inspect

import numpy as np

REGRESSED = False


def _factory(name: str) -> str:
    """Return the key of a kernel: a digest of its source."""
    source = "".join(inspect.getsource(Simulator) for _ in range(8))
    return hashlib.sha256(f"{name}{source}".encode()).hexdigest()


_cached = functools.cache(_factory)


class Simulator:
    """Steps by a dozen kernels."""

    def __init__(self) -> None:
        self.state = np.random.rand(256, 64)

    def kernels(self) -> list[str]:
        return [(_factory if REGRESSED else _cached)(f"kernel{number}") for number in range(12)]

    def step(self) -> np.ndarray:
        for _ in self.kernels():
            self.state = np.tanh(self.state * 1.01)
        return self.state
