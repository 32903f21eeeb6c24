"""The workers of a run: in pools, as the group that has one test open, and on a base side."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model import Project, Side, Sides
from pytest_rlperf.sides.packages import not_installed
from pytest_rlperf.sides.prepare import commit_sides
from pytest_rlperf.sides.verify import check_loaded
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.process import Forward, StartSettings, WorkerLostError, WorkerProcess

QUIT_LIMIT_S = 10.0
WAITING_MOST = 5  # kept from test to test; more are ended with the test that needed them, as each takes its memory


class WorkerPool:
    """Workers of one side, kept alive from test to test; a lost one is replaced when it is next needed."""

    def __init__(self, settings: StartSettings, forward: Forward) -> None:
        self._settings = settings
        self._forward = forward
        self._scratch = Path(tempfile.mkdtemp(prefix="rlperf-"))
        self._starts = itertools.count()
        self._workers: dict[int, WorkerProcess] = {}

    def start(self, count: int) -> None:
        """Start those of ``count`` workers that are missing, all at once, and do not wait for them."""
        for number in range(count):
            if not self._is_usable(number):
                scratch = self._scratch / f"worker{number}-{next(self._starts)}"
                self._workers[number] = WorkerProcess(number, self._settings, scratch, self._forward)

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
        """End every worker, letting fixtures tear down, and remove their files."""
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
    """The workers that have one test open, of whichever side; the first one reports it.

    Each worker may take ``patience_s`` for any answer once its test has called an rlperf fixture, and ``setup_s`` to
    get there and to leave it.
    """

    def __init__(self, key: str, next_key: str | None, *, setup_s: float, patience_s: float) -> None:
        self.key = key
        self.workers: list[WorkerProcess] = []
        self._next_key = next_key
        self._setup_s = setup_s
        self._patience_s = patience_s

    @property
    def reporter(self) -> WorkerProcess | None:
        """The worker whose test the user sees."""
        return self.workers[0] if self.workers else None

    @property
    def called(self) -> m.Called:
        """The component that the reporter's test gave its fixture."""
        assert self.reporter is not None
        assert self.reporter.called is not None
        return self.reporter.called

    def engage(self, *wanted: tuple[WorkerPool, int]) -> list[list[WorkerProcess]]:
        """Return the first ``count`` workers of each pool, with the test at its call; start those that are missing."""
        for pool, count in wanted:
            pool.start(count)
        groups = [pool.ensure(count) for pool, count in wanted]
        fresh = [worker for group in groups for worker in group if worker not in self.workers]
        for worker in fresh:
            self.workers.append(worker)
            worker.start_run(
                self.key,
                self._next_key,
                reporter=worker is self.workers[0],
                setup_s=self._setup_s,
                patience_s=self._patience_s,
            )
        try:
            for worker in fresh:
                worker.wait_called()
        except WorkerLostError:
            self._end_waiting()
            raise
        return groups

    def _end_waiting(self) -> None:
        """End the workers that have not come to the call: one that hangs there is enough."""
        for worker in self.workers:
            if worker.running and worker.called is None:
                worker.end(0)

    def conclude(self, order: m.Conclude) -> m.Done:
        """Let every worker leave the test, the reporter last and with its result."""
        reporter, *others = self.workers
        for worker in others:
            worker.start_unwinding()
        for worker in others:
            worker.unwind()
        return reporter.conclude(order)

    def release(self) -> None:
        """Let every worker but the reporter leave the test, if it still can; they may be engaged again."""
        others, self.workers = self.workers[1:], self.workers[:1]
        for step in (WorkerProcess.start_unwinding, WorkerProcess.unwind):  # all of them leave in the time of one
            for worker in others:
                with contextlib.suppress(WorkerLostError):  # the test has its error; the pool replaces the worker
                    if worker.alive:
                        step(worker)


class WorkerPools:
    """All pools of a run; ``markup`` and ``share_terminal`` are the terminal's, ``top`` is the top of today's tree.

    Each worker may take ``start_limit_s`` to import and collect.
    """

    def __init__(
        self, top: Path, forward: Forward, *, markup: bool, share_terminal: bool, start_limit_s: float
    ) -> None:
        self._top = top
        self._forward = forward
        self._markup = markup
        self._share_terminal = share_terminal
        self._start_limit_s = start_limit_s
        self._pools: list[WorkerPool] = []

    def add(self, name: str, side: Side, sides: Sides | None = None, *, reports: bool = False) -> WorkerPool:
        """Return a new pool of workers of ``side``, one of ``sides`` where two are compared; they are called ``name``.

        The user sees the tests of the first worker of a pool that ``reports``.
        """
        homes = side.homes if sides is None else (*sides.base.homes, *sides.head.homes)
        settings = StartSettings(
            name=name,
            side=side,
            reports=reports,
            markup=self._markup,
            share_terminal=self._share_terminal,
            watched=tuple(str(home) for home in dict.fromkeys((*homes, self._top))),
            packages=() if sides is None else sides.packages,
            foreign=() if sides is None else _homes_of_other(side, sides),
            limit_s=self._start_limit_s,
        )
        pool = WorkerPool(settings, self._forward)
        self._pools.append(pool)
        return pool

    def close(self) -> None:
        """End every worker of every pool."""
        for pool in self._pools:
            pool.close()


def _homes_of_other(side: Side, sides: Sides) -> tuple[str, ...]:
    """Return the homes of the other side that are not this one's too."""
    other = sides.head if side is sides.base else sides.base
    return tuple(str(home) for home in other.homes if home not in side.homes)


class BaseSide:
    """A base side, and the pools that the workers of a pair come from."""

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
        """Raise SideError, with base's own message, where base's first worker has collected none of ``keys``."""
        (first,) = self.base.ensure(1)
        if first.keys.isdisjoint(keys):
            lacks = ", ".join(not_installed(first.errors))
            hint = f" (it needs {lacks}, which is not installed here: install it, then run this again)" if lacks else ""
            raise SideError(
                f"none of the {len(keys)} measured tests can be collected on {self.sides.base.label}, so there is "
                f"nothing to compare with{hint}:\n{first.errors or 'no test of the same name is there'}"
            )

    def may_differ(self, base: WorkerProcess, head: WorkerProcess) -> bool:
        """Whether the files that a pair has loaded so far may differ; SideError where one is the other side's."""
        differs = check_loaded(self.sides, base.loaded, head.loaded, base.importers | head.importers)
        return differs or base.has_children or head.has_children  # files of child processes are unknown

    def trim(self) -> None:
        """End the pairs that only one test needed."""
        self.base.trim()
        self.head.trim()


class BaseSides:
    """The base sides of a run, by the commit of a baseline; ``head`` is the side that ``heads`` run."""

    def __init__(self, project: Project, pools: WorkerPools, heads: WorkerPool, head: Side) -> None:
        self._project = project
        self._pools = pools
        self._heads = heads
        self._head = head
        self._known: dict[str, BaseSide | SideError] = {}
        self._bases: list[WorkerPool] = []

    def add(self, sides: Sides) -> BaseSide:
        """Return the base side of ``sides``, with pools for both of them."""
        base = self._pools.add("base worker", sides.base, sides)
        self._bases.append(base)
        starts_alike = _start_of(sides.head) == _start_of(self._head)
        head = self._heads if starts_alike else self._pools.add("head worker", sides.head, sides)
        return BaseSide(sides, base, head)

    def of_commit(self, sha: str, show: Callable[[str], None]) -> BaseSide:
        """Return the base side with the code of ``sha``; SideError, every time, where it cannot be had."""
        if sha not in self._known:
            try:
                self._known[sha] = self.add(commit_sides(sha, self._project, show))
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
        """Answer with ``error`` from now on where ``base_side`` is wanted."""
        for sha, known in self._known.items():
            if known is base_side:
                self._known[sha] = error


def _start_of(side: Side) -> tuple[object, ...]:
    """Return the settings that a worker's start depends on."""
    return side.python, side.path, side.directory, side.args, side.files, dict(side.environment)
