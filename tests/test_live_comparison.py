"""Live comparisons of one test, whose processes and figures are made up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from fake_worker import FakeWorker, ShownSteps

from pytest_rlperf import wire as m
from pytest_rlperf.errors import SideError
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Lever, LeverKind, Policy, Status
from pytest_rlperf.model.live import OtherWork, PairRecord
from pytest_rlperf.model.measured import OutputPart
from pytest_rlperf.pair.one_side import SideMeasurement
from pytest_rlperf.pair.turns import PairsMeasured
from pytest_rlperf.run.live_comparison import Lanes, LiveComparison, Measuring
from pytest_rlperf.spawn.stems import DoubtfulError

OTHER_WORK = OtherWork("python", 47, 0.5, 0.25, 0.0)


class Worker(FakeWorker):
    """A worker at its call; its name, such as ``head 0``, is in ``checked`` once it has been checked."""

    def __init__(self, name: str, stems: Stems) -> None:
        self.name = name
        self.called = m.Called("gae", "transition", 1.0)
        self.set_variables = list(stems.variables)
        self.stem = SimpleNamespace(forks=not stems.fresh, collected=m.Ready(0))
        self.output: tuple[OutputPart, ...] = ()
        self._checked = stems.checked

    def start_check(self) -> None:
        self._checked.append(self.name)

    def wait_checked(self) -> tuple[float, float]:
        self.checked_s = 0.0
        return 0.0, 1.0


class Stems:
    """The stems of both sides; ``loaders`` are those that pairs came from, and ``variables`` what tests set.

    The places of the code are looked at of workers in ``looked_at``, of which one ``strays``.
    """

    def __init__(self, *, fresh: bool = False, variables: dict[str, str] | None = None) -> None:
        self.fresh = fresh
        self.variables = variables or {}
        self.checked: list[str] = []
        self.looked_at: set[str] = set()
        self.strays = ""
        self.loaders: dict[int, int] = {}
        self.claimed: set[int] = set()

    def claim(self, index: int, avoid: Sequence[int]) -> int:
        self.claimed.add(index)
        return index

    def give_back(self, number: int) -> None:
        self.claimed.remove(number)

    def workers(self, number: int, loader: int) -> list[Worker]:
        self.loaders[number] = loader
        return [Worker(f"{side} {number}", self) for side in ("base", "head")]

    def check_places(self, base: Worker, head: Worker) -> None:
        self.looked_at |= {base.name, head.name}
        if self.strays in self.looked_at:
            raise SideError(f"{self.strays} has loaded code of the other side")

    def let_go(self, worker: Worker) -> None:
        """Let a worker end."""

    def trim(self) -> None:
        """End nothing."""


class Group:
    """A test that writes down who sets up, and who has left it."""

    def __init__(self) -> None:
        self.key = "test"
        self.called = m.Called("gae", "transition", 1.0)
        self.opened: list[str] = []
        self.left: list[str] = []
        self.reporter = ""
        self.at_end = contextlib.ExitStack()

    def reports_by(self, worker: Worker) -> None:
        self.reporter = worker.name

    def open(self, workers: Sequence[Worker]) -> None:
        self.opened += [worker.name for worker in workers]

    def leave(self, worker: Worker) -> None:
        self.left.append(worker.name)

    def release(self) -> None:
        self.left.append("all")


class Measurement:
    is_time_up = False

    def __init__(self, find: Callable[[int], float]) -> None:
        self._find = find
        self._pairs: list[PairRecord] = []

    def begin(self, most: int) -> int:
        return 1

    def warm_up(self, pair: Any) -> Any:
        return SimpleNamespace(pair=pair, is_single=True, needs_machine=False)

    def take(self, warm: Any) -> None:
        found = self._find(warm.pair.number)
        self._pairs.append(builders.pair(found, loader=warm.pair.loader, other_work=OTHER_WORK))

    def records(self) -> list[PairRecord]:
        return list(self._pairs)

    def measured(self) -> PairsMeasured:
        """Return the pairs: nobody looks at other figures here."""
        side = SideMeasurement((), (), 0.0, ())
        return PairsMeasured(tuple(self._pairs), side, side, ())


def comparison(
    stems: Stems, find: Callable[[int], float] = lambda _: 0.0, counted: list[str] | None = None
) -> tuple[LiveComparison, Group]:
    """Return the comparison of a test whose pairs find log-ratios, on one lane; who counts is in ``counted``."""
    names: list[str] = [] if counted is None else counted
    group: Any = Group()
    parts: Any = SimpleNamespace(
        stems=stems,
        counting=SimpleNamespace(run=lambda workers: names.extend(worker.name for worker in workers)),
        measurement=Measurement(find),
    )
    settings: Any = SimpleNamespace(pairs=(3, 10), max_time_s=60.0)
    test = Measuring(group, settings, Policy(), Lanes(1, ()), ShownSteps())
    live = LiveComparison(test, parts.stems, parts.counting)
    live._measurement = parts.measurement
    return live, group


@pytest.mark.parametrize("fresh", [False, True])
def test_sides_begin_in_turn(fresh: bool) -> None:
    """Tests set up, are checked and counted on head first in every other pair; the first pair's head reports."""
    stems, counted = Stems(fresh=fresh), list[str]()
    live, group = comparison(stems, counted=counted)
    live.run()
    in_turn = ["head 0", "base 0", "base 1", "head 1", "head 2", "base 2"]
    for order in (group.opened, stems.checked, counted):
        assert order[:2] == in_turn[:2]
        assert sorted(order, key=lambda name: name[-1]) == in_turn  # later pairs begin at once
    assert stems.looked_at == {*in_turn}
    assert group.reporter == "head 0"
    assert sorted(group.left) == ["base 1", "base 2", "head 1", "head 2"]
    assert stems.claimed == {0}  # until the end of the test


@pytest.mark.parametrize(
    ("log_ratio", "status", "loaders"),
    [
        (0.0, Status.SAME, [0, 0, 0]),
        (0.2, Status.SLOWER, [0, 1, 1, 1]),
        (-0.2, Status.FASTER, [0, 1, 1, 1]),
    ],
)
def test_a_change_is_confirmed_by_pairs_of_a_second_loader(
    log_ratio: float, status: Status, loaders: list[int]
) -> None:
    """Pairs come from it once those before look changed: all of one loader have something in common."""
    stems = Stems()
    verdict, measured = comparison(stems, lambda _: log_ratio)[0].run()
    assert verdict.status is status
    assert {pair.other_work for pair in measured.pairs} == {None}, "only an UNDECIDED is of interest"
    assert [stems.loaders[number] for number in sorted(stems.loaders)] == loaders


@pytest.mark.parametrize("strays", ["base 0", "head 2"])
def test_a_worker_with_code_of_the_other_side_ends_the_comparison(strays: str) -> None:
    """Whichever pair it is of; all workers leave the test."""
    stems = Stems()
    stems.strays = strays
    live, group = comparison(stems)
    with pytest.raises(SideError, match=strays):
        live.compare()
    assert group.left[-1] == "all"


def test_pairs_that_decide_nothing_keep_what_else_worked() -> None:
    """The verdict has its mean, and what helps."""
    verdict, measured = comparison(Stems(), lambda number: 0.2 * (-1) ** number)[0].run()
    assert isinstance(verdict.reason, reasons.PairsUndecided)
    assert {pair.other_work for pair in measured.pairs} == {verdict.reason.other_work} == {OTHER_WORK}
    assert verdict.lever == Lever(LeverKind.QUIET)


def test_a_test_that_sets_variables_of_libraries_is_doubtful() -> None:
    """A forked process has read them before; a new interpreter has not."""
    variables = {"OMP_NUM_THREADS": "3"}
    live, group = comparison(Stems(variables=variables))
    with pytest.raises(DoubtfulError, match="OMP_NUM_THREADS"):
        live.compare()
    assert group.left == ["all"]
    fresh, _ = comparison(Stems(variables=variables, fresh=True))
    assert fresh.run()[0].status is Status.SAME
