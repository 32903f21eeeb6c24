"""Whether a test has to be measured, by what made-up processes of both sides read in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import pytest
from example import Example
from fake_worker import FakeWorker, ShownSteps

from pytest_rlperf import wire as m
from pytest_rlperf.errors import SideError
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Policy
from pytest_rlperf.model.sides import Sides
from pytest_rlperf.run.live_comparison import Lanes, Measuring, UnpairedError
from pytest_rlperf.run.observation import ROUNDS, same_code
from pytest_rlperf.sides.observed import Reads
from pytest_rlperf.spawn.process import WorkerLostError
from pytest_rlperf.spawn.stems import WorkerGroup

HEAD = builders.project(Path("/t")).side("HEAD", "python", (), (Path("/t"),))
SIDES = Sides(base=replace(HEAD, label="commit 1"), head=HEAD, packages=(), changed=("a.py",), notes=())


def read(*files: str, **found: str) -> Reads:
    """Return what processes have read: ``files``, of which those named are differing, missing or compiled ones."""
    return Reads(frozenset(files), **{kind: frozenset([name]) for kind, name in found.items()})


class Observer(FakeWorker):
    """A worker that reports its test, and is lost in the step ``lost_in``."""

    def __init__(self, name: str, seed: int, lost_in: str, *, forks: bool = False) -> None:
        self.name, self.seed = name, seed
        self.did: list[str] = []
        self.alive, self.running = True, False
        self.called: m.Called | None = None
        self.let_go = False
        self.stem = SimpleNamespace(forks=forks)
        self._lost_in = lost_in

    def _do(self, step: str) -> None:
        self.did.append(step)
        if step == self._lost_in:
            self.alive = self.running = False
        if not self.alive:
            raise WorkerLostError(self, f"lost in {self._lost_in}")  # type: ignore[arg-type]

    def start_run(self, *arguments: object, forward: Callable[[m.FromWorker], None] | None, **limits: float) -> None:
        self._do("run")
        self.running = True
        if forward is not None:
            forward(m.Reported("{}"))

    def wait_called(self) -> None:
        self._do("call")
        self.called = m.Called("gae", "transition", 1.0)

    def start_check(self) -> None:
        """Begin to check."""

    def wait_checked(self) -> tuple[float, float]:
        self._do("check")
        self.checked_s = 0.1
        return 0.1, 1.0

    def observe(self) -> None:
        self._do("observe")

    def start_leaving(self) -> None:
        """Begin to leave."""

    def leave(self) -> None:
        if self.running:
            self._do("leave")
        self.running = False

    def end(self, limit_s: float) -> None:
        self.alive = self.running = False


class Stems:
    """The stems of both sides, whose observers read ``rounds``, one after another; None stands for children.

    One of the ``lost`` side is lost in a step of a round.
    """

    def __init__(
        self,
        rounds: Sequence[Reads | SideError | None] = (),
        sides: Sides = SIDES,
        lost: tuple[str, str, int] = ("", "", 0),
        *,
        forks: bool = False,
    ) -> None:
        self._forks = forks
        self.sides = sides
        self.is_same_code = sides.changed == ()
        self.observed: list[list[Observer]] = []
        self.lanes: Lanes | None = None
        self._rounds = rounds
        self._lost = lost

    @contextlib.contextmanager
    def observers(self, seed: int) -> Iterator[list[Observer]]:
        assert self.lanes is not None
        assert self.lanes.free == 0, "observing takes a CPU"
        side, step, number = self._lost
        pair = [
            Observer(name, seed, step if (name, len(self.observed)) == (side, number) else "", forks=self._forks)
            for name in ("base", "head")
        ]
        self.observed.append(pair)
        try:
            yield pair
        finally:
            for worker in pair:
                worker.let_go = True

    def reads(self, base: Observer, head: Observer, limit_s: float) -> Reads | None:
        assert limit_s > 0
        for worker in (base, head):
            worker.observe()
        found = self._rounds[len(self.observed) - 1]
        if isinstance(found, SideError):
            raise found
        return found


def decided(stems: Stems) -> reasons.SameCode | None:
    """Return what is decided on a test; its group is as before, and all observers have left the test and are let go."""
    reported: list[m.FromWorker] = []
    group: Any = WorkerGroup("test", None, reported.append, setup_s=1.0, patience_s=1.0)
    settings: Any = None
    stems.lanes = Lanes(1, ())
    test = Measuring(group, settings, Policy(), stems.lanes, ShownSteps())
    try:
        return same_code(test, stems)  # type: ignore[arg-type]
    finally:
        assert (group.workers, group.reporter, reported) == ([], None, [])
        assert stems.lanes.free == 1
        for worker in (worker for pair in stems.observed for worker in pair):
            assert worker.let_go
            assert not worker.running


SAME = read("a.py", "b.py")


def test_a_test_that_reads_nothing_that_differs_is_spared() -> None:
    """After three rounds of new processes with a seed each, both of which run it and leave it."""
    stems = Stems([SAME, read("b.py", "c.py"), read()])
    assert decided(stems) == reasons.SameCode("commit 1", 3, 3)
    assert len(stems.observed) == ROUNDS == 3
    seeds = [[worker.seed for worker in pair] for pair in stems.observed]
    assert all(base == head for base, head in seeds)
    assert len({base for base, _ in seeds}) == ROUNDS
    steps = ["run", "call", "check", "observe", "leave"]
    assert [worker.did for pair in stems.observed for worker in pair] == [steps] * 2 * ROUNDS


def test_a_copy_that_has_observed_a_spared_test_reports_it() -> None:
    """No other process runs it: the last of head's stays at its call, with its reports, until the test is over."""
    stems = Stems([SAME] * ROUNDS, forks=True)
    reported: list[m.FromWorker] = []
    group = WorkerGroup("test", None, reported.append, setup_s=1.0, patience_s=1.0)
    settings: Any = None
    stems.lanes = Lanes(1, ())
    same_code(Measuring(group, settings, Policy(), stems.lanes, ShownSteps()), stems)  # type: ignore[arg-type]
    base, head = stems.observed[-1]
    reporter: Any = group.reporter
    assert (reporter, reported) == (head, [m.Reported("{}")])
    assert head.running
    assert not any(worker.running for pair in stems.observed[:-1] for worker in pair)
    group.at_end.close()
    assert not any(worker.running for worker in (base, head))
    assert base.let_go
    assert head.let_go


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("found", [read("a.py", differing="a.py"), None], ids=["a file differs", "children"])
def test_one_round_is_enough_to_measure_a_test(number: int, found: Reads | None) -> None:
    """In which a file that was read differs, or children ran, of whose files nothing is known."""
    stems = Stems([*[SAME] * number, found, *[SAME] * ROUNDS])
    assert decided(stems) is None
    assert len(stems.observed) == number + 1


@pytest.mark.parametrize(
    ("side", "step"),
    [
        ("base", "run"),
        ("head", "run"),
        *((side, step) for side in ("base", "head") for step in ("call", "check", "observe", "leave")),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_a_test_whose_observer_is_lost_is_measured(side: str, step: str, number: int) -> None:
    """It fails again there, and is reported; an observer that is lost on its way out has read all it could."""
    stems = Stems([SAME] * ROUNDS, lost=(side, step, number))
    if step == "leave":
        assert decided(stems) == reasons.SameCode("commit 1", 2, 2)
    else:
        assert decided(stems) is None
        assert len(stems.observed) == number + 1


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (read("a.py", missing="data/large.npz"), reasons.NotCopied("data/large.npz")),
        (read("own.so", compiled="own.so"), reasons.NotBuilt("own.so")),
        (read("own.so", compiled="own.so", missing="data/large.npz"), reasons.NotCopied("data/large.npz")),
        (read("a.py", differing="a.py", missing="data/large.npz"), reasons.NotCopied("data/large.npz")),
    ],
)
def test_a_test_that_lacks_a_file_of_its_own_is_not_compared(
    number: int, found: Reads, reason: reasons.NotCopied | reasons.NotBuilt
) -> None:
    """In whichever round that is seen: pairs would measure something else."""
    stems = Stems([*[SAME] * number, found])
    with pytest.raises(UnpairedError) as caught:
        decided(stems)
    assert caught.value.reason == reason


def test_the_first_of_several_files_is_named() -> None:
    """By the alphabet, whichever side lacks it."""
    found = replace(read(), missing=frozenset(["z.npz", "b.npz", "c.npz"]))
    with pytest.raises(UnpairedError) as caught:
        decided(Stems([found]))
    assert caught.value.reason == reasons.NotCopied("b.npz")


def test_code_of_the_other_side_is_an_error() -> None:
    """It is not taken for a reason to measure."""
    error = SideError("HEAD has loaded code of commit 1")
    with pytest.raises(SideError) as caught:
        decided(Stems([SAME, error]))
    assert caught.value is error


@pytest.mark.parametrize(
    "test",
    [
        pytest.param(
            """
            import pytest, subprocess, sys

            @pytest.fixture
            def size():
                return int(subprocess.check_output([sys.executable, "size.py"]))

            def test_it(rlperf, size):
                rlperf(lambda: sum(range(size)))
            """,
            id="fixture",
        ),
        pytest.param(
            """
            import subprocess, sys

            SIZE = int(subprocess.check_output([sys.executable, "size.py"]))

            def test_it(rlperf):
                rlperf(lambda: sum(range(SIZE)))
            """,
            id="module",
        ),
    ],
)
def test_what_children_read_before_the_call_counts(tmp_path: Path, test: str) -> None:
    """A child of a fixture or a module may have read what differs, though the test's own processes have not."""
    example = Example(tmp_path, {"test_it.py": test, "size.py": "print(1000)"})
    example.commit()
    example.write({"size.py": "print(2000)"})
    run = example.pytest("--rlperf-against=HEAD", "--rlperf-pairs=2..2", "--rlperf-max-time=1")
    assert run.statuses
    assert run.codes["test_it"] != "code", run.reasons


@pytest.mark.parametrize(("changed", "expected"), [((), reasons.SameCode("commit 1", None)), (None, None)])
def test_what_is_known_beforehand_is_not_observed(
    changed: tuple[str, ...] | None, expected: reasons.SameCode | None
) -> None:
    """Equal trees are the same code; sides that differ by something else than files are measured."""
    stems = Stems(sides=replace(SIDES, changed=changed))
    assert decided(stems) == expected
    assert stems.observed == []
