"""The workers of a session."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_rlperf.errors import SideError
from pytest_rlperf.model import Project, Side, Sides
from pytest_rlperf.sides.prepare import commit_sides
from pytest_rlperf.sides.verify import check_loaded
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.process import Launch, LeftEarlyError, Worker, WorkerLostError

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


MakePool = Callable[[Launch], Pool]
MakeLaunch = Callable[[str, Side, Sides | None], Launch]


class Opponent:
    """A base side, and the pools that a pair's workers come from."""

    def __init__(self, sides: Sides, base: Pool, head: Pool) -> None:
        self.sides = sides
        self.base = base
        self.head = head

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def owns(self, worker: Worker) -> bool:
        """Whether ``worker`` is one of base's."""
        return worker in self.base

    def check_collected(self, keys: Collection[str]) -> None:
        """Raise SideError, with base's own words, where base's first worker has collected none of ``keys``."""
        (first,) = self.base.ensure(1)
        if first.keys.isdisjoint(keys):
            raise SideError(
                f"none of the {len(keys)} measured tests can be collected on {self.sides.base.label}, so there is "
                f"nothing to compare with:\n{first.errors or 'no test of the same name is there'}"
            )

    def may_differ(self, base: Worker, head: Worker) -> bool:
        """Verify what a pair has loaded so far; return whether it may differ.

        SideError where a side has loaded the other's.
        """
        differs = check_loaded(self.sides, base.loaded, head.loaded, base.importers | head.importers)
        return differs or base.has_children or head.has_children  # whose files nobody sees

    def trim(self) -> None:
        """End the pairs that only one test needed."""
        self.base.trim()
        self.head.trim()


class Opponents:
    """The opponents of a run, by the commit that a baseline names."""

    def __init__(self, project: Project, heads: Pool, own: Side, launch: MakeLaunch, make_pool: MakePool) -> None:
        self._project = project
        self._heads = heads
        self._own = own
        self._launch = launch
        self._make_pool = make_pool
        self._known: dict[str, Opponent | SideError] = {}
        self._pools: list[Pool] = []
        self._bases: list[Pool] = []

    def meet(self, sides: Sides) -> Opponent:
        """Return the opponent that ``sides`` describe."""
        base = self.pool(self._launch("base worker", sides.base, sides))
        self._bases.append(base)
        alike = _starts(sides.head) == _starts(self._own)
        head = self._heads if alike else self.pool(self._launch("head worker", sides.head, sides))
        return Opponent(sides, base, head)

    def of_commit(self, sha: str, progress: Callable[[str], None]) -> Opponent:
        """Return the opponent that is the code of ``sha``; SideError where it cannot be had, every time."""
        if sha not in self._known:
            try:
                self._known[sha] = self.meet(commit_sides(sha, self._project, progress))
            except SideError as error:
                self._known[sha] = error
        found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def is_base(self, worker: Worker) -> bool:
        """Whether ``worker`` is one of a base side's."""
        return any(worker in base for base in self._bases)

    def give_up(self, opponent: Opponent, error: SideError) -> None:
        """Remember that ``opponent`` cannot be compared with after all."""
        for sha, known in self._known.items():
            if known is opponent:
                self._known[sha] = error

    def close(self) -> None:
        """End every worker but those of the run's own pool."""
        for pool in self._pools:
            pool.close()

    def pool(self, launch: Launch) -> Pool:
        """Return a pool of workers that ends with the run."""
        pool = self._make_pool(launch)
        self._pools.append(pool)
        return pool


def _starts(side: Side) -> tuple[object, ...]:
    """Return all that a worker's start depends on."""
    return side.python, side.path, side.directory, side.args, side.files, dict(side.environment)
