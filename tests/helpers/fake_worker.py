from __future__ import annotations

from typing import Any, TypeVar

from pytest_rlperf import wire
from pytest_rlperf.model.measured import SystemVSegment, Usage
from pytest_rlperf.pair.processes import Worker

T = TypeVar("T")


def checked_in(seconds: float, items: float = 1.0, second_s: float | None = None) -> wire.Checked:
    """Return what a component has shown whose first call took so long."""
    return wire.Checked(seconds, items, {}, children=False, second_call_s=second_s)


class FakeWorker(Worker):
    """A worker without a process, which carries out orders as a test has it."""

    seed = 0
    checked: wire.Checked | None = None

    def __init__(self) -> None:
        """Begin without a process."""

    def carry_out(self, order: wire.Order[Any]) -> Any:
        """Return the answer to an order; whatever is not overridden is read as nothing that is held."""
        assert isinstance(order, wire.ReadUsage)
        return Usage(0, 0, 0, 0, 0, 0, 0, 1, 1)

    def start(self, order: wire.Order[Any]) -> None:
        self._answer = self.carry_out(order)

    def answer(self, order: wire.Order[T]) -> T:
        answer: T = self._answer
        return answer

    def segments(self) -> list[SystemVSegment]:
        return []

    def cpu_s(self) -> float:
        return 0.0
