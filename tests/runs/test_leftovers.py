"""What calls leave to the machine: it is found, ascribed to the right program, and removed."""

from __future__ import annotations

import bisect
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from example import FAILED, OK, Example, Run
from fake_worker import FakeWorker

from pytest_rlperf.model.measured import SliceKind
from pytest_rlperf.pair.leftovers import PLACE, SHARED, Amount, Leftovers, TemporaryFiles
from pytest_rlperf.run.shared_memory import SharedMemory
from pytest_rlperf.spawn.guardian import VARIABLE, remove_temporary_files
from pytest_rlperf.spawn.segments import segments
from pytest_rlperf.spawn.temporary import mark_temporary_files
from pytest_rlperf.wire import Order, Take

SLICE_S = 0.015
OWN = "of" + "".join(chr(ord("a") + int(digit)) for digit in str(os.getpid()))  # other runs of this test have others
BUS = """
    import ctypes
    import itertools
    import os
    import tempfile
    from multiprocessing import resource_tracker, shared_memory
    from pathlib import Path

    OWN, NUMBERS = "OWN", itertools.count()

    def send():
        name = f"{OWN}_{os.getpid()}_{next(NUMBERS)}"
        block = shared_memory.SharedMemory(name, create=True, size=4096)
        resource_tracker.unregister(block._name, "shared_memory")
        block.buf[0] = 1
        block.close()
        return block

    def unlink(block):
        import _posixshmem
        _posixshmem.shm_unlink(block._name)

    def once():
        unlink(send())
        files()
        segments()
        work()

    def always():  # seldom enough for a test beside it to prove what it leaves in each call
        work()
        return 0 if next(NUMBERS) % 10 else send().size

    LIBRARY, NEW = ctypes.CDLL(None), False

    def files():
        path = Path(tempfile.gettempdir(), f"rollout_{os.getpid()}_{next(NUMBERS)}")
        path.touch()
        if NEW:
            with open(os.path.join(tempfile.mkdtemp(), "log"), "wb") as file:  # Python 3.12's Path keeps all names
                file.write(bytes(1000))
        else:
            path.unlink()
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"1")

    def segments():
        memory = LIBRARY.shmget(0, 4096, 0o600)
        semaphores = LIBRARY.semget(0, 1, 0o600)
        LIBRARY.semctl(semaphores, 0, 16, 1)
        if not NEW:
            LIBRARY.shmctl(memory, 0, None)
            LIBRARY.semctl(semaphores, 0, 0)

    def work():
        sum(range(50_000))
""".replace('"OWN"', repr(OWN))
TEST = """
    import bus
    import pytest

    @pytest.mark.parametrize("name", ["once", "always"])
    def test_bus(rlperf, name):
        rlperf(getattr(bus, name))
"""
OTHERS = f"other_{OWN}"
HEAD_LEAVES = (
    BUS.replace("unlink(send())", "send()")
    .replace("send().size", "send().size + 0")
    .replace("NEW = ctypes.CDLL(None), False", "NEW = ctypes.CDLL(None), True")
)
NEIGHBOUR = """
import itertools, sys, time
for number in itertools.count():
    open(f"/dev/shm/{sys.argv[1]}_{number}", "w").close()
    if not number:
        print("begun", flush=True)
    time.sleep(0.002)
"""
QUICK = (
    *("--rlperf-against=HEAD", "-o", "rlperf_pairs=2..2", "--rlperf-max-time=5", "--rlperf-tolerance=900%"),
    "--rlperf-findings=counts=off,garbage=off,first_call=off",
)
needs_place = pytest.mark.skipif(not Path(PLACE).is_mount(), reason="this system has no such place")


class World:
    """A machine on which a worker takes turns, and others make blocks of shared memory at their pace."""

    def __init__(self, others: Callable[[float], int]) -> None:
        self.now_s = 0.0
        self.others = others
        self.left = 0

    def held(self) -> Amount:
        blocks = self.left + self.others(self.now_s)
        return Amount(blocks, 4096 * blocks)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


class Leaving(FakeWorker):
    """A worker that leaves some blocks in each slice."""

    def __init__(self, world: World, leaves: Callable[[], int]) -> None:
        self._world = world
        self._leaves = leaves
        self.slowed = 1

    def carry_out(self, order: Order[Any]) -> Any:
        if isinstance(order, Take):
            self._world.wait(self.slowed * SLICE_S)
            self._world.left += self._leaves()
            return None
        return super().carry_out(order)


def proved(leaves: Callable[[], int], others: Callable[[float], int], slices: int = 40) -> bool:
    """Whether a worker is known to leave blocks, after so many slices."""
    world = World(others)
    worker = Leaving(world, leaves)
    leftovers = Leftovers({SHARED: world.held}, None, lambda: world.now_s, world.wait)
    for _ in range(slices):
        leftovers.take(worker, SliceKind.PLAIN)
        world.wait(SLICE_S)
    return SHARED in leftovers.proved(worker)


def poisson(per_s: float, generator: random.Random, size: int = 1) -> Callable[[float], int]:
    """Return a count of what others have made, so many a second at random, perhaps several at once."""
    times = [0.0]
    while times[-1] < 8:
        times.append(times[-1] + generator.expovariate(per_s))
    return lambda now_s: size * bisect.bisect(times, now_s)


@pytest.mark.parametrize(
    ("every", "others", "expected"),
    [
        (1, lambda now_s: 0, True),
        (3, lambda now_s: 0, True),
        (1, lambda now_s: int(10 * now_s), True),
        (1000, lambda now_s: 0, False),
        (0, lambda now_s: 0, False),
        (0, lambda now_s: int(10 * now_s), False),
        (0, lambda now_s: int(10_000 * now_s), False),
        (0, lambda now_s: -int(10_000 * now_s), False),
        (0, lambda now_s: 500 * int(20 * now_s), False),
    ],
)
def test_a_worker_proves_what_it_leaves(every: int, others: Callable[[float], int], expected: bool) -> None:
    """What comes in its turns alone is a worker's; what comes in pauses as well is not."""
    calls = iter(range(100_000))
    leaves = (lambda: 15 * (next(calls) % every == 0)) if every else (lambda: 0)
    assert proved(leaves, others) is expected


def test_a_worker_proves_it_where_turns_become_longer() -> None:
    """Other work may begin during a proof, which then takes longer, and is not given up."""
    world = World(lambda now_s: 0)
    worker = Leaving(world, lambda: 15)
    leftovers = Leftovers({SHARED: world.held}, None, lambda: world.now_s, world.wait)
    leftovers.take(worker, SliceKind.PLAIN)
    worker.slowed = 20
    assert SHARED in leftovers.proved(worker)


@pytest.mark.parametrize("per_s", [3.0, 30.0, 300.0])
def test_blocks_that_others_make_at_random_are_not_a_workers(per_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many proofs none holds, whichever way the coin falls."""
    generator = random.Random(int(per_s))
    monkeypatch.setattr("os.urandom", generator.randbytes)
    for size in (1, 7):
        assert not any(proved(lambda: 0, poisson(per_s, generator, size)) for _ in range(20))


def test_a_neighbour_in_step_with_the_turns_is_not_taken_for_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run's pair may take its turns at the same pace: a coin decides when the worker has its own."""
    monkeypatch.setattr("os.urandom", random.Random(1).randbytes)
    in_step = [lambda now_s, late=late: 15 * int((now_s + late) / (2 * SLICE_S)) for late in (0.0, SLICE_S)]
    assert not any(proved(lambda: 0, others) for others in in_step)


def test_only_new_blocks_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    """Those that were there before, have another name, are open, or come and go by others' doing stay."""
    (tmp_path / "psm_before").touch()
    memory = SharedMemory(tmp_path)
    for name in ("psm_1", "psm_2", "psm_open", "other"):
        (tmp_path / name).touch()
    (tmp_path / "psm_link").symlink_to(tmp_path / "psm_1")
    assert memory.remove([]) == memory.remove([""]) == 0
    with (tmp_path / "psm_open").open():
        assert memory.remove(["psm_"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"psm_before", "psm_open", "psm_link", "other"}
    assert SharedMemory(tmp_path / "none").remove(["psm_"]) == 0


class Left(NamedTuple):
    """A run of a test whose calls leave something, its findings, and what it has left to the machine."""

    run: Run
    found: list[str]
    blocks: list[Path]
    files: set[str]
    segments: list[Any]
    place: str


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    blocks, before = {*Path(PLACE).glob("*")}, segments()
    example = Example(tmp_path_factory.mktemp("left"), {"bus.py": BUS, "test_bus.py": TEST})
    example.commit()
    example.write({"bus.py": HEAD_LEAVES})
    run = example.pytest(*QUICK, "-k", "once", code=FAILED)
    return Left(
        run,
        [each["line"] for each in run.tests["test_bus[once]"]["verdict"]["findings"]],
        [path for path in {*Path(PLACE).glob("*")} - blocks if path.name.startswith(OWN)],
        {path.name.partition("_")[0] for path in example.tmp.iterdir()},
        [each for each in segments() if each not in before],
        str(example.tmp),
    )


@needs_place
def test_blocks_that_calls_leave_fail_the_test_and_are_removed(left: Left) -> None:
    """Head's block a call is growth. The run removes all of them, and says so."""
    # What other programs leave in turns of base is taken off.
    (line,) = left.found
    assert re.match(r"each call leaves (1 block|0\.\d+ blocks) of shared memory", line)
    (note,) = (each for each in left.run.document["notes"] if "shared memory" in each)
    assert note.startswith("removed ")
    assert note.endswith(" blocks of shared memory that the tests left in /dev/shm")
    assert left.blocks == []


@needs_place
@pytest.mark.slow  # test_findings: test_what_calls_leave_behind, "both sides leave shared memory alike"
def test_blocks_that_both_sides_leave_are_no_growth(tmp_path: Path) -> None:
    """Also beside a test that leaves more on head."""
    example = Example(tmp_path, {"bus.py": BUS, "test_bus.py": TEST})
    example.commit()
    example.write({"bus.py": HEAD_LEAVES})
    run = example.pytest(*QUICK, "-k", "once or always", code=FAILED)
    found = {name: len(test["verdict"]["findings"]) for name, test in run.tests.items()}
    assert found == {"test_bus[once]": 1, "test_bus[always]": 0}


def test_files_that_calls_leave_fail_the_test_and_are_removed(left: Left) -> None:
    """Whatever their names are; but the run removes only what ``tempfile`` has named, which is surely its own."""
    files, segments = "temporary files", "System V segments or semaphores"
    (line,) = left.found
    assert f", 2 {files}" in line
    assert f", 2 {segments}" in line
    notes = " ".join(left.run.document["notes"])
    assert re.search(rf"removed \S+ {files} that the tests left in {re.escape(left.place)}", notes)
    assert re.search(rf"removed \S+ {segments} that the tests left", notes)
    assert left.files == {"rollout"}
    assert left.segments == []


def test_temporary_files_are_counted_with_their_bytes(tmp_path: Path) -> None:
    """Those of before have none, and what is within a new directory is part of it; names may tell the process."""
    (tmp_path / "before").write_bytes(bytes(100))
    files = TemporaryFiles(tmp_path, "mark_")
    assert files.held() == Amount(1, 0)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(bytes(10))
    (tmp_path / "file").write_bytes(bytes(1))
    (tmp_path / "tmpmark_12_x").write_bytes(bytes(7))
    assert files.held() == Amount(3, 11)
    assert files.held_by(12) == Amount(1, 7)
    (tmp_path / "before").unlink()
    (tmp_path / "file").unlink()
    assert files.held() == Amount(1, 10)
    assert TemporaryFiles(tmp_path / "none", "mark_").held() == Amount(0, 0)


def test_only_files_that_a_runs_processes_have_named_are_removed(tmp_path: Path, monkeypatch: Any) -> None:
    """Those of sessions that have ended; what is used still, is another run's or nobody's stays."""
    scratch = tmp_path / "pytest-rlperf-abcd_123"
    scratch.mkdir()
    monkeypatch.setenv(VARIABLE, str(scratch))
    monkeypatch.setattr("tempfile._name_sequence", None)
    mark_temporary_files()
    logs = tempfile.mkdtemp(dir=tmp_path, prefix="logs-")
    Path(tempfile.mkdtemp(dir=logs), "events").touch()
    assert [path.name.count("abcd_123") for path in Path(logs).iterdir()] == [0]  # sockets' paths have to be short
    file, name = tempfile.mkstemp(".json", dir=tmp_path)
    os.close(file)
    assert f"abcd_123_{os.getsid(0)}_" in name
    others = ("tmpabcd_1234", "tmpefgh_123_1_x", "abcd_123_x_y")
    for other in others:
        (tmp_path / other).touch()
    assert remove_temporary_files(str(scratch), lambda session: session == os.getsid(0)) == 0
    assert remove_temporary_files(str(scratch), lambda _: False) == 2
    assert {path.name for path in tmp_path.iterdir()} == {scratch.name, *others}


@contextmanager
def neighbour() -> Iterator[None]:
    """Let another program leave blocks of shared memory all the time."""
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR, OTHERS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


@needs_place
@pytest.mark.slow
def test_blocks_of_another_program_are_neither_a_tests_nor_removed(tmp_path: Path) -> None:
    """Nothing is said of head, whose own blocks are unlinked, and what the other program has made stays."""
    example = Example(tmp_path, {"bus.py": BUS, "test_bus.py": TEST})
    example.commit()
    example.write({"bus.py": BUS.replace("unlink(send())", "unlink(send()) or 1")})
    others = []
    try:
        with neighbour():
            run = example.pytest(*QUICK, "-k", "once", code=OK)
            others = [*Path(PLACE).glob(f"{OTHERS}_*")]
        assert run.tests["test_bus[once]"]["verdict"]["findings"] == []
        assert not [each for each in run.document["notes"] if "shared memory" in each]
        assert len(others) > 100
    finally:
        for path in Path(PLACE).glob(f"{OTHERS}_*"):
            path.unlink()
