"""A vector env whose envs are processes that use PyTorch."""

from __future__ import annotations

import multiprocessing

import numpy as np

REGRESSED = False


def _work(connection: multiprocessing.connection.Connection) -> None:
    import torch

    if not REGRESSED:
        torch.set_num_threads(1)
    weights = torch.rand(256, 256)
    while (action := connection.recv()) is not None:
        state = torch.tanh(torch.full((256, 256), float(action)) @ weights)
        connection.send(state[0, :8].numpy())


class SubprocVecEnv:
    """``num_envs`` processes, stepped together."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe() for _ in range(num_envs)]
        self.connections = [here for here, _ in pipes]
        self.workers = [spawn.Process(target=_work, args=(there,), daemon=True) for _, there in pipes]
        for worker in self.workers:
            worker.start()

    def step(self) -> np.ndarray:
        for connection in self.connections:
            connection.send(0.5)
        return np.stack([connection.recv() for connection in self.connections])

    def close(self) -> None:
        for connection, worker in zip(self.connections, self.workers, strict=True):
            connection.send(None)
            worker.join()
