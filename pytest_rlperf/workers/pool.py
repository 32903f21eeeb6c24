"""The workers of a session."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model import Project, Side, Sides
from pytest_rlperf.sides.prepare import commit_sides
from pytest_rlperf.sides.verify import check_loaded
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.process import Launch, WorkerLostError, WorkerProcess

QUIT_LIMIT_S = 10.0
WAITING_MOST = 5  # kept from test to test; more are ended with the test that needed them, as each takes its memory


class WorkerPool:
    """The workers of a session, kept alive from test to test; a lost one is replaced when it is next needed."""

    def __init__(self, launch: Launch, relay: Callable[[m.Reported | m.Warned], None]) -> None:
        self._launch = launch
        self._relay = relay
        self._scratch = Path(tempfile.mkdtemp(prefix="rlperf-"))
        self._births = itertools.count()
        self._workers: dict[int, WorkerProcess] = {}

    def start(self, count: int) -> None:
        """Start what is missing of ``count`` workers, all at once, and do not wait for them."""
        for number in range(count):
            if not self._is_usable(number):
                scratch = self._scratch / f"worker{number}-{next(self._births)}"
                self._workers[number] = WorkerProcess(number, self._launch, scratch, self._relay)

    def ensure(self, count: int) -> list[WorkerProcess]:
        """Return ``count`` workers that have collected, starting those that are missing."""
        self.start(count)
        for number in range(count):
            if not self._workers[number].ready:
                self._workers[number].wait_ready()
        return [self._workers[number] for number in range(count)]

    def __contains__(self, worker: WorkerProcess) -> bool:
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

    def _end(self, workers: list[WorkerProcess]) -> None:
        deadline = time.monotonic() + QUIT_LIMIT_S
        for worker in workers:
            if worker.alive:
                worker.start_quitting()
        for worker in workers:
            worker.end(max(0.0, deadline - time.monotonic()))


class WorkerGroup:
    """The workers engaged with one test, of whichever side; the first one engaged reports it.

    Each worker may take ``patience_s`` for any answer once its test has called an rlperf fixture.
    """

    def __init__(self, key: str, next_key: str | None, patience_s: float) -> None:
        self.key = key
        self.workers: list[WorkerProcess] = []
        self._next_key = next_key
        self._patience_s = patience_s

    @property
    def reporter(self) -> WorkerProcess | None:
        """The worker whose test the user sees."""
        return self.workers[0] if self.workers else None

    @property
    def called(self) -> m.Called:
        """What the reporter's test called its fixture with."""
        assert self.reporter is not None
        assert self.reporter.called is not None
        return self.reporter.called

    def engage(self, *wanted: tuple[WorkerPool, int]) -> list[list[WorkerProcess]]:
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


MakePool = Callable[[Launch], WorkerPool]
MakeLaunch = Callable[[str, Side, Sides | None], Launch]


class BaseSide:
    """A base side, and the pools that a pair's workers come from."""

    def __init__(self, sides: Sides, base: WorkerPool, head: WorkerPool) -> None:
        self.sides = sides
        self.base = base
        self.head = head

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def owns(self, worker: WorkerProcess) -> bool:
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

    def may_differ(self, base: WorkerProcess, head: WorkerProcess) -> bool:
        """Verify what a pair has loaded so far; return whether it may differ.

        SideError where a side has loaded the other's.
        """
        differs = check_loaded(self.sides, base.loaded, head.loaded, base.importers | head.importers)
        return differs or base.has_children or head.has_children  # whose files nobody sees

    def trim(self) -> None:
        """End the pairs that only one test needed."""
        self.base.trim()
        self.head.trim()


class BaseSides:
    """The base sides of a run, by the commit that a baseline names."""

    def __init__(self, project: Project, heads: WorkerPool, own: Side, launch: MakeLaunch, make_pool: MakePool) -> None:
        self._project = project
        self._heads = heads
        self._own = own
        self._launch = launch
        self._make_pool = make_pool
        self._known: dict[str, BaseSide | SideError] = {}
        self._pools: list[WorkerPool] = []
        self._bases: list[WorkerPool] = []

    def meet(self, sides: Sides) -> BaseSide:
        """Return the base side that ``sides`` describe."""
        base = self.pool(self._launch("base worker", sides.base, sides))
        self._bases.append(base)
        alike = _starts(sides.head) == _starts(self._own)
        head = self._heads if alike else self.pool(self._launch("head worker", sides.head, sides))
        return BaseSide(sides, base, head)

    def of_commit(self, sha: str, progress: Callable[[str], None]) -> BaseSide:
        """Return the base side that is the code of ``sha``; SideError where it cannot be had, every time."""
        if sha not in self._known:
            try:
                self._known[sha] = self.meet(commit_sides(sha, self._project, progress))
            except SideError as error:
                self._known[sha] = error
        found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def is_base(self, worker: WorkerProcess) -> bool:
        """Whether ``worker`` is one of a base side's."""
        return any(worker in base for base in self._bases)

    def give_up(self, base_side: BaseSide, error: SideError) -> None:
        """Remember that ``base_side`` cannot be compared with after all."""
        for sha, known in self._known.items():
            if known is base_side:
                self._known[sha] = error

    def close(self) -> None:
        """End every worker but those of the run's own pool."""
        for pool in self._pools:
            pool.close()

    def pool(self, launch: Launch) -> WorkerPool:
        """Return a pool of workers that ends with the run."""
        pool = self._make_pool(launch)
        self._pools.append(pool)
        return pool


def _starts(side: Side) -> tuple[object, ...]:
    """Return all that a worker's start depends on."""
    return side.python, side.path, side.directory, side.args, side.files, dict(side.environment)
