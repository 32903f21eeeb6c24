"""A game in a terminal: its library asks for the terminal's description in C."""

from __future__ import annotations

import ctypes

import gymnasium
import numpy as np

LINES, COLUMNS = 24, 80
ENTRY = 4_096  # bytes of a terminal's description

_C = ctypes.CDLL(None)
_C.malloc.restype = ctypes.c_void_p
_C.malloc.argtypes = [ctypes.c_size_t]
_C.free.argtypes = [ctypes.c_void_p]


class Terminal:
    """The description that the game draws by."""

    def __init__(self) -> None:
        self.entry = self.open()

    def open(self) -> int:
        entry = _C.malloc(ENTRY)
        ctypes.memset(entry, 1, ENTRY)
        return entry

    def close(self) -> None:
        _C.free(self.entry)


class Game(gymnasium.Env):
    """The env; an episode has at most 30 steps."""

    action_space = gymnasium.spaces.Discrete(8)
    observation_space = gymnasium.spaces.Box(0, 255, (LINES, COLUMNS), np.uint8)
    terminal: Terminal | None = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.terminal is not None:
            self.terminal.close()
        self.terminal = Terminal()
        self.screen = np.full((LINES, COLUMNS), 32, np.uint8)
        self.row, self.column, self.steps = 12, 40, 0
        return self.screen.copy(), {}

    def step(self, action):
        self.screen[self.row, self.column] = 46
        self.row = (self.row + (0, 0, 1, -1, 1, 1, -1, -1)[int(action)]) % LINES
        self.column = (self.column + (1, -1, 0, 0, 1, -1, 1, -1)[int(action)]) % COLUMNS
        self.screen[self.row, self.column] = 64
        self.steps += 1
        return self.screen.copy(), 1.0, False, self.steps == 30, {}
