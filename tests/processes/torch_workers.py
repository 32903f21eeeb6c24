"""Workers of torch.multiprocessing that put their trees into a queue: OUT START_METHOD."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.multiprocessing
from worlds import ROUNDS, STEPS, WORKERS, Room, tell

from pytest_rlperf import timers
from pytest_rlperf.timers import hierarchical_timer, timed


@timed(name="forward")
def forward(observation: torch.Tensor) -> torch.Tensor:
    return observation.sum()


def work(trees: Any) -> None:
    """Take the steps of a rollout, and report after each round."""
    torch.set_num_threads(1)
    room = Room()
    room.reset()
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            observation = room.step(0)[0]
            forward(torch.from_numpy(observation))
        trees.put(timers.reset())


def main(start_method: str) -> object:
    context: Any = torch.multiprocessing.get_context(start_method)
    trees = context.Queue()
    with hierarchical_timer("collect"):
        workers = [context.Process(target=work, args=(trees,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for _ in range(WORKERS * ROUNDS):
            with hierarchical_timer("wait"):
                tree = trees.get(timeout=40)
            timers.merge_tree(tree, "workers")
        for worker in workers:
            worker.join()
    return timers.snapshot()


if __name__ == "__main__":
    tell(main(sys.argv[2]))
