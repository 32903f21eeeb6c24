"""Live pairs, from outside: a repository with a past, and runs that compare today with it."""

from __future__ import annotations

import errno
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import builders
import psutil
import pytest
from builders import environment, git, provenance, result, scratch_left, write

from pytest_rlperf.baseline.machine import this_machine
from pytest_rlperf.baseline.store import Store
from pytest_rlperf.run.lanes import count_lanes

OK, FAILED, USAGE = pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.USAGE_ERROR
QUICK = ("--rlperf-pairs=2..6", "--rlperf-max-time=8")  # time for six pairs, which unplaced workers take to confirm
STORED = ("--rlperf-max-time=0.3",)  # enough where stored numbers decide
DECISIVE = ("--rlperf-tolerance=50%",)  # what these tests change is far over it, what they do not is far under it

# A few microseconds of work in two phases, {times} as much of it in the second.
LIBRARY = """
from pytest_rlperf import hierarchical_timer

SIDE = "{side}"

def work():
    with hierarchical_timer("actor"):
        actor = sum(i * i for i in range(400))
    with hierarchical_timer("critic"):
        critic = sum(i * i for i in range(400 * {times}))
    return actor + critic

def rest():
    return sum(range(400))
"""

TESTS = """
import mylib

def test_work(rlperf):
    rlperf(mylib.work)

def test_rest(rlperf):
    rlperf(mylib.rest)
"""


class Repository:
    """A git repository with a package and measured tests, whose present differs from its past."""

    def __init__(self, root: Path, scratch: Path) -> None:
        self.root = root
        self.tmp = scratch / "tmp"
        self.tmp.mkdir()
        self._environment = environment(COLUMNS="100", TMPDIR=str(self.tmp), XDG_CACHE_HOME=str(scratch / "cache"))
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("pytest.ini", "[pytest]\n")
        self.write("conftest.py", "")
        self.write("tests/test_it.py", TESTS)
        self.library("base")
        self.commit()

    def write(self, path: str, text: str) -> None:
        """Write a file of the tree."""
        write(self.root, {path: text})

    def library(self, side: str, times: int = 1, more: str = "") -> None:
        """Write the package under test."""
        self.write("mylib/__init__.py", LIBRARY.format(side=side, times=times) + textwrap.dedent(more))

    def git(self, *args: str) -> str:
        """Run git here."""
        return git(self.root, *args, env=self._environment)

    def commit(self) -> str:
        """Commit everything, and return the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=change")
        return self.git("rev-parse", "HEAD")

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a run, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "rlperf", "-p", "no:cacheprovider", *args],
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, *args: str) -> Run:
        """Run pytest to its end."""
        with self.start(*args) as process:
            out, _ = process.communicate(timeout=180)
        return Run(process.returncode, out)

    def against(self, spec: str, *args: str) -> Run:
        """Compare live, with little time for it."""
        return self.run(f"--rlperf-against={spec}", *QUICK, *DECISIVE, *args)

    def left_over(self) -> list[str]:
        """Return the workers' temporary directories that are still there."""
        return scratch_left(self.tmp)


class Run:
    """How a run ended, and what it wrote."""

    def __init__(self, code: int, out: str) -> None:
        self.code = code
        self.out = out
        # Sentences in the summary are wrapped to the terminal.
        self.words = re.sub(r"\s+", " ", out)

    @property
    def verdicts(self) -> dict[str, str]:
        """Each test's verdict, as the table has it."""
        return dict(re.findall(r"^(test_\S+) .*\b([A-Z]{3,})(?: \*)?$", self.out, re.MULTILINE))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository with one commit."""
    return Repository(tmp_path / "repo", tmp_path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with one commit, and a baseline that this commit was measured for."""
    scratch = tmp_path_factory.mktemp("measured")
    repository = Repository(scratch / "repo", scratch)
    run = repository.run("--rlperf-save-baseline", "--rlperf-max-time=0.5", "-k", "work")
    assert run.code == OK, run.out
    return repository.root


@pytest.fixture
def stored(repository: Repository, measured: Path) -> Path:
    """Make the repository a copy of the measured one, and return its baseline file."""
    shutil.rmtree(repository.root)
    shutil.copytree(measured, repository.root)
    (path,) = (repository.root / "baselines" / "default").glob("*.json")
    return path


@pytest.fixture
def fast(repository: Repository) -> Store:
    """Return a baseline of the repository's commit whose figures make everything after them look slower."""
    store = Store(repository.root / "baselines", "default", this_machine())
    found = result("tests/test_it.py::test_work", 1e-7, component="callable", unit="call")
    commit = repository.git("rev-parse", "HEAD")
    store.write("then", provenance(commit=commit, dirty=False), {found.nodeid: builders.stored(found, "then")})
    return store


# ------------------------------------------------------------------ verdicts


def test_a_slowdown_is_found_and_blamed(repository: Repository) -> None:
    """A test that a commit slowed down fails at its line with the phase to blame, and the other test is SAME."""
    repository.library("head", times=5)
    repository.commit()
    run = repository.against("HEAD~1", "--rlperf-json=run.json", "--junitxml=junit.xml", "-v")
    assert run.code == FAILED, run.out
    assert run.verdicts == {"test_work": "SLOWER", "test_rest": "SAME"}
    sha = repository.git("rev-parse", "--short=12", "HEAD~1")
    for words in (
        "> rlperf(mylib.work)",
        "E pytest_rlperf.PerformanceRegression: SLOWER ×",
        f"a call, * on HEAD~1 ({sha})",
        f" with HEAD~1 ({sha}), live",
        "critic +",
        "tests/test_it.py:5: PerformanceRegression",
        "live pairs (",
    ):
        assert re.search(re.escape(words).replace(r"\*", ".*"), run.words), f"{words}\n{run.out}"

    document = json.loads((repository.root / "run.json").read_text(encoding="utf-8"))
    test = document["tests"]["tests/test_it.py::test_work"]
    change_s = test["base_call_s"] * (test["verdict"]["estimate"]["ratio"] - 1)
    parts = {part["path"]: part["change_s"] for part in test["live"]["contributions"]}
    assert sum(parts.values()) == pytest.approx(change_s)
    assert max(parts, key=lambda path: parts[path]) == "critic"
    assert parts["critic"] == pytest.approx(change_s, rel=0.5)
    assert all(pair["blocks"] and pair["base"]["slices"] == pair["head"]["slices"] for pair in test["live"]["pairs"])
    seeds = [pair["base"]["seed"] for pair in test["live"]["pairs"]]
    assert len(seeds) == len(set(seeds)) >= 3
    assert test["live"]["setup_s"] > 0

    properties = {
        (case.get("name"), item.get("name")): item.get("value")
        for case in ElementTree.parse(repository.root / "junit.xml").iter("testcase")  # noqa: S314 - pytest wrote it
        for item in case.iter("property")
    }
    assert properties["test_work", "rlperf_verdict"] == "SLOWER"
    assert properties["test_rest", "rlperf_verdict"] == "SAME"
    assert properties["test_work", "rlperf_against"] == f"HEAD~1 ({sha})"


@pytest.mark.slow  # test_live_judge: test_swapping_sides_mirrors_the_verdict; test_main_job: FASTER passes
def test_what_got_faster_passes(repository: Repository) -> None:
    """The mirror image is FASTER, and -k leaves the other test out."""
    repository.library("slow", times=5)
    repository.commit()
    repository.library("head")
    repository.commit()
    run = repository.against("HEAD~1", "-k", "work")
    assert run.code == OK, run.out
    assert run.verdicts == {"test_work": "FASTER"}
    assert "1 passed, 1 deselected" in run.out


@pytest.mark.slow
def test_stop_at_first_and_last_failed(repository: Repository) -> None:
    """-x ends a live run at its first SLOWER; --lf compares that test alone."""
    repository.library("head", times=5)
    repository.commit()
    first = repository.against("HEAD~1", "-x", "-p", "cacheprovider")
    assert first.code == FAILED, first.out
    assert first.verdicts == {"test_work": "SLOWER"}
    again = repository.against("HEAD~1", "--lf", "-p", "cacheprovider")
    assert again.code == FAILED, again.out
    assert again.verdicts == {"test_work": "SLOWER"}


@pytest.mark.slow
def test_uncommitted_changes_are_compared_and_named(repository: Repository) -> None:
    """Head is the tree as it is; the report says that it is not a commit."""
    repository.library("head", times=5)
    run = repository.against("HEAD", "-k", "work")
    assert run.code == FAILED, run.out
    assert "uncommitted" in run.words


@pytest.mark.slow  # test_sides_git: test_directory_with_git_is_compared_with_as_it_is
def test_another_directory_is_a_side(repository: Repository, tmp_path: Path) -> None:
    """dir: compares with another checkout, which is left as it was."""
    other = tmp_path / "other"
    repository.git("clone", "--quiet", ".", str(other))
    repository.library("head", times=5)
    before = {path: path.read_bytes() for path in other.rglob("*.py")}
    run = repository.against(f"dir:{other}", "-k", "work")
    assert run.code == FAILED, run.out
    assert run.verdicts == {"test_work": "SLOWER"}
    assert {path: path.read_bytes() for path in other.rglob("*.py")} == before


@pytest.mark.skipif(count_lanes().most < 2, reason="one lane sets up all the first pairs at once")
def test_a_test_that_skips_itself_is_set_up_by_one_pair(repository: Repository) -> None:
    """Other pairs wait until the first one has got to its call; where it never does they are not begun."""
    begun = repository.tmp / "begun"
    repository.write(
        "tests/test_it.py",
        f"""
        import os, pathlib, pytest, mylib

        @pytest.fixture
        def missing():
            pathlib.Path({str(begun)!r}).open("a").write("x")
            pytest.skip("not installed here")

        def test_skipped(rlperf, missing):
            rlperf(mylib.work)

        def test_work(rlperf):
            rlperf(mylib.work)
        """,
    )
    repository.commit()
    repository.library("head")
    run = repository.against("HEAD", "--rlperf-lanes=2")
    assert run.code == OK, run.out
    assert "1 passed, 1 skipped" in run.out
    assert begun.read_text() == "xx"


# ------------------------------------------------------------------ nothing to compare, or nothing to compare with


@pytest.mark.usefixtures("fast")
def test_equal_trees_are_the_same_unmeasured(repository: Repository) -> None:
    """Where no file differs nothing is measured, and the report states why."""
    run = repository.against("HEAD", "--rlperf-json=run.json")
    assert run.code == OK, run.out
    assert run.verdicts == {"test_work": "SAME", "test_rest": "SAME"}
    assert "same code as HEAD" in run.words
    # What is stored of it is another matter, and none of what was asked.
    assert "compared today's code with HEAD" in run.words
    document = json.loads((repository.root / "run.json").read_text(encoding="utf-8"))
    assert {test["base_call_s"] for test in document["tests"].values()} == {None}
    assert "live pair" not in run.words.partition("rlperf ===")[2]


def test_a_change_the_test_does_not_load_is_the_same_unmeasured(repository: Repository) -> None:
    """A module that no measured test imports cannot have made it slower."""
    repository.write("mylib/elsewhere.py", "VALUE = 1\n")
    repository.commit()
    run = repository.against("HEAD~1", "-v", "-k", "work")
    assert run.code == OK, run.out
    assert run.verdicts == {"test_work": "SAME"}
    assert "this test loads no file that differs from HEAD~1" in run.words


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a later call", "runpy"])
def test_code_that_no_import_shows_at_first_is_measured(repository: Repository, how: str) -> None:
    """Code that only the hundredth call imports, or that runs with no module of its own, is code all the same."""
    run_it = {
        "a later call": "from mylib import later; later.LAST",
        "runpy": "import runpy, os; f = runpy.run_path(os.path.join(os.path.dirname(__file__), 'later.py'))['work']",
    }[how]
    more = f"""
    calls = 0

    def twice():
        global calls, f
        calls += 1
        if calls == {100 if how == "a later call" else 1}:
            {run_it}
        return sum(range(400))
    """
    repository.library("base", more=more)
    repository.write("mylib/later.py", "LAST = 1\ndef work():\n    return 1\n")
    repository.write("tests/test_it.py", "import mylib\n\ndef test_twice(rlperf):\n    rlperf(mylib.twice)\n")
    repository.commit()
    repository.write("mylib/later.py", "LAST = 2\ndef work():\n    return 2\n")
    run = repository.against("HEAD", "-v")
    assert run.code == OK, run.out
    assert run.verdicts == {"test_twice": "SAME"}
    assert "live pairs (" in run.words


def test_code_that_only_child_processes_ran_is_measured(repository: Repository) -> None:
    """Nobody sees what a child process loads, least of all one that has ended."""
    more = """
    import subprocess, sys

    def spawn():
        return subprocess.run([sys.executable, "-S", "-c", ""], check=True)
    """
    repository.library("base", more=more)
    repository.write("mylib/elsewhere.py", "VALUE = 1\n")
    repository.write("tests/test_it.py", "import mylib\n\ndef test_spawn(rlperf):\n    rlperf(mylib.spawn)\n")
    repository.commit()
    repository.write("mylib/elsewhere.py", "VALUE = 2\n")
    run = repository.against("HEAD", "-v", "--rlperf-pairs=2..2", "--rlperf-max-time=1")
    assert run.code == OK, run.out
    assert "live pairs (" in run.words


def test_other_work_a_call_is_incomparable(repository: Repository) -> None:
    """Two sides whose calls do not do as much are not compared, and the reader is told both figures."""
    repository.library("base", more="SIZE = 64\n")
    repository.write(
        "tests/test_it.py",
        "import mylib\n\ndef test_sized(rlperf):\n    rlperf(mylib.rest, items=mylib.SIZE, unit='samples')\n",
    )
    repository.commit()
    repository.library("head", more="SIZE = 128\n")
    run = repository.against("HEAD")
    assert run.code == OK, run.out
    assert run.verdicts == {"test_sized": "INCOMPARABLE"}
    assert "128 samples on" in run.words
    assert "64 samples on HEAD" in run.words


def test_json_that_cannot_be_written_is_a_usage_error(repository: Repository) -> None:
    """Whoever reads the file must not find yesterday's, or none, after a run that passed."""
    directory = repository.against("HEAD", "--rlperf-json=tests")
    assert directory.code == USAGE, directory.out
    assert "is a directory: name a file to write" in directory.words
    beyond = repository.against("HEAD", "--rlperf-json=conftest.py/run.json")
    assert beyond.code == USAGE, beyond.out
    assert "cannot write --rlperf-json" in beyond.words


@pytest.mark.slow
def test_a_name_that_is_missing_on_base_is_new(repository: Repository) -> None:
    """A test of something new passes as NEW beside one that is compared."""
    repository.library("head", more="\ndef added():\n    return sum(range(300))\n")
    repository.write("tests/test_it.py", f"{TESTS}\ndef test_added(rlperf):\n    rlperf(mylib.added)\n")
    repository.commit()
    run = repository.against("HEAD~1", "-k", "added or rest")
    assert run.code == OK, run.out
    verdicts = run.verdicts
    assert verdicts.pop("test_added") == "NEW"
    assert verdicts in ({"test_rest": "SAME"}, {"test_rest": "UNDECIDED"})  # which only a machine too busy to tell is
    assert "has no attribute 'added'" in run.words


@pytest.mark.slow
def test_nothing_that_runs_on_base_is_a_usage_error(repository: Repository) -> None:
    """A comparison in which no test could be compared is no pass."""
    repository.library("head", more="\ndef added():\n    return sum(range(300))\n")
    repository.write("tests/test_it.py", "import mylib\n\ndef test_added(rlperf):\n    rlperf(mylib.added)\n")
    repository.commit()
    run = repository.against("HEAD~1")
    assert run.code == USAGE, run.out
    assert "no gated test runs on HEAD~1" in run.words


def test_a_base_that_cannot_be_imported_is_a_usage_error(repository: Repository) -> None:
    """Base's own traceback says why nothing can be compared."""
    repository.library("broken", more="\nraise RuntimeError('base is broken')\n")
    repository.commit()
    repository.library("head")
    repository.commit()
    run = repository.against("HEAD~1")
    assert run.code == USAGE, run.out
    assert "RuntimeError: base is broken" in run.out
    assert "HEAD~1" in run.words
    assert repository.left_over() == []


def test_a_side_that_loads_the_others_code_is_a_usage_error(repository: Repository) -> None:
    """Base must not run head's files, whatever puts them on its path; the file is named."""
    repository.write("conftest.py", f"import sys\nsys.path.insert(0, {str(repository.root)!r})\n")
    repository.library("head", times=5)
    repository.commit()
    run = repository.against("HEAD~1", "-k", "work")
    assert run.code == USAGE, run.out
    assert f"mylib is {repository.root / 'mylib' / '__init__.py'}, imported by test_it" in run.out.replace("\n", "")


# ------------------------------------------------------------------ processes


def test_a_worker_that_dies_in_a_pair_is_an_error_of_its_test(repository: Repository) -> None:
    """The dead side is named with its last words, and the next test is compared as if nothing had been."""
    fatal = """
    import os, signal, sys
    calls = 0

    def work():
        global calls
        calls += 1
        if calls > 2000:
            print("last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return sum(range(400))
    """
    repository.library("fatal", more=fatal)
    repository.commit()
    repository.library("head")
    repository.commit()
    run = repository.against("HEAD~1")
    assert run.code == FAILED, run.out
    assert "base worker 0 was killed by SIGKILL" in run.words
    assert "last words" in run.out
    assert run.verdicts == {"test_rest": "SAME"}
    assert repository.left_over() == []


COLLIDING = """
import socket
from pathlib import Path

import mylib
import pytest

def take(kind):
    if kind == "file":
        open({file!r}, "x")
    else:
        try:
            socket.socket().bind(("127.0.0.1", {port}))
        except OSError as error:
            raise RuntimeError("no server") from error

@pytest.fixture
def taken(request):
    side, kind = request.param
    if mylib.SIDE == side:
        take(kind)

@pytest.fixture
def lock():
    path = Path({file!r} + ".lock")
    with path.open("x"):
        yield
    path.unlink()

CASES = [(side, kind) for side in ("base", "head") for kind in ("file", "port")]

@pytest.mark.parametrize("taken", CASES, indirect=True, ids="-".join)
def test_taken(rlperf, taken):
    rlperf(mylib.work)

def test_lock(rlperf, lock):
    rlperf(mylib.work)

@pytest.fixture
def on_base():
    if mylib.SIDE == "base":
        take("file")

def test_work(rlperf, on_base):
    rlperf(mylib.work)
"""


def write_colliding(repository: Repository, port: int = 0) -> None:
    """Write tests whose sides collide: with each other over a lock, or with a file and a port that another has."""
    taken = repository.tmp.parent / "taken"
    taken.touch()
    repository.write("tests/test_it.py", COLLIDING.format(file=str(taken), port=port))
    repository.library("head")
    repository.commit()


def test_a_port_or_file_that_the_other_side_has_is_an_error_with_its_way_out(repository: Repository) -> None:
    """Whichever side comes second, the failure names the sides, the error and what processes do not share."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        write_colliding(repository, server.getsockname()[1])
        run = repository.against("HEAD~1", "--rlperf-lanes=1", "--junitxml=junit.xml", "-k", "taken or lock")
    assert run.code == FAILED, run.out
    cases = ElementTree.parse(repository.root / "junit.xml").iter("testcase")  # noqa: S314 - pytest wrote it
    failures = {str(case.get("name")): " ".join(text or "" for text in case.itertext()) for case in cases}
    assert len(failures) == 5
    for name, text in failures.items():
        error, way_out = (errno.EADDRINUSE, "port 0") if "port" in name else (errno.EEXIST, "tmp_path")
        sides = ("base worker 0", "head worker 0") if "base" in name else ("base", "head")
        assert [part for part in (*sides, f"[Errno {error}]", way_out) if part not in text] == [], name


def test_a_file_that_the_other_side_has_is_no_missing_test(repository: Repository, fast: Store) -> None:
    """Stored numbers do not stand in for the baseline's commit where it fails for a file that head has."""
    write_colliding(repository)
    run = repository.run("--rlperf", *QUICK, *DECISIVE, "-k", "work")
    assert run.code == FAILED, run.out
    assert run.verdicts == {}
    assert f"[Errno {errno.EEXIST}]" in run.out
    assert "tmp_path" in run.out


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other(repository: Repository) -> None:
    """Both prepare the same side of the same checkout, and both find what there is to find."""
    repository.library("head", times=5)
    repository.commit()
    args = ("--rlperf-against=HEAD~1", *QUICK, *DECISIVE, "-k", "work")
    runs = []
    with repository.start(*args) as one, repository.start(*args) as other:
        for process in (one, other):
            out, _ = process.communicate(timeout=180)
            runs.append(Run(process.returncode, out))
    for run in runs:
        assert run.code == FAILED, run.out
        assert run.verdicts == {"test_work": "SLOWER"}


def members(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """Wait until a run has ``count`` worker processes, and return them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [
            child
            for child in psutil.Process(process.pid).children(recursive=True)
            if "pytest_rlperf.workers.session" in " ".join(_command(child))
        ]
        if len(found) >= count:
            return found
        if process.poll() is not None:
            break
    raise AssertionError(f"no {count} workers; the run wrote: {process.communicate()[0]}")


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_run(repository: Repository, how: signal.Signals) -> None:
    """Workers of both sides end with an interrupted run, and with one that is killed."""
    repository.library("head", times=2)
    repository.commit()
    with repository.start("--rlperf-against=HEAD~1", "--rlperf-max-time=30", "--rlperf-pairs=4..10") as process:
        workers = members(process, 4)
        process.send_signal(how)
        process.communicate(timeout=60)
        _, alive = psutil.wait_procs(workers, timeout=20)
    assert alive == []
    if how is signal.SIGINT:
        assert process.returncode == pytest.ExitCode.INTERRUPTED
        assert repository.left_over() == []


# ------------------------------------------------------------------ stored suspicion, live settlement


def rewrite(path: Path, change: Any) -> None:
    """Change what a baseline file holds."""
    data = json.loads(path.read_bytes())
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def five_times_as_fast(data: dict[str, Any]) -> None:
    """Make stored figures such that everything after them looks slower."""
    for entry in data["results"].values():
        for worker in entry["result"]["workers"]:
            for clock in {"wall", "cpu"} & set(worker):
                worker[clock] = {name: value / 5 for name, value in worker[clock].items()}


SETTLE = ("--rlperf", *QUICK, *DECISIVE, "-k", "work")


@pytest.mark.slow
def test_a_suspicion_is_settled_by_the_baselines_own_commit(repository: Repository, stored: Path) -> None:
    """Stored numbers that see a slowdown do not convict: live pairs against their commit do, or find none."""
    rewrite(stored, five_times_as_fast)
    repository.library("head")  # other code, as fast
    acquitted = repository.run(*SETTLE, "-v")
    assert acquitted.code == OK, acquitted.out
    assert acquitted.verdicts == {"test_work": "SAME"}
    assert "live pairs (" in acquitted.words
    assert re.search(r"stored on [\d-]+: .* a call, by another session", acquitted.words), acquitted.out

    repository.library("head", times=5)
    convicted = repository.run(*SETTLE)
    assert convicted.code == FAILED, convicted.out
    assert convicted.verdicts == {"test_work": "SLOWER"}
    sha = repository.git("rev-parse", "--short=12", "HEAD")
    assert f"with commit {sha}, live" in convicted.words, convicted.out
    assert "live pairs" in convicted.words


@pytest.mark.usefixtures("fast")
def test_equal_code_is_acquitted_without_live_pairs(repository: Repository) -> None:
    """Where the baseline's commit has the same code, a suspicion is the machine's."""
    run = repository.run(*SETTLE, *STORED)
    assert run.code == OK, run.out
    assert run.verdicts == {"test_work": "SAME"}
    assert "same code as commit" in run.words
    assert "stored numbers show ×" in run.words


@pytest.mark.slow
def test_a_baseline_of_another_machine_is_settled_live(repository: Repository, stored: Path) -> None:
    """Its numbers mean nothing here, its commit does."""
    rewrite(stored, lambda data: data["machine"].update(cpu="another processor"))
    stored.rename(stored.with_name("another-machine.json"))
    repository.library("head", times=5)
    run = repository.run(*SETTLE)
    assert run.code == FAILED, run.out
    assert run.verdicts == {"test_work": "SLOWER"}


def test_a_commit_that_git_has_not_is_not_run(repository: Repository, fast: Store) -> None:
    """A baseline may name any commit; only one of the local history is run, else the numbers are all there is."""

    def forget(data: dict[str, Any]) -> None:
        for session in data["sessions"].values():
            session["commit"] = "a" * 40

    rewrite(fast.path, forget)
    repository.library("head")
    run = repository.run(*SETTLE, *STORED)
    assert run.code == FAILED, run.out
    assert "stored numbers only" in run.words
    assert "not settled live" in run.words


# ------------------------------------------------------------------ self-check


TOLD = ["SAME", "SLOWER", "SLOWER"]  # of unchanged code and of two slowdowns


@pytest.mark.slow
def test_selfcheck_tells_what_the_machine_can(repository: Repository) -> None:
    """Unchanged code is not called slower, nor slower code the same, and the machine is fit if all that was found."""
    larger = "from pytest_rlperf.run import selfcheck\nselfcheck.SLOWDOWNS = (2.0, 4.0)\n"
    (repository.root / "larger.py").write_text(larger, encoding="utf-8")
    arguments = (*QUICK, *DECISIVE, "-p", "larger", "--rlperf-json=self.json", "-k", "work")
    run = repository.run("--rlperf-selfcheck", *arguments)
    assert run.code == OK, run.out
    document = json.loads((repository.root / "self.json").read_text(encoding="utf-8"))
    assert document["kind"] == "selfcheck"
    trials = document["tests"]["tests/test_it.py::test_work"]["trials"]
    found = [trial["verdict"]["status"] for trial in trials]
    # A busy machine may be too busy to tell; that is what a self-check is for, and no reason to call anything wrong.
    assert [status if status != "UNDECIDED" else told for status, told in zip(found, TOLD, strict=True)] == TOLD
    if found[2] == "SLOWER":
        assert trials[2]["verdict"]["estimate"]["ratio"] == pytest.approx(5, rel=0.3)
    is_fit = found == TOLD
    assert document["fitness"] == {
        "tolerance": 0.5,
        "is_fit": is_fit,
        "false_alarms": 0,
        "reasons": [
            f"0 false alarms; {found.count('SAME')} of 1 unchanged test SAME",
            document["fitness"]["reasons"][1],
        ],
    }
    assert "+200 %" in run.words
    assert f"fit {'yes' if is_fit else 'no'}" in run.words
