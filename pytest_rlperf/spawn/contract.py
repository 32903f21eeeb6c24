"""A worker as the measurement uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol, TypeVar

from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Tally, Usage, Warm


class WorkerStoppedError(Exception):
    """A worker cannot go on with its test: its process was lost, or the test ended there."""


class Worker(Protocol):
    """A process with one test open at its call to an rlperf fixture; each method works on that test's component.

    A ``start_`` method returns at once and its ``wait_`` method returns the answer, so that several workers can do the
    same at once. Every method may raise WorkerStoppedError.
    """

    seed: int
    tally: Tally | None  # the counts, once the worker has counted

    @property
    def checked_s(self) -> float | None:
        """The seconds of the first call, its check included; None before that call."""

    def start_check(self) -> None:
        """Begin to run the component once and check it."""

    def wait_checked(self) -> tuple[float, float]:
        """Return the seconds of the checked call and the items it processed."""

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Begin to count ``repetitions`` calls, unless that takes longer than ``limit_s``."""

    def wait_counted(self) -> Tally:
        """Return the counts."""

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Warm up for at most ``limit_s``, and size the slices unless ``shape`` is given.

        ``long`` forces the mean (True) or the median (False) as the figure of a slice. Without ``kernels`` no slice of
        a reference kernel follows.
        """

    def place(self, cpus: Collection[int]) -> None:
        """Keep the worker on ``cpus`` until it leaves the test."""

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take one slice."""

    def usage(self) -> Usage:
        """Return the resources that the process holds by now."""

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far, child processes included."""


AnyWorker = TypeVar("AnyWorker", bound=Worker)
Answer = TypeVar("Answer")


def wait_all(workers: Sequence[AnyWorker], wait: Callable[[AnyWorker], Answer]) -> list[Answer]:
    """Return every worker's answer; WorkerStoppedError of the first that has none, after all were waited for."""
    __tracebackhide__ = True
    failure: WorkerStoppedError | None = None
    answers = []
    for worker in workers:  # all of them: an unread answer would be taken for the answer to the next message
        try:
            answers.append(wait(worker))
        except WorkerStoppedError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return answers


def check(workers: Sequence[Worker]) -> float:
    """Have those of ``workers`` that have not done so run their component once; return the longest seconds."""
    __tracebackhide__ = True
    fresh = [worker for worker in workers if worker.checked_s is None]
    for worker in fresh:
        worker.start_check()
    wait_all(fresh, lambda worker: worker.wait_checked())
    return max(worker.checked_s or 0.0 for worker in workers)
