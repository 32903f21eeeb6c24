"""The environments that the scripts beside this one run in worker processes, and the file for their findings."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from pytest_rlperf import timers
from pytest_rlperf.timers import hierarchical_timer

Array = NDArray[np.float32]

WORKERS = 2
ROUNDS = 2
STEPS = 5


class Room(gymnasium.Env[Array, Any]):
    """An environment without an end, with timers."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        with hierarchical_timer("reset"):
            return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        with hierarchical_timer("step"):
            with hierarchical_timer("physics"):
                observation = np.zeros(2, np.float32)
            with hierarchical_timer("reward"):
                pass
        return observation, 0.0, False, False, {}


def timer_state() -> tuple[bool, bool]:
    """Return whether this process has timers, and whether they record."""
    return timers.ARMED, timers.is_recording()


def tell(found: object) -> None:
    """Write a script's findings to the file that its first argument names."""
    Path(sys.argv[1]).write_bytes(pickle.dumps(found))
