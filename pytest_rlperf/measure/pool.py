"""The workers of a session."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_rlperf.measure import messages as m
from pytest_rlperf.measure.launch import Launch
from pytest_rlperf.measure.process import Worker

QUIT_LIMIT_S = 10.0
WAITING_MOST = 5  # kept from test to test; more are ended with the test that needed them, as each takes its memory


class Pool:
    """The workers of a session, kept alive from test to test; a lost one is replaced when it is next needed."""

    def __init__(self, launch: Launch, relay: Callable[[m.Reported | m.Warned], None]) -> None:
        self._launch = launch
        self._relay = relay
        self._scratch = Path(tempfile.mkdtemp(prefix="rlperf-"))
        self._births = itertools.count()
        self._workers: dict[int, Worker] = {}

    def start(self, count: int) -> None:
        """Start what is missing of ``count`` workers, all at once, and do not wait for them."""
        for number in range(count):
            if not self._is_usable(number):
                scratch = self._scratch / f"worker{number}-{next(self._births)}"
                self._workers[number] = Worker(number, self._launch, scratch, self._relay)

    def ensure(self, count: int) -> list[Worker]:
        """Return ``count`` workers that have collected, starting those that are missing."""
        self.start(count)
        for number in range(count):
            if not self._workers[number].ready:
                self._workers[number].wait_ready()
        return [self._workers[number] for number in range(count)]

    def __contains__(self, worker: Worker) -> bool:
        return any(worker is member for member in self._workers.values())

    def _is_usable(self, number: int) -> bool:
        worker = self._workers.get(number)
        if worker is None:
            return False
        if worker.alive:
            return True
        worker.end(0)
        return False

    def trim(self) -> None:
        """End the workers that only one test needed."""
        self._end([self._workers.pop(number) for number in list(self._workers) if number >= WAITING_MOST])

    def close(self) -> None:
        """End every worker, letting fixtures tear down, and remove what they wrote."""
        self._end(list(self._workers.values()))
        self._workers.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _end(self, workers: list[Worker]) -> None:
        deadline = time.monotonic() + QUIT_LIMIT_S
        for worker in workers:
            if worker.alive:
                worker.start_quitting()
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))
