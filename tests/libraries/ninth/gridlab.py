"""A made-up library: grids that step many envs at once, a memory, and advantages, none of them named as usual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Grids:
    """Envs that begin anew within the step that ends an episode."""

    def __init__(self, make: Callable[[], Any], num_envs: int) -> None:
        self.envs = [make() for _ in range(num_envs)]
        self.num_envs = num_envs

    def begin(self) -> Any:
        return np.stack([env.reset()[0] for env in self.envs])

    def advance(self, moves: Any) -> tuple[Any, Any, Any]:
        rows = [self._advance(env, move) for env, move in zip(self.envs, moves, strict=True)]
        obs, rewards, over = map(np.array, zip(*rows, strict=True))
        return obs, rewards, over

    def _advance(self, env: Any, move: Any) -> tuple[Any, float, bool]:
        obs, reward, terminated, truncated, _ = env.step(move)
        over = terminated or truncated
        return (env.reset()[0] if over else obs), reward, over


class Memory:
    """Rows, of which as many are drawn as one likes."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def sample(self, *, how_many: int) -> Any:
        return self.rows[np.random.randint(len(self.rows), size=how_many)]


def credit(pay: Any, worth: Any, over: Any, discount: float, decay: float) -> Any:
    """Return advantages; ``worth`` has a row more than there are steps."""
    credits, following = np.zeros_like(pay), np.zeros_like(pay[0])
    for step in reversed(range(len(pay))):
        going_on = 1 - over[step]
        surprise = pay[step] + discount * going_on * worth[step + 1] - worth[step]
        credits[step] = following = surprise + discount * decay * going_on * following
    return credits
