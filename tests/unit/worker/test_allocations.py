"""The lines that a failure by growth names: what allocates what head's calls keep, and base's do not."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from builders import write

from pytest_rlperf.wire import Allocation
from pytest_rlperf.worker.allocations import find_allocations

LIBRARY = """
    import copy

    KEPT, TABLE = [], [[number * 0.5] for number in range(100)]

    class Env:
        def __init__(self, length):
            self.length, self.steps = length, 0

        def step(self):
            self.steps += 1
            if self.steps % self.length == 0:
                KEPT.append(bytes(400_000))  # in a reset

    def copies():
        KEPT.append(copy.deepcopy(TABLE))

    def many():
        KEPT.append([float(number) for number in range(1000, 3_000)])
"""


@pytest.fixture
def library(tmp_path: Path, request: pytest.FixtureRequest) -> ModuleType:
    """Return a module of a tree, or one that is installed in it."""
    folder = tmp_path / "site-packages" if "package" in request.fixturenames else tmp_path
    write(folder, {"library.py": LIBRARY})
    spec = importlib.util.spec_from_file_location("library", folder / "library.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def allocations(
    call: Callable[[], object],
    calls: int,
    tree: Path,
    packages: Collection[str] = (),
    clock: Callable[[], float] = lambda: 0.0,
) -> list[Allocation]:
    """Return what is found in a thread, where pytest's own frames are not traced with every allocation."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(find_allocations, call, None, calls, str(tree), packages, clock).result()


def named(call: Callable[[], object], calls: int, tree: Path) -> list[tuple[str, str]]:
    found = allocations(call, calls, tree)
    return [(each.file, each.code) for each in found if each.file in ("library.py", "copy.py")]  # of no other thread


def test_an_episode_is_met_however_long_it_is(library: ModuleType, tmp_path: Path) -> None:
    """As many calls are made as growth was seen in; with fewer of them no reset is among them."""
    reset = ("library.py", "KEPT.append(bytes(400_000))  # in a reset")
    assert named(library.Env(5000).step, 6000, tmp_path) == [reset]
    assert named(library.Env(5000).step, 1000, tmp_path) == []


def test_what_a_library_allocates_has_its_line_in_the_code_that_calls_it(library: ModuleType, tmp_path: Path) -> None:
    """Of code elsewhere the line that allocates is named."""
    assert named(library.copies, 20, tmp_path) == [("library.py", "KEPT.append(copy.deepcopy(TABLE))")]
    assert named(library.copies, 20, tmp_path / "other")[0][0] == "copy.py"


@pytest.mark.parametrize(("package", "file"), [("library", "library.py"), ("other", "copy.py")])
def test_an_installed_package_has_its_own_lines_if_it_is_compared(
    library: ModuleType, tmp_path: Path, package: str, file: str
) -> None:
    """Between two releases, a line of the tests does not tell what has changed."""
    found = allocations(library.copies, 20, tmp_path, [package])
    assert found[0].file == file


def test_calls_that_keep_much_are_few(library: ModuleType, tmp_path: Path) -> None:
    """Enough was kept long before a million calls, or all the time, and the figure is that of those made."""
    ticks = itertools.count()
    lines = allocations(library.many, 1_000_000, tmp_path, clock=lambda: 0.02 * next(ticks))
    (found,) = [each for each in lines if each.file == "library.py"]
    assert found.bytes == pytest.approx(2_000 * 32, rel=0.1)
    assert len(library.KEPT) < 100  # there was time for 150
