"""Demonstrations that a thread decodes while an agent learns from those before."""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections.abc import Iterator

import numpy as np

EPISODES = 12
STEPS = 64


class Demonstrations:
    """Recorded episodes, compressed in memory."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        frames = [generator.integers(0, 8, (STEPS, 32, 32), dtype=np.uint8) for _ in range(EPISODES)]
        self.recorded = [zlib.compress(each.tobytes(), 1) for each in frames]

    def decode(self, number: int) -> np.ndarray:
        return np.frombuffer(zlib.decompress(self.recorded[number]), np.uint8).reshape(STEPS, 32, 32)

    def sarsd_iter(self) -> Iterator[np.ndarray]:
        """Yield the observations of all episodes in a random order, each decoded ahead of time."""
        ready: queue.Queue[np.ndarray | None] = queue.Queue(maxsize=2)
        wanted = threading.Event()
        wanted.set()

        def put(episode: np.ndarray | None) -> None:
            while wanted.is_set():
                with contextlib.suppress(queue.Full):
                    ready.put(episode, timeout=0.05)
                    return

        def load() -> None:
            for number in np.random.permutation(EPISODES):
                if not wanted.is_set():
                    return
                put(self.decode(number))
            put(None)

        loader = threading.Thread(target=load, daemon=True)
        loader.start()
        try:
            while (episode := ready.get()) is not None:
                yield from episode
        finally:
            wanted.clear()
            loader.join()


def first_batch(data: Demonstrations, size: int) -> np.ndarray:
    """Return the first observations of a new pass."""
    steps = data.sarsd_iter()
    batch = np.stack([next(steps) for _ in range(size)])
    steps.close()
    return batch
