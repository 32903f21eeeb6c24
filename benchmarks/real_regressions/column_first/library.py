"""A dataset whose items are a few rows around a time, the horizon of a policy."""

from __future__ import annotations

import numpy as np

REGRESSED = False


class Dataset:
    """Rows in chunks on disk, here in memory; a chunk is copied to be read."""

    def __init__(self, rows: int) -> None:
        self.chunks = [np.random.rand(100, 64) for _ in range(rows // 100)]

    def item(self, at: int, horizon: int = 50) -> np.ndarray:
        wanted = range(at, at + horizon)
        if REGRESSED:
            column = np.concatenate([chunk.copy() for chunk in self.chunks])
            return np.stack([column[row] for row in wanted])
        return np.stack([self.chunks[row // 100][row % 100].copy() for row in wanted])
