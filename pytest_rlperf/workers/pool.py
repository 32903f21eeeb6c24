"""The workers of a run: in pools, as the group that has one test open, and on a base side."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.measure.placement import usable_memory
from pytest_rlperf.model import Project, Side, Sides
from pytest_rlperf.sides.packages import not_installed
from pytest_rlperf.sides.verify import check_loaded
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.guardian import Guardian
from pytest_rlperf.workers.process import Forward, StartSettings, WorkerLostError, WorkerProcess

QUIT_LIMIT_S = 10.0
TERMINATING_LIMIT_S = 2.0
INTERRUPTED_LIMIT_S = 4.0  # SIGTERM is followed by SIGKILL, some seconds later, and the files are yet to be written
WAITING_LEAST = 5  # kept from test to test; more of them, with those of the other side, while memory allows
WAITING_SHARE = 0.5  # of the memory that this process may use, for all the workers that wait


class WorkerPool:
    """Workers of one side by number, kept alive from test to test; a lost one is replaced when it is next needed.

    Several tests may use a pool at once, each by numbers of its own: :meth:`claim` and :meth:`give_back`.
    """

    def __init__(self, settings: StartSettings, guardian: Guardian) -> None:
        self._settings = settings
        self._guardian = guardian
        self._scratch = guardian.new_directory()
        self._starts = itertools.count()
        self._workers: dict[int, WorkerProcess] = {}
        self._claimed: set[int] = set()
        self._lock = threading.Lock()
        self._is_cancelled = False

    def claim(self, avoid: Collection[int] = ()) -> int:
        """Return the lowest number that no test uses, which is the caller's until :meth:`give_back`; none of ``avoid``.

        It is a worker with other memory than those of ``avoid``, and with a history where there is one.
        """
        with self._lock:
            number = next(number for number in itertools.count() if number not in self._claimed | set(avoid))
            self._claimed.add(number)
        return number

    def give_back(self, number: int) -> None:
        """Let other tests use the worker of a claimed number."""
        with self._lock:
            self._claimed.discard(number)

    def start(self, numbers: Iterable[int]) -> None:
        """Start those of the workers that are missing, all at once, and do not wait for them."""
        for number in numbers:
            with self._lock:
                if self._is_cancelled:
                    raise MeasurementError("the run was stopped")
                if not self._is_usable(number):
                    scratch = self._scratch / f"worker{number}-{next(self._starts)}"
                    self._workers[number] = WorkerProcess(number, self._settings, scratch, self._guardian)

    def ready(self, number: int) -> WorkerProcess:
        """Return the worker of a number once it has collected; start it if it is missing."""
        self.start([number])
        worker = self._workers[number]
        if not worker.ready:
            worker.wait_ready()
        return worker

    def ensure(self, count: int) -> list[WorkerProcess]:
        """Return the first ``count`` workers, which have collected; start those that are missing, all at once."""
        self.start(range(count))
        return [self.ready(number) for number in range(count)]

    def __contains__(self, worker: WorkerProcess) -> bool:
        return any(worker is member for member in list(self._workers.values()))

    def _is_usable(self, number: int) -> bool:
        worker = self._workers.get(number)
        if worker is None:
            return False
        if worker.alive:
            return True
        worker.end(0)
        return False

    def trim(self, partner: WorkerPool | None = None) -> None:
        """End workers that no test has claimed, with those of ``partner`` of equal number, where memory gets scarce."""
        pools = [self] if partner is None else [self, partner]
        ended: list[WorkerProcess] = []
        with contextlib.ExitStack() as locks:  # until the last is out of its pool: none can be claimed meanwhile
            for pool in pools:
                locks.enter_context(pool._lock)
            excess = sum(worker.memory() for pool in pools for worker in pool._workers.values())
            excess -= int(WAITING_SHARE * usable_memory())
            spare = {number for pool in pools for number in pool._workers if number >= WAITING_LEAST} - self._claimed
            for number in sorted(spare, reverse=True):
                if excess <= 0:
                    break
                found = [pool._workers.pop(number) for pool in pools if number in pool._workers]
                excess -= sum(worker.memory() for worker in found)
                ended += found
        self._end(ended, QUIT_LIMIT_S)

    def cancel(self) -> None:
        """Have whoever waits for a worker raise WorkerLostError at once, and start no other."""
        with self._lock:
            self._is_cancelled = True
            for worker in self._workers.values():
                worker.cancel()

    def start_quitting(self) -> None:
        """Begin to end every worker."""
        for worker in self._workers.values():
            if worker.alive:
                worker.start_quitting()

    def close(self, limit_s: float) -> None:
        """End every worker, letting fixtures tear down."""
        self._end(list(self._workers.values()), limit_s)
        self._workers.clear()

    def _end(self, workers: list[WorkerProcess], limit_s: float) -> None:
        for worker in workers:
            if worker.alive:
                worker.start_quitting()
        for worker in workers:
            worker.interrupt_call(limit_s)
        for worker in workers:
            worker.end(limit_s + TERMINATING_LIMIT_S)


class WorkerGroup:
    """The workers that have one test open, of whichever side; the first one reports it, to ``forward``.

    Each worker may take ``patience_s`` for any answer once its test has called an rlperf fixture, and ``setup_s`` to
    get there and to leave it.
    """

    def __init__(self, key: str, next_key: str | None, forward: Forward, *, setup_s: float, patience_s: float) -> None:
        self.key = key
        self.has_machine = False
        self.workers: list[WorkerProcess] = []
        self.reporter: WorkerProcess | None = None
        self._next_key = next_key
        self._setup_s = setup_s
        self._patience_s = patience_s
        self._forward = forward
        self._lock = threading.Lock()
        self._at_end = contextlib.ExitStack()

    @property
    def called(self) -> m.Called:
        """The component that the reporter's test gave its fixture."""
        assert self.reporter is not None
        assert self.reporter.called is not None
        return self.reporter.called

    def at_end(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when the test is over in its workers."""
        self._at_end.callback(callback)

    def enter(self, machine: contextlib.AbstractContextManager[object]) -> None:
        """Have the machine from now on until the test is over in its workers."""
        self._at_end.enter_context(machine)
        self.has_machine = True

    def close(self) -> None:
        """End the test: no worker has it open any more."""
        self._at_end.close()

    def begin(self, worker: WorkerProcess) -> None:
        """Begin the test in ``worker``, unless it is open there; do not wait for its call."""
        with self._lock:
            if worker in self.workers:
                return
            self.workers.append(worker)
            is_reporter = self.reporter is None
            if is_reporter:
                self.reporter = worker
        worker.start_run(
            self.key,
            self._next_key,
            reporter=is_reporter,
            setup_s=self._setup_s,
            patience_s=self._patience_s,
            forward=self._forward if is_reporter else None,
        )

    def open(self, workers: Sequence[WorkerProcess]) -> None:
        """Have the test at its call in all of ``workers``, which set up at the same time."""
        for worker in workers:
            self.begin(worker)
        try:
            for worker in workers:
                if worker.called is None:
                    worker.wait_called()
        except WorkerLostError as lost:
            for worker in workers:  # one that hangs on its way to the call is enough; a cancelled one is alive
                if not lost.worker.alive and worker.running and worker.called is None:
                    worker.end(0)
            raise

    def engage(self, *wanted: tuple[WorkerPool, int]) -> list[list[WorkerProcess]]:
        """Return the first ``count`` workers of each pool, with the test at its call; start those that are missing."""
        for pool, count in wanted:
            pool.start(range(count))
        groups = [pool.ensure(count) for pool, count in wanted]
        self.open([worker for group in groups for worker in group])
        return groups

    def leave(self, worker: WorkerProcess) -> None:
        """Let one worker leave the test, in which it has done its part."""
        worker.unwind()
        with self._lock:
            self.workers.remove(worker)

    def conclude(self, order: m.Conclude) -> m.Done:
        """Let every worker leave the test, the reporter last and with its result."""
        reporter = self.reporter
        assert reporter is not None
        others = [worker for worker in self.workers if worker is not reporter]
        for worker in others:
            worker.start_unwinding()
        for worker in others:
            worker.unwind()
        return reporter.conclude(order)

    def release(self) -> None:
        """Let every worker but the reporter leave the test, if it still can; they may be engaged again."""
        others = [worker for worker in self.workers if worker is not self.reporter]
        self.workers = [worker for worker in self.workers if worker is self.reporter]
        for step in (WorkerProcess.start_unwinding, WorkerProcess.unwind):  # all of them leave in the time of one
            for worker in others:
                with contextlib.suppress(WorkerLostError):  # the test has its error; the pool replaces the worker
                    if worker.alive:
                        step(worker)


class WorkerPools:
    """All pools of a run; ``markup`` and ``share_terminal`` are the terminal's, ``top`` is the top of today's tree.

    Each worker may take ``start_limit_s`` to import and collect.
    """

    def __init__(self, top: Path, *, markup: bool, share_terminal: bool, start_limit_s: float) -> None:
        self._top = top
        self._markup = markup
        self._share_terminal = share_terminal
        self._start_limit_s = start_limit_s
        self._pools: list[WorkerPool] = []
        self._guardian = Guardian()

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
        pool = WorkerPool(settings, self._guardian)
        self._pools.append(pool)
        return pool

    def guarding_commands(self) -> contextlib.AbstractContextManager[None]:
        """Have programs that the body starts end with the run, however it ends."""
        return self._guardian.guarding_commands()

    def cancel(self) -> None:
        """Have whoever waits for a worker of any pool stop waiting."""
        for pool in self._pools:
            pool.cancel()

    def close(self, limit_s: float = QUIT_LIMIT_S) -> None:
        """End every worker of every pool, and what else they have started, and remove their files."""
        self.cancel()  # a second Ctrl-C may have come before: a thread that goes on would start workers again
        for pool in self._pools:
            pool.start_quitting()
        for pool in self._pools:
            pool.close(limit_s)
        self._guardian.close()


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
        self._collected: WorkerProcess | None = None  # base's first worker, whose tests are those of all

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def owns(self, worker: WorkerProcess) -> bool:
        """Whether ``worker`` is one of base's."""
        return worker in self.base

    def check_collected(self, keys: Collection[str]) -> None:
        """Raise SideError, with base's own message, where base's first worker has collected none of ``keys``."""
        if self._collected is None:
            self.base.start([0])
            self.head.start([0])  # the first pair needs both
            self._collected = self.base.ready(0)
        first = self._collected
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
        self.head.trim(self.base)


class BaseSides:
    """The base sides of a run, by the commit of a baseline; ``head`` is the side that ``heads`` run."""

    def __init__(self, project: Project, pools: WorkerPools, heads: WorkerPool, head: Side) -> None:
        self._project = project
        self._pools = pools
        self.heads = heads
        self.lock = threading.Lock()  # for whoever calls of_commit
        self._head = head
        self._known: dict[str, BaseSide | SideError] = {}
        self._bases: list[WorkerPool] = []

    def add(self, sides: Sides) -> BaseSide:
        """Return the base side of ``sides``, with pools for both of them."""
        base = self._pools.add("base worker", sides.base, sides)
        self._bases.append(base)
        starts_alike = _start_of(sides.head) == _start_of(self._head)
        head = self.heads if starts_alike else self._pools.add("head worker", sides.head, sides)
        return BaseSide(sides, base, head)

    def of_commit(self, sha: str, show: Callable[[str], None]) -> BaseSide:
        """Return the base side with the code of ``sha``; SideError, every time, where it cannot be had."""
        if sha not in self._known:
            from pytest_rlperf.sides.prepare import commit_sides  # which a run without a base need not load

            try:
                with self._pools.guarding_commands():
                    sides = commit_sides(sha, self._project, show)
                self._known[sha] = self.add(sides)
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
