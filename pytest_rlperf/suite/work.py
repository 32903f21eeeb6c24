"""Equal work to compare libraries at: an environment, sizes, and transitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ENV_ID = "pytest_rlperf.components.reference.ppo:rlperf/Synthetic-v0"
"""The id from which ``gymnasium.make`` makes the reference's ``SyntheticEnv``; put your own environment's id here."""
SHORT_ENV_ID = "pytest_rlperf.components.reference.ppo:rlperf/SyntheticShort-v0"
"""The same one with episodes of ten steps, so that resets take a large part of the time."""
OBS_DIM, ACT_DIM = 17, 6  # the environment's sizes, which are HalfCheetah's
BATCH_SIZE = 256
IN_BUFFER = 100_000  # transitions in the buffer that is sampled
IN_AGENT = 10_000  # transitions in the buffer of a SAC agent
EPOCHS, MINIBATCHES = 4, 4  # of a PPO update


class Transitions(NamedTuple):
    """Rows of float32, and whether the episode terminated with each."""

    obs: NDArray[np.float32]
    actions: NDArray[np.float32]
    rewards: NDArray[np.float32]
    next_obs: NDArray[np.float32]
    terminated: NDArray[np.bool_]


def random_transitions(count: int) -> Transitions:
    """Return ``count`` random transitions, the same ones every time."""
    generator = np.random.default_rng(0)
    return Transitions(
        obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        actions=generator.uniform(-1, 1, size=(count, ACT_DIM)).astype(np.float32),
        rewards=generator.normal(size=count).astype(np.float32),
        next_obs=generator.normal(size=(count, OBS_DIM)).astype(np.float32),
        terminated=generator.random(count) < 0.01,
    )
