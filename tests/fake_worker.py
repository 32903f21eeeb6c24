from __future__ import annotations

from collections.abc import Collection

from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Tally, Usage, Warm


class FakeWorker:
    """A worker of which a test overrides what it needs; the rest fails when it is used."""

    number = 0
    seed = 0
    checked_s: float | None = None
    tally: Tally | None = None

    def start_check(self) -> None:
        raise AssertionError("this worker has nothing to check")

    def wait_checked(self) -> tuple[float, float]:
        raise AssertionError("this worker has nothing to check")

    def start_count(self, repetitions: int, limit_s: float) -> None:
        raise AssertionError("this worker counts nothing")

    def wait_counted(self) -> Tally:
        raise AssertionError("this worker counts nothing")

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        raise AssertionError("this worker has nothing to warm up")

    def place(self, cpus: Collection[int]) -> None:
        raise AssertionError("this worker stays where it is")

    def take(self, kind: SliceKind) -> SliceRecord:
        raise AssertionError("this worker takes no slices")

    def usage(self) -> Usage:
        return Usage(0, 0, 0, 0, 0, 0, 0, 1, 1)

    def cpu_s(self) -> float:
        return 0.0


class ShownSteps:
    def __init__(self) -> None:
        self.shown: list[str] = []

    def begin(self, test: str) -> None:
        """Do nothing: there is one test."""

    def show(self, step: str) -> None:
        self.shown.append(step)

    def clear(self) -> None:
        """Do nothing: there is no line."""
