"""The one loop of a run: jobs are generators, which yield requests and are resumed with the results.

Only the processes that jobs wait for run concurrently. A job that is closed sends its last messages, and waits for
nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

T = TypeVar("T")
_REFRESH_S = 0.1  # between two looks at the clock, while no process has anything to say
_TURN_MOST_S = 5.0  # a turn that took longer, or in which this process was stopped, shows no silence of others
PAIRS_MOST = 4  # of one test at once: more would be begun in vain if the first of them decide
_AT_ONCE = 1000  # messages from one process: a connection holds fewer


class Awaited(Protocol):
    """A process that jobs wait for, and that sends something at least every ``silence_s``."""

    connection: Connection
    silence_s: float

    def read(self) -> object:
        """Read a message that has begun to arrive; return it if it ends the waiting, else None; or raise an error."""

    def ended(self) -> Exception:
        """Return the error of a process that was ended while a job waited for it."""

    def overdue(self, limit_s: float) -> Exception:
        """End the process, which has not answered within ``limit_s``, and return the error."""


class Request(Generic[T]):
    """A request that a job yields; the type of ``yield from`` it is that of the value that resumes the job."""

    def __iter__(self) -> Steps[T]:
        value: T = yield self
        return value


class Reply(Request[Any], msgspec.Struct, frozen=True, eq=False):
    """Wait for the reply of a process, for at most ``limit_s``; the job is resumed with the reply, or with an error."""

    process: Awaited
    limit_s: float


class Lane(Request["Held"], msgspec.Struct, frozen=True, eq=False):
    """Wait for a lane, or for the ``whole`` machine.

    ``test`` and ``pair`` are its place in the run.
    """

    test: int
    pair: int = 0
    whole: bool = False


class Spawn(Request["Job[T]"], msgspec.Struct, Generic[T], frozen=True, eq=False):
    """Begin another job; this job is resumed with it at once."""

    steps: Steps[T]


class AnyOf(Request["list[Job[Any]]"], msgspec.Struct, frozen=True, eq=False):
    """Wait until one of ``jobs`` is done; the job is resumed with those that are."""

    jobs: Sequence[Job[Any]]


Steps: TypeAlias = Generator[Request[Any], Any, T]
"""A job's way: it yields requests, and returns its result."""


@contextlib.contextmanager
def if_broken_off(undo: Callable[..., None], *args: object) -> Iterator[None]:
    """Return a context that undoes something if its block is broken off, by an error or because its job is closed."""
    try:
        yield
    except BaseException:
        undo(*args)
        raise


def all_done(jobs: Sequence[Job[Any]]) -> Steps[None]:
    """Wait until all jobs are done, including those that are added meanwhile."""
    while under_way := [job for job in jobs if not job.is_done]:
        yield from AnyOf(under_way)


class Job(Generic[T]):
    """A generator under way; ``wants`` is its last request. A job that is broken off leaves the queue for lanes."""

    def __init__(self, steps: Steps[T], lanes: Lanes) -> None:
        self.steps = steps
        self._lanes = lanes
        self.wants: Request[Any] | None = None
        self.is_done = False
        self.due_s = self.silent_s = 0.0
        self._result: T | None = None
        self._error: BaseException | None = None

    def outcome(self) -> T:
        """Return the result, or raise the error, of a job that is done."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def resume(self, value: object = None, error: Exception | None = None) -> None:
        """Go on with the result of the last request, until the next one."""
        self.wants = None
        try:
            self.wants = self.steps.send(value) if error is None else self.steps.throw(error)
        except StopIteration as stop:
            self._result, self.is_done = stop.value, True
        except Exception as raised:
            self._error, self.is_done = raised, True

    def close(self) -> None:
        """Break off the job where it stands, and release what it holds."""
        if not self.is_done:
            self.is_done = True
            if isinstance(self.wants, Lane):
                self._lanes.withdraw(self.wants)
            self.steps.close()


class Held:
    """A lane, or the whole machine, until it is released; ``cpu`` is None if the kernel places all work."""

    def __init__(self, lanes: Lanes, cpu: int | None, width: int) -> None:
        self.cpu = cpu
        self._lanes = lanes
        self._width = width

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole machine."""
        return self._width == self._lanes.count

    def narrow(self) -> None:
        """Keep only one lane."""
        self._lanes.give_back([], self._width - 1)
        self._width = 1

    def release(self) -> None:
        """Give back the lane, once."""
        if self._width:
            self._lanes.give_back([self.cpu], self._width)
        self._width = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Lanes:
    """Hands out CPUs to jobs that measure: ``count`` at once, or all CPUs to one job.

    Earlier tests come first, and within a test the earlier pairs. ``cpus`` are those to choose from, none if the kernel
    places all work. If there are more CPUs than lanes, they take turns: one may be slower for a while. A test begins
    ``pairs_most`` pairs at once. Memory has ``room`` for a number of pairs, each of ``pair_bytes``; until that is
    known, for the pairs of one test.
    """

    def __init__(self, count: int, cpus: Collection[int], pairs_most: int = PAIRS_MOST) -> None:
        self.count = count
        self.pairs_most = min(count, pairs_most)
        self.room = self.pairs_most
        self.pair_bytes: int | None = None
        self.has_cpus = len(cpus) >= count
        self._cpus: list[int | None] = list(cpus) if self.has_cpus else [None] * count
        self._used = 0
        self._queue: list[tuple[int, int, int, Lane]] = []
        self._arrivals = itertools.count()

    @property
    def free(self) -> int:
        """The number of lanes that nobody has or waits for."""
        return 0 if self._queue else max(0, self.room - self._used)

    def fit(self, pair_bytes: int, free_bytes: int) -> None:
        """Learn how much memory a pair takes; ``free_bytes`` are free beside the first pair."""
        self.pair_bytes = pair_bytes
        self.room = min(self.count, 1 + free_bytes // max(1, pair_bytes))

    def want(self, request: Lane) -> None:
        """Put a request into the queue."""
        self._queue.append((request.test, request.pair, next(self._arrivals), request))

    def grant(self) -> tuple[Lane, Held] | None:
        """Return the first request and its lane, if that is free; later requests do not overtake it."""
        if not self._queue:
            return None
        first = min(self._queue)
        width, most = (self.count, self.count) if first[3].whole else (1, self.room)
        if self._used + width > most:
            return None
        self._queue.remove(first)
        self._used += width
        return first[3], Held(self, self._cpus.pop(0), width)

    def withdraw(self, request: Lane) -> None:
        """Take the request of a job that was broken off out of the queue."""
        self._queue = [entry for entry in self._queue if entry[3] is not request]

    def give_back(self, cpus: Sequence[int | None], width: int) -> None:
        """Take back the CPUs and lanes that were held."""
        self._used -= width
        self._cpus += cpus


class Schedule:
    """Runs jobs side by side; ``awaited`` returns the processes that owe a reply, and ``tick`` is called in between."""

    def __init__(
        self,
        lanes: Lanes,
        awaited: Callable[[], Iterable[Awaited]],
        tick: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lanes = lanes
        self._awaited = awaited
        self._tick = tick
        self._clock = clock
        self._jobs: list[Job[Any]] = []
        self._listened_s = clock()

    def run(self, steps: Steps[T]) -> T:
        """Run a job, and all jobs that it begins, until it is done; then break off the others."""
        job = self._begin(steps)
        try:
            while not job.is_done:
                self._turn()
            return job.outcome()
        finally:
            for each in self._jobs[::-1]:
                each.close()

    def _begin(self, steps: Steps[T]) -> Job[T]:
        job = Job(steps, self.lanes)
        self._jobs.append(job)
        self._resume(job)
        return job

    def _resume(self, job: Job[Any], value: object = None, error: Exception | None = None) -> None:
        """Go on with a job, up to a request that takes time."""
        job.resume(value, error)
        while isinstance(job.wants, Spawn):
            job.resume(self._begin(job.wants.steps))
        if isinstance(job.wants, Lane):
            self.lanes.want(job.wants)
        elif isinstance(job.wants, Reply):
            job.due_s, job.silent_s = self._clock() + job.wants.limit_s, 0.0

    def _turn(self) -> None:
        """Resume a job that can go on, with a lane or with the jobs that are done; if none can, wait for a process."""
        self._jobs = [job for job in self._jobs if not job.is_done]
        if (granted := self.lanes.grant()) is not None:
            request, held = granted
            self._resume(next(job for job in self._jobs if job.wants is request), held)
            return
        for job in self._jobs:
            if isinstance(job.wants, AnyOf) and (done := [each for each in job.wants.jobs if each.is_done]):
                self._resume(job, done)
                return
        self._listen()
        self._tick()

    def _listen(self) -> None:
        """Read the messages of processes, and end processes that are overdue."""
        waiting = {id(job.wants.process): job for job in self._jobs if isinstance(job.wants, Reply)}
        processes = {process.connection: process for process in self._awaited()}
        left_s = [job.due_s - self._clock() for job in waiting.values()]
        turn_s = min(self._clock() - self._listened_s, _TURN_MOST_S)
        self._listened_s = self._clock()
        for each in waiting.values():
            each.silent_s += turn_s
        ready = wait(list(processes), max(0.0, min([_REFRESH_S, *left_s])))
        for connection in ready:
            process = processes[connection]  # type: ignore[index]
            job = waiting.get(id(process))
            reply, error = _said_by(process)
            if job is None or job.is_done:
                continue
            job.silent_s = 0.0
            if reply is not None or error is not None:
                del waiting[id(process)]
                self._resume(job, reply, error)
        for each in waiting.values():
            if (
                not each.is_done
                and isinstance(each.wants, Reply)
                and (fault := self._fault(each, each.wants)) is not None
            ):
                self._resume(each, error=fault)

    def _fault(self, job: Job[Any], wants: Reply) -> Exception | None:
        """Return why a process that a job waits for will not answer; None if it may."""
        process = wants.process
        if process.connection.closed:
            return process.ended()
        if job.due_s <= self._clock():
            return process.overdue(wants.limit_s)
        return process.overdue(process.silence_s) if job.silent_s >= process.silence_s else None


def _said_by(process: Awaited) -> tuple[object, Exception | None]:
    """Read a process's messages so far, up to its reply or its error: a reply that has come saves the process.

    A process that sends more and more is read again later, once others have had their turn.
    """
    for _ in range(_AT_ONCE):
        try:
            reply = process.read()
        except Exception as raised:
            return None, raised
        if reply is not None or process.connection.closed or not process.connection.poll():
            return reply, None
    return None, None
