from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_rlperf.judge.live import PairLimits
from pytest_rlperf.judge.policy import make_policy
from pytest_rlperf.run.lanes import Lanes, LanesOfTest
from pytest_rlperf.run.live_comparison import LiveComparison


class Pool:
    """Workers of one side that are names, such as ``head 0``; it writes down who is started."""

    def __init__(self, name: str, begun: list[str]) -> None:
        self.name = name
        self.begun = begun
        self.claimed = 0

    def claim(self, avoid: Iterable[int]) -> int:
        """Return the next number."""
        self.claimed += 1
        return self.claimed - 1

    def start(self, numbers: Iterable[int]) -> None:
        """Write down who is started."""
        self.begun += [f"{self.name} {number}" for number in numbers]

    def ready(self, number: int) -> Any:
        """Return a worker's name."""
        return SimpleNamespace(name=f"{self.name} {number}", called=None)

    def give_back(self, number: int) -> None:
        """Take back a number."""


class Group:
    """A test that is open in no process; it writes down the order of set-ups."""

    order = 0

    def __init__(self) -> None:
        self.opened: list[str] = []

    def at_end(self, callback: object) -> None:
        """Forget it."""

    def begin(self, worker: Any) -> None:
        """Write down who sets up."""
        if worker.name not in self.opened:
            self.opened.append(worker.name)

    def open(self, workers: Sequence[Any]) -> None:
        """Write down who sets up, in this order."""
        for worker in workers:
            self.begin(worker)


EXPECTED = ["head 0", "base 0", "base 1", "head 1", "head 2", "base 2"]


def test_sides_begin_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes start, tests set up, components are checked and calls are counted on head first in every other pair."""
    started: list[str] = []
    counted: list[str] = []
    checked: list[str] = []
    group: Any = Group()
    base_side: Any = SimpleNamespace(
        base=Pool("base", started), head=Pool("head", started), may_differ=lambda base, head: True
    )
    silent: Any = SimpleNamespace(show=lambda text: None)
    counting: Any = SimpleNamespace(run=lambda workers: counted.extend(worker.name for worker in workers))
    comparison = LiveComparison(
        group,
        base_side,
        make_policy(tolerance=None, alpha=0.01, tests=1, min_change_s=0.0, gated=True, accept=False),
        PairLimits(3, 10),
        LanesOfTest(Lanes(1, ())),
        counting,
        silent,
        60.0,
    )
    monkeypatch.setattr(comparison, "_refuse_other_work", lambda base, head: None)

    def check(workers: Sequence[Any]) -> float:
        checked.extend(worker.name for worker in workers)
        return 0.0

    monkeypatch.setattr("pytest_rlperf.run.live_comparison.check", check)
    monkeypatch.setattr(comparison, "_measurement", SimpleNamespace(warm_up=lambda pair: None))
    for index, pair in enumerate(comparison.open(range(3))):
        base, head = pair
        base.tally = head.tally = None
        comparison._warm_up(index, pair, 0.0)
    assert started == EXPECTED
    assert group.opened == EXPECTED
    assert checked == EXPECTED
    assert counted == EXPECTED
