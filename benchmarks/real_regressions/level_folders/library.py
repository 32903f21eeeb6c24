"""A dungeon whose game reads its levels from a folder of its own."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

SIZE = 21


class Game:
    """The game, which runs in a folder with the compiled level."""

    def __init__(self, level: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="minihack"))
        (self.folder / "level.des").write_text(level, encoding="utf-8")
        self.map = self.load()

    def load(self) -> np.ndarray:
        text = (self.folder / "level.des").read_text(encoding="utf-8")
        return np.array([[ord(sign) for sign in line] for line in text.splitlines()], np.uint8)

    def close(self) -> None:
        shutil.rmtree(self.folder)


class Dungeon(gymnasium.Env):
    """Each episode has a level of its own."""

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
    game: Game | None = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        walls = self.np_random.random((SIZE, SIZE)) < 0.2
        if self.game is not None:
            self.game.close()
        self.game = Game("\n".join("".join("#" if wall else "." for wall in row) for row in walls))
        self.place, self.steps = np.array([1, 1]), 0
        return self.observation(), {}

    def observation(self) -> np.ndarray:
        view = self.game.map.copy()
        view[tuple(self.place)] = ord("@")
        return view

    def step(self, action):
        move = ((0, 1), (1, 0), (0, -1), (-1, 0))[int(action)]
        self.place = np.clip(self.place + move, 0, SIZE - 1)
        self.steps += 1
        lost = self.game.map[tuple(self.place)] == ord("#")
        return self.observation(), -float(lost), bool(lost), self.steps == 50, {}

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None
