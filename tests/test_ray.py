"""Tests measured on the nodes of a Ray cluster: the parts without Ray, and runs on two nodes of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from builders import ONE_CALL, environment, git, outcome, pair, result, scratch_left, write

from pytest_rlperf.model import Live, Project
from pytest_rlperf.run import ray_cluster
from pytest_rlperf.run.ray_cluster import (
    AnswerError,
    Parcel,
    UnfinishedError,
    group_tests,
    imported_in,
    lacking,
    read_answer,
    wants_node,
)
from pytest_rlperf.run.ray_node import Order, entries_in, measure, own_cpus
from pytest_rlperf.sides.git import find_repository, restore_history

OK, FAILED, INTERRUPTED, USAGE = 0, 1, 2, 4
VERSION = importlib.metadata.version("pytest-rlperf")


# --------------------------------------------------------------------------- parts without Ray


@pytest.mark.parametrize(
    ("files", "shared", "cpus", "groups"),
    [
        ("", "", 2, []),
        ("aaab", "....", 2, [(0,), (1,), (2,), (3,)]),
        ("aaab", "ss..", 1, [(0, 1), (2,), (3,)]),
        ("aaaaaaaaabbb", "............", 1, [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11)]),
        ("aabbbbbbbbbb", "............", 1, [(0, 1), (2, 3, 4), (5, 6, 7), (8, 9, 10), (11,)]),
    ],
)
def test_groups(files: str, shared: str, cpus: int, groups: list[tuple[int, ...]]) -> None:
    """A task has tests of one file, all that share fixtures, and of others so few that each CPU has four tasks."""
    assert group_tests(files, [mark == "s" for mark in shared], cpus) == groups


def test_a_task_has_sixteen_tests_at_the_most() -> None:
    """What a lost node has to be measured again stays small, however many tests there are."""
    groups = group_tests(["a"] * 300, [False] * 300, 1)
    assert max(map(len, groups)) == 16
    assert [place for group in groups for place in group] == list(range(300))


def order(**changes: Any) -> Order:
    """Return an order of two tests."""
    shard = {"number": 1, "count": 2, "collected": 2, "gated": 2, "places": {"a": 0, "b": 1}, "division": "ray"}
    plain = Order("/t", "/t", "/t", None, "/t/baselines", [], "", [], ["t.py::a", "t.py::b"], 60.0, None, 1, shard)
    return dataclasses.replace(plain, **changes)


PLACES, KEYS = {"t.py::a": 0, "t.py::b": 1}, {"t.py::a": "a", "t.py::b": "b"}
WELL = {"status": 0, "error": "", "events": [["t.py::a", "report", "{}"]], "run": None}


def answered(**changes: object) -> tuple[str, bytes, bytes]:
    """Return an answer of a node, with changes to its fields."""
    return "node", json.dumps({**WELL, **changes}).encode(), b"first line\n\x1b[31mlast line\n"


def test_an_answer_has_each_tests_events() -> None:
    """A test without a report has the end of the node's output as its fault, in which no control character is left."""
    answer = read_answer(answered(), order(), PLACES, KEYS)
    assert answer.tests[0].events == (("report", "{}"),)
    assert not answer.tests[0].fault
    expected = "pytest ended there (exit status 0) without a report of this test\n  first line\n  \\x1b[31mlast line"
    assert answer.tests[1].fault == expected


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (None, "the task returned something else than bytes"),
        (("node", "text", b""), "the task returned something else than bytes"),
        (("node", b"", b"\nIt broke"), "pytest ended there without an answer\n  It broke"),
        (("node", b"{", b""), "its JSON cannot be read: not JSON: "),
        (("node", b"[" * 100_000, b""), "its JSON cannot be read: not JSON: "),
        (("node", b"[]", b""), "its answer has other fields: TypeError"),
        (("node", b"{}", b""), "its answer has other fields: KeyError"),
        (answered(events=7), "its answer has other fields: TypeError"),
        (answered(events=[[{}, "report", ""]]), "its answer has other fields: TypeError"),
        (answered(events=[["t.py::c\n", "report", ""]]), "it has an event of t.py::c\\n, which it was not to measure"),
        (answered(run=7), "its answer has other fields: AttributeError"),
        (answered(run="{}"), "its JSON cannot be read: $.schema is None, expected a whole number"),
    ],
    ids=lambda value: None if isinstance(value, str) else "-",
)
def test_a_hostile_answer(data: object, fault: str) -> None:
    """Whatever a node answers is one sentence, and ends no run."""
    with pytest.raises(AnswerError) as raised:
        read_answer(data, order(), PLACES, KEYS)
    assert str(raised.value).startswith(fault)


@pytest.mark.parametrize("data", [("node", b"", b""), answered(status=2)])
def test_an_unfinished_answer(data: object) -> None:
    """A node's pytest that was killed or interrupted may do better elsewhere."""
    with pytest.raises(UnfinishedError):
        read_answer(data, order(), PLACES, KEYS)


def test_the_output_has_nothing_of_rays() -> None:
    """Ray's own thread prints the log of a node that died; what others print is shown."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(ray_cluster._WithoutRay(shown)):
        thread = threading.Thread(target=print, args=["a log"], name="ray_listen_error_messages")
        thread.start()
        thread.join()
        sys.stdout.write("a line\n")
    assert shown.getvalue() == "a line\n"


def test_a_usage_error_of_a_node_is_one_of_the_run() -> None:
    """All other nodes would say the same."""
    with pytest.raises(pytest.UsageError, match=r"^node: no such commit$"):
        read_answer(answered(error="no such commit"), order(), PLACES, KEYS)


@pytest.mark.parametrize(
    ("answer", "faults"),
    [
        ({"git": "", "pytest_rlperf": "", "torch": "", "version": VERSION}, []),
        ({"git": "", "pytest_rlperf": "", "torch": "No module named 'torch'", "version": VERSION}, ["n lacks torch"]),
        (
            {"git": "", "pytest_rlperf": "", "torch": "cannot load libcuda", "version": VERSION},
            ["n lacks torch (cannot load libcuda)"],
        ),
        (
            {"git": "", "pytest_rlperf": "", "torch": "", "version": "0.0.1"},
            [f"n has pytest-rlperf 0.0.1, and this machine has {VERSION}"],
        ),
        (7, ["n lacks git (no answer), pytest_rlperf (no answer), torch (no answer)"]),
    ],
)
def test_what_a_node_lacks(answer: object, faults: list[str]) -> None:
    """A node has to have what the tests import, and the same pytest-rlperf."""
    assert lacking([("n", answer)], ["torch"], VERSION) == faults


def test_packages_that_the_tree_imports(tmp_path: Path) -> None:
    """They are those that its loaded modules have imported, by ``import`` and by ``from``."""
    path = write(tmp_path, {"mine.py": "import json\nimport numpy.random\nfrom msgspec import Struct\n"}) / "mine.py"
    mine = ModuleType("mine")
    mine.__file__ = str(path)
    exec(path.read_text(), vars(mine))  # noqa: S102 - written above
    assert imported_in({**sys.modules, "mine": mine}, tmp_path) == {"numpy", "msgspec"}


def test_work_of_several_cpus_wants_a_node() -> None:
    """It was not placed on the one CPU that its task had."""
    assert not wants_node(outcome(live=live(placed=0)))
    assert wants_node(outcome(live=live(placed=None)))
    assert not wants_node(None)


def live(placed: int | None) -> Live:
    """Return live pairs that were placed on a CPU, or by the kernel."""
    return Live("base", "head", result(), (pair(0.0), pair(0.0, placed=placed)), ())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are placed on Linux only")
def test_each_process_has_cpus_of_its_own() -> None:
    """No CPU is held twice, and all are free once their holders have ended."""
    before = os.sched_getaffinity(0)
    with own_cpus(1) as first:
        assert os.sched_getaffinity(0) == set(first)
        os.sched_setaffinity(0, before)
        with own_cpus(len(before)) as others:
            assert not set(first) & set(others)
    assert os.sched_getaffinity(0) == before


def test_entries_of_the_search_path_in_the_tree(tmp_path: Path) -> None:
    """Those outside it, and environments in it, do not travel."""
    write(tmp_path, {"src/a.py": "", ".venv/pyvenv.cfg": "", "tests/b.py": ""})
    path = ["", str(tmp_path / "src"), "../src", str(tmp_path / ".venv"), "/usr/lib"]
    assert entries_in(path, tmp_path / "tests", tmp_path) == ["tests", "src"]


def test_history_travels(tmp_path: Path) -> None:
    """A branch, HEAD and the changes of the tree are the same where a bundle is unpacked."""
    root, there = write(tmp_path / "here", {"a": "1\n"}), tmp_path / "there"
    git(root, "init", "--quiet", "--initial-branch=main")
    commit = ("-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "--quiet", "--message=change")
    git(root, "add", "--all")
    git(root, *commit)
    git(root, "switch", "--quiet", "--create", "side")
    git(root, *commit, "--allow-empty")
    git(root, "switch", "--quiet", "main")
    git(root, *commit, "--allow-empty")
    here = find_repository(root)
    here.pack_history(["side", "origin/side", "HEAD~1"], [], tmp_path / "bundle", tmp_path / "shallow")
    write(there, {"a": "2\n"})
    restore_history(there, here.head, tmp_path / "bundle", tmp_path / "shallow")
    restored = find_repository(there)
    assert restored.head == here.head
    assert restored.resolve("side") == here.resolve("side")
    assert restored.differing(here.head) == ["a"]


def test_a_node_measures_what_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's pytest has the tree with its changes, takes the order's tests alone and sends back reports and JSON."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    tests = "import mylib\n\ndef test_a(rlperf):\n    rlperf(mylib.same)\n\ndef test_b(rlperf):\n    assert 0\n"
    root = write(tmp_path / "here", {"pytest.ini": "[pytest]\n", "conftest.py": "", "test_it.py": tests})
    write(root, {"mylib.py": LIBRARY.format(times=1)})
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "--quiet", "--message=first")
    write(root, {"mylib.py": LIBRARY.format(times=2)})
    project = Project(root, root, root / "pytest.ini", ONE_CALL, ("",), (), (), (), (), root / "baselines")
    parcel = Parcel.of(project, [root / "test_it.py"])
    there = tmp_path / "there"
    there.mkdir()
    parcel.pack(there, None, [])
    assert parcel.repository is not None
    places = {"test_it.py::test_a": 0}
    sent = order(
        **{"top": str(root), "rootdir": str(root), "directory": str(root), "inipath": str(root / "pytest.ini")},
        **{"baseline_dir": str(root / "baselines"), "args": ["-p", "rlperf", *ONE_CALL], "path": list(parcel.path)},
        **{"nodeids": list(places), "head": parcel.repository.head},
        shard={"number": 1, "count": 2, "collected": 2, "gated": 7, "places": places, "division": "ray"},
    )
    monkeypatch.chdir(there)
    answer, log = measure(json.dumps(dataclasses.asdict(sent)).encode())
    read = read_answer(("node", answer, log), sent, places, {"test_it.py::test_a": "test_it.py::test_a"})
    assert [kind for kind, _ in read.tests[0].events] == ["report"] * 3, log.decode()
    assert [json.loads(event)["outcome"] for _, event in read.tests[0].events] == ["passed"] * 3
    assert read.tests[0].outcome is not None
    assert read.run is not None
    assert read.run.provenance is not None
    assert (read.run.provenance.commit, read.run.provenance.dirty) == (parcel.repository.head, True)
    assert (there / "tree" / "mylib.py").read_text() == LIBRARY.format(times=2)


def test_without_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pytest.UsageError, match=r"needs Ray .*: pip install 'pytest-rlperf\[ray\]'$"):
        ray_cluster.connected("auto", tmp_path).__enter__()


def test_where_nothing_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray itself would try again for long."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(pytest.UsageError, match=r"^--rlperf-ray=127.0.0.1:1: no Ray cluster to connect to: .*refused$"):
        ray_cluster.connected("127.0.0.1:1", tmp_path).__enter__()


# --------------------------------------------------------------------------- two nodes on this machine

TESTS = """
import time
import warnings
from pathlib import Path

import mylib
import pytest

def test_same(rlperf):
    warnings.warn("a warning of a test")
    rlperf(mylib.same)

def test_slower(rlperf):
    rlperf(mylib.slower)

def test_fails(rlperf):
    print("its output")
    assert rlperf(mylib.same) is None

def test_skips(rlperf):
    pytest.skip("no need")

@pytest.mark.xfail(reason="known")
def test_xfails(rlperf):
    rlperf(mylib.same)
    raise ValueError

@pytest.fixture
def broken():
    raise RuntimeError("not made")

def test_has_no_fixture(broken, rlperf):
    rlperf(mylib.same)

@pytest.mark.parametrize("size", [1, 2])
def test_sizes(rlperf, size):
    rlperf(lambda: sum(range(1000 * size)))
"""
WAITING = """
import os
import time
from pathlib import Path

def test_first(rlperf):
    rlperf(lambda: sum(range(1000)))

def test_waits(rlperf):
    place = Path(os.environ["WAITING"])
    (place / str(os.getpid())).touch()
    while not (place / "go").exists():
        time.sleep(0.05)
    rlperf(lambda: sum(range(1000)))
"""
LIBRARY = "def same():\n    return sum(range(2000))\n\ndef slower():\n    return sum(range(1000 * {times}))\n"


class OnCluster:
    """A project in git, and a cluster on which it is measured; ``nodes`` have one CPU each."""

    def __init__(self, scratch: Path, nodes: int, head_cpus: int) -> None:
        from ray import cluster_utils

        self.root, self.tmp, self.waiting = scratch / "project", scratch / "tmp", scratch / "waiting"
        self.tmp.mkdir()
        self.waiting.mkdir()
        self.variables = environment(
            COLUMNS="100", TMPDIR=str(self.tmp), XDG_CACHE_HOME=str(scratch / "cache"), WAITING=str(self.waiting)
        )
        self._before = dict(os.environ)
        # Ray's sockets have names in its directory, which may have few characters.
        self._directory = tempfile.mkdtemp(prefix="r", dir="/tmp")
        os.environ.update(self.variables, RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=self._directory)
        self._small = {"object_store_memory": 80_000_000}
        head = {"num_cpus": head_cpus, "include_dashboard": False, **self._small}
        self.cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add_node() for _ in range(nodes)]
        write(self.root, {"pytest.ini": "[pytest]\n", "conftest.py": "", "tests/test_it.py": TESTS})
        write(self.root, {"mylib/__init__.py": LIBRARY.format(times=2)})
        git(self.root, "init", "--quiet", "--initial-branch=main", env=self.variables)
        self.commit()

    def add_node(self) -> Any:
        """Add a node with one CPU."""
        return self.cluster.add_node(num_cpus=1, **self._small)

    def commit(self) -> None:
        """Commit everything."""
        git(self.root, "add", "--all", env=self.variables)
        git(self.root, "commit", "--quiet", "--message=change", env=self.variables)

    def start(self, *args: str, **variables: str) -> subprocess.Popen[str]:
        """Start a measured run in the project."""
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "rlperf", "-p", "no:cacheprovider", *args],
            cwd=self.root,
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *args: str, **variables: str) -> tuple[int, str]:
        """Return the exit status and the output of a measured run."""
        return ended(self.start(*args, **variables))

    @property
    def address(self) -> str:
        """The option that names the cluster."""
        return f"--rlperf-ray={self.cluster.address}"

    def end(self) -> None:
        """End the cluster's processes."""
        self.cluster.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.environ.clear()
        os.environ.update(self._before)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[[int, int], OnCluster]]:
    """Return a function that starts a cluster of some nodes beside its head, with a project."""
    pytest.importorskip("ray")
    made = []

    def make(nodes: int, head_cpus: int) -> OnCluster:
        made.append(OnCluster(tmp_path, nodes, head_cpus))
        return made[-1]

    yield make
    for cluster in made:
        cluster.end()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit status and the output of a run, which is killed where it takes too long."""
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out


def lines_of(out: str) -> list[str]:
    """Return the lines of ``-v``, without the progress."""
    lines = [re.sub(r"\s+\[ *\d+%\]$", "", line) for line in out.splitlines()]
    return [line for line in lines if re.match(r"tests/\S+::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b", line)]


def wait_for(happens: Callable[[], object], limit_s: float = 90) -> None:
    """Wait until something happens; an assertion fails where it does not."""
    end_s = time.monotonic() + limit_s
    while not happens():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def measuring(project: OnCluster) -> list[psutil.Process]:
    """Return the processes of tasks that measure a project, and their workers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_own = process.environ().get("WAITING") == str(project.waiting)
            if is_own and any("pytest_rlperf" in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.slow
def test_a_run_on_two_nodes_is_as_one_here(make_cluster: Callable[[int, int], OnCluster], tmp_path: Path) -> None:
    """Passes, failures, skips and a SLOWER test have the same results, in the same order, with nodes' names."""
    project = make_cluster(1, 1)
    write(project.root, {"mylib/__init__.py": LIBRARY.format(times=10)})
    project.commit()
    live = ("--rlperf", "--rlperf-against=git:HEAD~1", "--rlperf-tolerance=60%", "--rlperf-max-time=6", "-v")
    code_here, here = project.run(*live)
    code, out = project.run(*live, project.address, f"--rlperf-json={tmp_path / 'run.json'}")
    assert lines_of(out) == lines_of(here), out
    assert code == code_here == FAILED
    assert len(lines_of(out)) == 8
    assert "tests/test_it.py::test_slower FAILED" in lines_of(out)
    assert "PerformanceRegression: SLOWER" in out
    assert "a warning of a test" in out
    assert "its output" in out
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["tests"]["tests/test_it.py::test_slower"]["verdict"]["status"] == "SLOWER"
    assert list(document["tests"]) == sorted(document["tests"], key=[line.split()[0] for line in lines_of(out)].index)
    names = [part["name"] for part in document["parts"]]
    assert len(names) == 2
    assert all(name in re.sub(r"\s+", " ", out) for name in names)
    assert sorted(key for part in document["parts"] for key in part["tests"]) == sorted(document["tests"])
    assert not document["provenance"]["dirty"]


@pytest.mark.slow
def test_a_node_that_dies_has_its_test_measured_elsewhere(make_cluster: Callable[[int, int], OnCluster]) -> None:
    """The run passes with a note, and nothing of the lost node goes on."""
    project = make_cluster(1, 0)
    write(project.root, {"tests/test_it.py": WAITING})
    with project.start(*ONE_CALL, project.address, "-v", "-k", "waits") as process:
        wait_for(lambda: list(project.waiting.iterdir()))
        project.add_node()
        project.cluster.remove_node(project.nodes[0], allow_graceful=False)
        (project.waiting / "go").touch()
        code, out = ended(process)
    assert code == OK, out
    assert lines_of(out) == ["tests/test_it.py::test_waits PASSED"]
    assert "a node was lost, and 1 test measured elsewhere (test_waits)" in re.sub(r"\s+", " ", out)
    wait_for(lambda: not measuring(project))


@pytest.mark.slow
def test_an_interrupt_ends_the_tasks(make_cluster: Callable[[int, int], OnCluster]) -> None:
    """Ctrl-C leaves no process and no file of the run behind; what was measured is shown."""
    project = make_cluster(0, 1)
    write(project.root, {"tests/test_it.py": WAITING})
    with project.start(*ONE_CALL, project.address, "-v") as process:
        wait_for(lambda: list(project.waiting.iterdir()))
        assert measuring(project)
        process.send_signal(signal.SIGINT)
        code, out = ended(process)
    assert code == INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    assert lines_of(out) == ["tests/test_it.py::test_first PASSED"]
    wait_for(lambda: not measuring(project))
    assert scratch_left(project.tmp) == []


@pytest.mark.slow
def test_a_package_that_nodes_lack(make_cluster: Callable[[int, int], OnCluster], tmp_path: Path) -> None:
    """The run ends with one sentence before anything is measured; so it does at -x after the first failure."""
    project = make_cluster(0, 1)
    write(tmp_path / "elsewhere", {"needle.py": "SIZE = 1\n"})
    write(project.root, {"tests/test_it.py": "import needle\n" + WAITING})
    code, out = project.run(*ONE_CALL, project.address, PYTHONPATH=str(tmp_path / "elsewhere"))
    assert code == USAGE
    (line,) = (line for line in out.splitlines() if "needle" in line)
    assert re.fullmatch(r"ERROR: --rlperf-ray: \S+ lacks needle: install on every node what this machine has", line)
    assert not list(project.waiting.iterdir())
    write(project.root, {"tests/test_it.py": "def test_a(rlperf):\n    assert 0\n\ndef test_b(rlperf):\n    pass\n"})
    code, out = project.run(*ONE_CALL, project.address, "-x", "-v")
    assert code == FAILED
    assert lines_of(out) == ["tests/test_it.py::test_a FAILED"]
