"""The transitions that libraries' replay buffers hold: those of the reference's buffer.

That one's conftest makes them by itself, as it also has to work beside an older package that it is compared with.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

OBS_DIM, ACT_DIM = 17, 6
BATCH_SIZE = 256
IN_BUFFER = 100_000  # transitions in the buffer that is sampled
IN_AGENT = 10_000  # transitions in a SAC agent's


class Transitions(NamedTuple):
    """Rows of float32, and whether the episode terminated with each."""

    obs: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_obs: NDArray[np.float32]
    terminated: NDArray[np.bool_]


def random_transitions(count: int) -> Transitions:
    """Return as many, the same ones every time."""
    generator = np.random.default_rng(0)
    return Transitions(
        obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        actions=generator.uniform(-1, 1, size=(count, ACT_DIM)).astype(np.float32),
        rewards=generator.normal(size=count).astype(np.float32),
        next_obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        terminated=generator.random(count) < 0.01,
    )
