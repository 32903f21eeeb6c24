"""The strength of the tests in a few figures, to be compared before and after they are rewritten.

::

    pip install mutmut
    python benchmarks/strength.py                      # all of it: about an hour
    python benchmarks/strength.py coverage defects     # some of it

The mutants are mutmut's, whose settings are in pyproject.toml: so many of each file, the same ones where a file is the
same. Those that survive are printed: ``mutmut show NAME`` has the change.

Its figures are in benchmarks/results/strength.txt.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from shared import ROOT, python, write

JUDGED = ("judge", "live_judge", "verdict", "counters", "findings", "acceptance", "selfcheck_parts", "bisection")
STORED = ("store", "courses", "conditions")
SAMPLE, SEED = 30, 0  # mutants of each file
SURVIVED = (0, 33, None)  # mutmut's exit codes: tests passed, no tests, not tried
STARTED = ("workers", "reliability", "lifecycle", "worker_session", "main_job", "live", "drivers", "schedule")
WITHIN = ("live_comparison", "pairs", "pair_driver", "slices", "one_side", "placement", "counting", "saving", "options")
COVERED = (  # rooms, tests; all of them in the processes that the tests start, too
    (("judge", "baseline"), (*JUDGED, *STORED)),
    (("run", "pair", "worker", "spawn"), (*STARTED, *WITHIN)),
)
# Not by the variables that coverage's own tools set: a run takes these away from its workers.
START = """
import os
os.environ["COVERAGE_PROCESS_START"] = {settings!r}
import coverage
coverage.process_startup()
del os.environ["COVERAGE_PROCESS_START"]
"""
SETTINGS = """
[run]
branch = true
parallel = true
data_file = {directory}/data
source_pkgs = {packages}
patch = _exit, fork
disable_warnings = no-data-collected, module-not-measured, module-not-imported
[report]
show_missing = true
exclude_also =
    if TYPE_CHECKING:
    if __name__ == "__main__":
"""


def _files(names: tuple[str, ...]) -> list[str]:
    """Return the files of tests."""
    return [str(path.relative_to(ROOT)) for name in names for path in (ROOT / "tests").rglob(f"test_{name}.py")]


def _output(*command: str, first_path: str = "") -> str:
    """Return what a Python program writes."""
    path = os.pathsep.join(filter(None, [first_path, os.environ.get("PYTHONPATH")]))
    return python(command, ROOT, PYTHONPATH=path).output


def coverage() -> Iterator[str]:
    """Measure the branch coverage of the judging rooms and of the engine, in every process that the tests start.

    coverage saves its data at ``os._exit`` too, by a ``sitecustomize`` that only these tests' processes find. Processes
    that are killed save nothing.
    """
    for rooms, tests in COVERED:
        with TemporaryDirectory() as directory:
            place, packages = Path(directory), ", ".join(f"pytest_rlperf.{room}" for room in rooms)
            start = START.format(settings=f"{directory}/settings")
            settings = SETTINGS.format(directory=directory, packages=packages)
            write(place, {"settings": settings, "sitecustomize.py": start})
            options = ["-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
            text = _output("-m", "pytest", *options, *_files(tests), first_path=directory)
            python(["-m", "coverage", "combine", "-q", "--rcfile=settings"], place)
            table = python(["-m", "coverage", "report", "--rcfile=settings"], place).output
        ended = re.findall(r"^\d+ (?:passed|failed).*", text, re.MULTILINE) or [text[-2000:]]
        yield f"{' '.join(rooms)}: {' '.join(ended)}\n{table}"


def mutants() -> Iterator[str]:
    """Try the sampled mutants; one that no test executes survives."""
    text = _output("-m", "mutmut", "run", "none")  # makes them, and finds the tests that execute each
    places = sorted(ROOT.glob("mutants/pytest_rlperf/**/*.py.meta"))
    sampled = {}
    for place in places:
        names = sorted(json.loads(place.read_text("utf-8"))["exit_code_by_key"])
        if names:
            sampled[place] = random.Random(SEED).sample(names, min(SAMPLE, len(names)))
    text += _output("-m", "mutmut", "run", *chain.from_iterable(sampled.values()))
    tried = killed = 0
    for place, names in sampled.items():
        codes = json.loads(place.read_text("utf-8"))["exit_code_by_key"]
        if any(codes[name] is None for name in names):
            yield text[-2000:]
        alive = [name for name in names if codes[name] in SURVIVED]
        tried, killed = tried + len(names), killed + len(names) - len(alive)
        file = place.relative_to(ROOT / "mutants" / "pytest_rlperf").with_suffix("")
        yield f"{file}: {len(names) - len(alive)} of {len(names)} killed; {' '.join(alive)}"
    yield f"{killed} of {tried} killed"


def defects() -> Iterator[str]:
    """Run the planted defects."""
    yield _output("-m", "pytest", "-q", "tests/runs/test_planted_defects.py").splitlines()[-1]


def fuzzing() -> Iterator[str]:
    """Run the quick fuzzing of every reader."""
    yield _output("-m", "pytest", "-q", "tests/unit/test_fuzz.py").splitlines()[-1]


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    check.__name__: check for check in (defects, fuzzing, coverage, mutants)
}


def main() -> None:
    """Print the figures of the checks named, or of all."""
    for name in sys.argv[1:] or CHECKS:
        for line in CHECKS[name]():
            print(f"{name:<9} {line}", flush=True)


if __name__ == "__main__":
    main()
