"""Environments in processes of gymnasium's or of Stable-Baselines3's: OUT LIBRARY START_METHOD SCENARIO."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
from worlds import ROUNDS, STEPS, WORKERS, Room, tell, timer_state

from pytest_rlperf import timers
from pytest_rlperf.timers import hierarchical_timer


class Gymnasium:
    def __init__(self, start_method: str) -> None:
        from gymnasium.vector import AsyncVectorEnv
        from gymnasium.wrappers import TimeLimit

        rooms = [partial(_room, partial(TimeLimit, max_episode_steps=1000))] * WORKERS
        self.vector = AsyncVectorEnv(rooms, context=start_method)

    def call(self, function: Any) -> Any:
        self.vector.set_attr("called", function)
        return self.vector.call("called")


class StableBaselines3:
    def __init__(self, start_method: str) -> None:
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.vec_env import SubprocVecEnv

        rooms: list[Any] = [partial(_room, Monitor)] * WORKERS
        self.vector = SubprocVecEnv(rooms, start_method=start_method)

    def call(self, function: Any) -> Any:
        self.vector.set_attr("called", function)
        return self.vector.env_method("called")


def _room(wrapper: Any) -> Any:
    return wrapper(Room())


LIBRARIES: dict[str, Any] = {"gymnasium": Gymnasium, "stable_baselines3": StableBaselines3}


def collect(library: str, start_method: str) -> object:
    with hierarchical_timer("before"):
        pass
    timers.reset()
    with hierarchical_timer("collect"):
        workers = LIBRARIES[library](start_method)
        with hierarchical_timer("reset"):
            workers.vector.reset()
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                with hierarchical_timer("wait"):
                    workers.vector.step(np.zeros(WORKERS, np.int64))
            for tree in workers.call(timers.reset):
                timers.merge_tree(tree, "workers")
        workers.vector.close()
    return timers.snapshot()


def switch(library: str, start_method: str) -> object:
    """Return the states of the parent and of its workers as they start, then after a call by their library."""
    workers = LIBRARIES[library](start_method)
    found = [timer_state(), *workers.call(timer_state)]
    if timers.ARMED:
        workers.call(timers.enable)
        found += workers.call(timer_state)
    workers.vector.close()
    return found


SCENARIOS: dict[str, Any] = {"collect": collect, "switch": switch}

if __name__ == "__main__":
    tell(SCENARIOS[sys.argv[4]](sys.argv[2], sys.argv[3]))
