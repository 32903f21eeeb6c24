"""Exact counts from outside: what a user's run says of code that does more, or less, than what was stored."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import environment, git, write

OK, FAILED = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED
# Hardly any time, which tells nothing: what is said comes from counting.
QUICK = ("--rlperf-max-time=0.5", "--rlperf-tolerance=900%")

VIRTUAL_GPU = Path(__file__).with_name("virtual_gpu.py")
LIBRARY = """
from pytest_rlperf import hierarchical_timer

def step():
    return sum(i * i for i in range(30))

def update(steps):
    with hierarchical_timer("critic"):
        for _ in range(steps):
            step()
    with hierarchical_timer("actor"):
        step()
"""

TESTS = """
import pytest
from mylib import update
from virtual_gpu import VirtualGPU
from pytest_rlperf.devices import driving

BEFORE = {before}

@pytest.mark.rlperf(counters=["python_calls"])
def test_more(rlperf):
    rlperf(lambda: update(2 if BEFORE else 3))  # here

@pytest.mark.rlperf(counters=["python_calls"])
def test_less(rlperf):
    rlperf(lambda: update(4 if BEFORE else 3))

def test_shown(rlperf):
    rlperf(lambda: update(2 if BEFORE else 3))

@pytest.fixture
def gpu():
    made = VirtualGPU()
    with driving(made):
        yield made

@pytest.mark.rlperf(counters=["syncs", "pageable_copies", "device_allocations"])
def test_device(rlperf, gpu):
    held = [gpu.allocate(1000)]

    def call():
        gpu.copy_to_device(4096, pinned=BEFORE)
        gpu.launch(1e-4)
        if not BEFORE:
            gpu.item()
            held.append(gpu.allocate(1000))

    rlperf(call)
"""


class Project:
    """A directory with measured tests, as they were and as they are now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._environment = environment(COLUMNS="150", XDG_CACHE_HOME=str(root.parent / "cache"))
        root.mkdir(exist_ok=True)
        self.write("pytest.ini", "[pytest]\n")
        self.write("mylib.py", LIBRARY)
        self.write("virtual_gpu.py", VIRTUAL_GPU.read_text(encoding="utf-8"))

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        write(self.root, {name: text})

    def git(self, *args: str) -> None:
        """Run git here."""
        git(self.root, *args, env=self._environment)

    def run(self, *args: str) -> Run:
        """Run pytest to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "rlperf", "-p", "no:cacheprovider", "--rlperf-json=run.json", *args],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        report = self.root / "run.json"
        tests = json.loads(report.read_bytes())["tests"] if report.exists() else {}
        report.unlink(missing_ok=True)
        return Run(done.returncode, done.stdout + done.stderr, {name.partition("::")[2]: tests[name] for name in tests})

    @property
    def baseline(self) -> Path:
        """The baseline's one file."""
        (path,) = (self.root / "baselines" / "default").glob("*.json")
        return path


class Run:
    """How a pytest process ended, what it wrote, and its JSON report by the tests' names."""

    def __init__(self, code: int, out: str, tests: dict[str, Any]) -> None:
        self.code = code
        self.out = out
        self.tests = tests

    def status(self, test: str) -> str:
        """Return a test's verdict."""
        found: str = self.tests[test]["verdict"]["status"]
        return found


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose baseline is of the code before it changed."""
    made = Project(tmp_path_factory.mktemp("counters") / "project")
    made.write("test_it.py", TESTS.format(before=True))
    saved = made.run("--rlperf-save-baseline", *QUICK)
    assert saved.code == OK, saved.out
    made.write("test_it.py", TESTS.format(before=False))
    return made


@pytest.fixture(scope="module")
def changed(project: Project) -> Run:
    """Measure the code after it changed."""
    return project.run("--rlperf", *QUICK)


def test_a_baseline_keeps_counts_and_nothing_that_says_nothing(project: Project) -> None:
    """Counts of the call and its phases are in the file; fields that tests on a CPU have no use for are not."""
    text = project.baseline.read_text(encoding="utf-8")
    result = json.loads(text)["results"]["test_it.py::test_more"]["result"]
    counts = {phase["path"]: phase["exact"] for phase in result["counting"]["phases"]}
    step_calls = 32  # the function, and its generator's every resumption
    assert counts["critic"]["python_calls"] >= 2 * counts["actor"]["python_calls"] >= 2 * step_calls
    assert result["counting"]["workers"] == 5
    assert "on_device" not in text
    assert '"shares"' not in text


def test_one_step_more_fails_at_the_users_line(changed: Run) -> None:
    """Whatever the time says, with the count's name, its phase and both numbers."""
    assert changed.code == FAILED
    assert changed.status("test_more") == "SLOWER", changed.out
    assert changed.tests["test_more"]["verdict"]["reason"]["code"] == "counters"
    assert re.search(r"critic: python_calls \d+ → \d+", changed.out)
    assert re.search(r"^>.*# here$", changed.out, re.MULTILINE)
    assert "SLOWER by what it does: " in changed.out
    (change,) = (each for each in changed.tests["test_more"]["verdict"]["counters"] if each["name"] == "python_calls")
    assert change["path"] == "critic"
    assert change["was"] < change["now"]


def test_one_step_less_is_faster(changed: Run) -> None:
    """With its number, and passes."""
    assert changed.status("test_less") == "FASTER"
    assert re.search(r"test_less +FASTER\n +critic: python_calls \d+ → \d+", changed.out)


def test_what_is_only_shown_fails_nothing(changed: Run) -> None:
    """Without a marker the change is told below the test, whose verdict is the time's."""
    assert changed.status("test_shown") not in ("SLOWER", "FASTER")
    assert changed.tests["test_shown"]["verdict"]["counters"]
    assert re.search(r"test_shown .*\n(?:.*\n)*? +critic: .*python_calls \d+ → \d+", changed.out)
    assert "2 failed, 2 passed" in changed.out


def test_a_device_is_counted_by_its_driver(changed: Run) -> None:
    """Waits, pageable copies and memory asked for gate like everything else that is counted."""
    assert changed.status("test_device") == "SLOWER", changed.out
    gated = {"syncs": (0, 2), "pageable_copies": (0, 1), "device_allocations": (0, 1)}
    found = {each["name"]: (each["was"], each["now"]) for each in changed.tests["test_device"]["verdict"]["counters"]}
    assert {name: found[name] for name in gated} == gated


@pytest.mark.slow
def test_a_worse_count_locks_the_baseline(project: Project) -> None:
    """Figures of a test whose gated counts got worse replace none, unless that is accepted."""
    before = project.baseline.read_bytes()
    refused = project.run("--rlperf-save-baseline", *QUICK, "-k", "test_more")
    assert refused.code == FAILED
    assert project.baseline.read_bytes() == before
    assert re.search(r"not stored: .*old figures", refused.out), refused.out


@pytest.mark.slow
def test_off_counts_nothing(project: Project) -> None:
    """Not even what a marker asks for."""
    off = project.run("--rlperf", *QUICK, "--rlperf-counters=off", "-k", "test_more")
    assert off.code == OK, off.out
    assert off.tests["test_more"]["result"]["counting"] is None
    assert off.tests["test_more"]["verdict"]["counters"] == []


@pytest.mark.slow
def test_another_machines_counts_gate_unless_its_packages_differ(project: Project, tmp_path: Path) -> None:
    """Times of another machine class say nothing; its counts do, as long as the code ran on the same packages."""
    stored = json.loads(project.baseline.read_bytes())
    stored["machine"]["cpu"] = "Made Up 9000"
    elsewhere = Project(tmp_path / "project")
    elsewhere.write("test_it.py", TESTS.format(before=False))
    directory = elsewhere.root / "baselines" / "default"
    directory.mkdir(parents=True)
    (directory / "elsewhere.json").write_text(json.dumps(stored), encoding="utf-8")
    found = elsewhere.run("--rlperf", *QUICK, "-k", "test_more")
    assert found.code == FAILED, found.out
    assert "time alone: INCOMPARABLE" in found.out
    assert re.search(r"counted before on Made Up 9000, \d+ cores", found.out)

    (session,) = stored["sessions"].values()
    session["packages"]["numpy"] = "0.1"
    (directory / "elsewhere.json").write_text(json.dumps(stored), encoding="utf-8")
    other = elsewhere.run("--rlperf", *QUICK, "-k", "test_more")
    assert other.code == OK, other.out
    assert other.status("test_more") == "INCOMPARABLE"
    assert "counts of 1 test not compared: stored with other versions: numpy 0.1 → " in other.out


@pytest.fixture
def repository(tmp_path: Path) -> Project:
    """Return a project whose first commit does two steps, and whose tests need no edit for another."""
    made = Project(tmp_path / "project")
    made.git("init", "--quiet", "--initial-branch=main")
    made.write("test_it.py", TESTS.format(before=True))
    made.write(".gitignore", "__pycache__/\nrun.json\n")
    made.git("add", "--all")
    made.git("commit", "--quiet", "--message=before")
    return made


# One more function around the same work: nothing that a clock would tell.
WRAPPED = LIBRARY.replace("        step()\n    with", "        (lambda: step())()\n    with")
LIVE = ("--rlperf-pairs=2..2", "--rlperf-max-time=1", "--rlperf-tolerance=900%", "-k", "test_more")


def test_live_sides_are_counted_by_themselves(repository: Project) -> None:
    """Against a commit both sides count: what changed is named, though nothing was ever stored."""
    repository.write("mylib.py", WRAPPED)
    repository.git("commit", "--quiet", "--all", "--message=after")
    live = repository.run("--rlperf-against=HEAD~1", *LIVE)
    assert live.code == FAILED, live.out
    assert live.status("test_more") == "SLOWER"
    assert re.search(r"critic: python_calls \d+ → \d+", live.out)
    assert live.tests["test_more"]["live"]["base"]["counting"]["workers"] >= 2


@pytest.mark.slow
def test_counts_of_other_versions_are_settled_live(repository: Project) -> None:
    """Where packages have changed since, only the baseline's code under today's packages can tell."""
    saved = repository.run("--rlperf-save-baseline", *QUICK, "-k", "test_more")
    assert saved.code == OK, saved.out
    stored = json.loads(repository.baseline.read_bytes())
    (session,) = stored["sessions"].values()
    session["packages"]["numpy"] = "0.1"
    repository.baseline.write_text(json.dumps(stored), encoding="utf-8")
    repository.write("mylib.py", WRAPPED)
    settled = repository.run("--rlperf", *LIVE)
    assert settled.code == FAILED, settled.out
    assert settled.tests["test_more"]["live"] is not None
    assert re.search(r"critic: python_calls \d+ → \d+", settled.out)
