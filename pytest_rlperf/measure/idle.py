"""Who burns CPU time while it is another worker's turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol


class Watched(Protocol):
    """Whose CPU time can be read from outside."""

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, children included."""


class IdleWatch:
    """Adds up what workers use while others measure."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used_s: dict[int, float] = {}
        self._watched_s: dict[int, float] = {}

    @contextmanager
    def while_measuring(self, measuring: Sequence[Watched], waiting: Sequence[Watched]) -> Iterator[None]:
        """Watch those of ``waiting`` that are not ``measuring`` during the body."""
        idle = [worker for worker in waiting if all(worker is not busy for busy in measuring)]
        started_s = self._clock()
        before_s = [worker.cpu_s() for worker in idle]
        yield
        watched_s = self._clock() - started_s
        for worker, used_s in zip(idle, before_s, strict=True):
            key = id(worker)
            self._used_s[key] = self._used_s.get(key, 0.0) + worker.cpu_s() - used_s
            self._watched_s[key] = self._watched_s.get(key, 0.0) + watched_s

    def share(self, worker: Watched) -> float:
        """Return the CPU time ``worker`` used while watched, over the time it was watched."""
        watched_s = self._watched_s.get(id(worker), 0.0)
        return self._used_s[id(worker)] / watched_s if watched_s else 0.0
