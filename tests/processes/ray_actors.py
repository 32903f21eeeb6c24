"""Actors of a local Ray: OUT SCENARIO."""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import Any

import ray
from worlds import ROUNDS, STEPS, WORKERS, Room, tell, timer_state

from pytest_rlperf import timers
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.timers import hierarchical_timer


class RolloutWorker:
    def __init__(self) -> None:
        self.room = Room()
        self.room.reset()

    def sample(self, steps: int) -> None:
        with hierarchical_timer("sample"):
            for _ in range(steps):
                self.room.step(0)

    def take_timers(self) -> TimerTree:
        return timers.reset()

    def timer_state(self) -> tuple[bool, bool]:
        return timer_state()


# By a call, as the decorator would leave nothing of the class; of any type, as Ray's is less than its actors can do.
Actor: Any = ray.remote(num_cpus=0)(RolloutWorker)


def collect() -> object:
    with hierarchical_timer("collect"):
        environment = {"env_vars": timers.child_environment()}
        actors = [Actor.options(runtime_env=environment).remote() for _ in range(WORKERS)]
        for _ in range(ROUNDS):
            with hierarchical_timer("wait"):
                ray.get([actor.sample.remote(STEPS) for actor in actors])
            for number, tree in enumerate(ray.get([actor.take_timers.remote() for actor in actors])):
                timers.merge_tree(tree, "workers", worker=f"worker {number}")
    return timers.snapshot()


def share() -> object:
    """Return the tree of an actor that runs several calls at once, in threads of Ray's."""
    environment = {"env_vars": timers.child_environment()}
    actor = Actor.options(runtime_env=environment, max_concurrency=2).remote()
    ray.get([actor.sample.remote(STEPS) for _ in range(4)])
    return ray.get(actor.take_timers.remote())


def switch() -> object:
    """Return the states of the driver and of an actor that starts as it is, again where it can be switched on."""
    found = []
    for turn in (None, timers.enable) if timers.ARMED else (None,):
        if turn is not None:
            turn()
        actor = Actor.options(runtime_env={"env_vars": timers.child_environment()}).remote()
        found += [timer_state(), ray.get(actor.timer_state.remote())]
    return found


def main(scenario: str) -> object:
    # The shortest folder there is: paths of sockets are limited to some hundred characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",  # none that happens to run already
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            _temp_dir=folder,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        try:
            return {"collect": collect, "share": share, "switch": switch}[scenario]()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    tell(main(sys.argv[2]))
