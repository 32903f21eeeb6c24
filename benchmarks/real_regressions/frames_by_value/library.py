"""An env in a process of its own that writes its frames to memory shared with the learner."""

from __future__ import annotations

import multiprocessing

import numpy as np

REGRESSED = False
SHAPE = (84, 84)


class Writer:
    """Frames in shared memory."""

    def __init__(self) -> None:
        self.shared = multiprocessing.RawArray("B", int(np.prod(SHAPE)))
        self.view = np.frombuffer(self.shared, np.uint8)
        self.frame = np.random.randint(0, 256, SHAPE, np.uint8)

    def write(self) -> None:
        if REGRESSED:
            self.shared[:] = self.frame.ravel().tolist()
        else:
            self.view[:] = self.frame.ravel()

    def step(self) -> np.ndarray:
        self.frame = np.roll(self.frame, 1, axis=0)
        self.write()
        return self.view
