"""The engine from outside: what its processes import, and what the death of a driver costs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from builders import TWO_PAIRS, source
from example import OK, Example

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs processes that fork")
CONFTEST = source("workers/conftest.py")
QUICK = (
    *("--rlperf-against=HEAD", "-o", "rlperf_reach=off"),  # the sides differ in a comment
    *TWO_PAIRS,
    *("--rlperf-tolerance=900%", "--rlperf-findings=counts=off,growth=off"),
)


def compared(directory: Path, files: dict[str, str]) -> Example:
    """Return a project whose library has changed since its commit."""
    library = "def work(): return sum(range(1000))\n"
    example = Example(directory, {"conftest.py": CONFTEST, "mylib.py": library, **files})
    example.commit()
    example.write({"mylib.py": "def work():\n    return sum(range(1000))\n"})
    return example


def test_what_a_test_imports_is_imported_once_for_its_workers(tmp_path: Path) -> None:
    """Each side's observer does so itself; templates do it for all workers after that, which are copies of them.

    Pytest's own cache is no file of the tests, also where git ignores it and an earlier run has left one.
    """
    note = "with open({place!r}, 'a') as file: file.write(f'{{os.getpid()}} ')\n"
    tests = f"""
        import os

        def test_it(rlperf):
            import late, mylib
            {note.format(place=str(tmp_path / "workers"))}
            rlperf(mylib.work)
    """
    late = f"import os\n{note.format(place=str(tmp_path / 'imports'))}"
    example = compared(tmp_path, {"test_it.py": tests, "late.py": late, ".gitignore": ".pytest_cache\n__pycache__\n"})
    example.write({".pytest_cache/v/cache/nodeids": "[]", ".pytest_cache/v/cache/lastfailed": "{}"})
    run = example.pytest(*QUICK, plugins=("rlperf", "cacheprovider"), code=OK)
    assert run.statuses["test_it"] in ("SAME", "UNDECIDED"), run.out
    assert "new interpreter" not in run.out
    workers, importing = ({*(tmp_path / name).read_text().split()} for name in ("workers", "imports"))
    pairs = len(run.tests["test_it"]["live"]["pairs"])  # five where the kernel places a pair, or total times decide
    assert len(workers) == 2 + 2 * pairs
    assert len(workers & importing) == 2, "the observers"
    assert len(importing - workers) <= 2 * pairs, "the templates"


def test_a_driver_that_dies_costs_one_pair(tmp_path: Path) -> None:
    """Another one takes its place, and nothing is measured in new interpreters."""
    tests = f"""
        import os, signal
        import mylib

        def driver():
            with open(f"/proc/{{os.getppid()}}/stat") as file:
                return int(file.read().rpartition(")")[2].split()[1])

        def test_it(rlperf, worker):
            calls = 0

            def call():
                nonlocal calls
                calls += 1
                if calls == 50 and worker == "rlperf1" and not os.path.exists({str(tmp_path / "killed")!r}):
                    open({str(tmp_path / "killed")!r}, "w").close()
                    os.kill(driver(), signal.SIGKILL)
                return mylib.work()

            rlperf(call)
    """
    run = compared(tmp_path, {"test_it.py": tests}).pytest(*QUICK, code=OK)
    assert (tmp_path / "killed").exists()
    assert len(run.tests["test_it"]["live"]["pairs"]) >= 2
    assert "new interpreter" not in run.out
