"""The workers that have one test at its call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from pytest_rlperf.measure import messages as m
from pytest_rlperf.measure.pool import Pool
from pytest_rlperf.measure.process import LeftEarlyError, Worker, WorkerLostError

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


class Crew:
    """The workers engaged with one test, of whichever side; the first one engaged reports it.

    Each worker may take ``patience_s`` for any answer once its test has called an rlperf fixture.
    """

    def __init__(self, key: str, next_key: str | None, patience_s: float) -> None:
        self.key = key
        self.workers: list[Worker] = []
        self._next_key = next_key
        self._patience_s = patience_s

    @property
    def reporter(self) -> Worker | None:
        """The worker whose test the user sees."""
        return self.workers[0] if self.workers else None

    @property
    def called(self) -> m.Called:
        """What the reporter's test called its fixture with."""
        assert self.reporter is not None
        assert self.reporter.called is not None
        return self.reporter.called

    def engage(self, *wanted: tuple[Pool, int]) -> list[list[Worker]]:
        """Return the first so many workers of each pool, with the test at its call; what is missing starts at once."""
        for pool, count in wanted:
            pool.start(count)
        groups = [pool.ensure(count) for pool, count in wanted]
        fresh = [worker for group in groups for worker in group if worker not in self.workers]
        for worker in fresh:
            self.workers.append(worker)
            worker.start_run(self.key, self._next_key, reporter=worker is self.workers[0], patience_s=self._patience_s)
        for worker in fresh:
            worker.wait_called()
        return groups

    def conclude(self, order: m.Conclude) -> m.Done:
        """Let every worker leave the test, the reporter last and with its result."""
        reporter, *others = self.workers
        for worker in others:
            worker.start_unwinding()
        for worker in others:
            worker.unwind()
        return reporter.conclude(order)

    def release(self) -> None:
        """Let every worker but the reporter leave the test, if it still can; the others may be engaged anew."""
        others, self.workers = self.workers[1:], self.workers[:1]
        for worker in others:
            try:
                if worker.alive:
                    worker.unwind()
            except WorkerLostError:
                continue  # one reason is enough; the pool replaces it


def check(workers: Sequence[Worker]) -> float:
    """Have those of ``workers`` that have not yet done it run their component once, and return the longest seconds."""
    fresh = [worker for worker in workers if worker.checked_s is None]
    for worker in fresh:
        worker.start_check()
    wait_all(fresh, Worker.wait_checked)
    return max(worker.checked_s or 0.0 for worker in workers)


def wait_all(workers: Sequence[Asked], wait: Callable[[Asked], Answer]) -> list[Answer]:
    """Wait for the answer of every one of ``workers``; the first that has none is what is raised, in the end."""
    __tracebackhide__ = True
    failure: LeftEarlyError | WorkerLostError | None = None
    answers = []
    for worker in workers:  # all of them: an answer left unread would be taken for the next one's
        try:
            answers.append(wait(worker))
        except (LeftEarlyError, WorkerLostError) as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers
