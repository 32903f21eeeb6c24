"""Shards measured by tasks of Ray: the parts without Ray, and runs on two nodes of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from builders import ALONE, ONE_CALL, environment, git, write

from pytest_rlperf.model.judged import Shard
from pytest_rlperf.run.ray_cluster import ShardAnswer, connected, measure_shard, read_answer
from pytest_rlperf.sides.private import own_directory

OK, FAILED, INTERRUPTED, USAGE = 0, 1, 2, 4
LIBRARY = "def same():\n    return sum(range(2000))\n\ndef slower():\n    return sum(range(1000 * {times}))\n"


Found = tuple[str, bytes, bytes]


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Found]:
    """Return what measures the first of two shards as a task does, and returns what the task returns."""
    scratch = tmp_path_factory.mktemp("scratch")
    tests = "def test_{}(rlperf):\n    rlperf(lambda: 1)\n    assert {}, 'why'\n\n"
    files = {
        "pytest.ini": "[pytest]\n",
        "test_it.py": tests.format("a", 1) + tests.format("b", 0) + tests.format("c", 1),
    }
    root = write(scratch / "project", files)
    variables = environment(**ALONE, XDG_CACHE_HOME=str(scratch / "cache"))

    def run(*args: str) -> Found:
        options = json.dumps({"rlperf_shard": "2/2", "rlperf_ray": None, "rlperf_html": None, "xmlpath": None})
        return measure_shard(str(root), [options, *ONE_CALL, *args], variables)

    return run


@pytest.fixture(scope="module")
def found(measure: Callable[..., Found]) -> Found:
    """Return what the task of a shard of two tests returns, one of which fails."""
    return measure("--junit-xml=x.xml", "--rlperf-ray=127.0.0.1:1")


def test_what_tasks_wait_for_is_this_users_alone(found: Found) -> None:
    """No other user can hold, or put in its place, the file by which one shard of a machine waits for another."""
    assert found[1]
    assert [path.name for path in own_directory().glob("*.lock")] == [f"ray-{found[0]}.lock"]


def shard_in(found: Found) -> Shard:
    shard = json.loads(json.loads(found[1])["run"])["shard"]
    return Shard(shard["number"], shard["count"], tuple(shard["collected"]), shard["common"])


def test_a_task_measures_its_shard(found: Found) -> None:
    """It sends back the run's JSON, and pytest's own reports of its tests alone, tracebacks with them."""
    answer = read_answer(found, shard_in(found))
    assert answer.run is not None, answer.fault
    keys = ["test_it.py::test_b", "test_it.py::test_c"]
    assert list(answer.run.tests) == list(answer.reports) == keys
    (_, failed, _), (_, passed, _) = (answer.reports[key] for key in keys)
    found_in = [pickle.loads(each) for each in (failed.report["when"], failed.report["outcome"])]  # noqa: S301 - our own
    assert (*found_in, pickle.loads(passed.report["outcome"])) == ("call", "failed", "passed")  # noqa: S301
    assert b"assert 0, 'why'" in failed.report["longrepr"]


def test_a_node_of_another_commit_or_other_options(found: Found) -> None:
    """Its figures are not used: its tests have the difference as their fault."""
    shard = shard_in(found)
    other = Shard(shard.number, shard.count, shard.collected, shard.common | {"commit": "abc"})
    answer = read_answer(found, other)
    assert (answer.run, answer.reports) == (None, {})
    assert answer.fault is not None
    assert "commit (None, not abc)" in answer.fault.splitlines()[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"status": 0, "run": null, "reports": []}',
        b'{"status": 0, "run": "{}", "reports": []}',
        b'{"status": 0, "run": 7, "reports": 7}',
    ],
    ids=lambda data: str(data[:30]),
)
def test_an_answer_that_is_none(data: bytes) -> None:
    """It is a fault of its tests, which has the node, the shard and the end of the output, and no control character."""
    shard = Shard(1, 2, ("a", "b"), {})
    answer = read_answer(("node7", data, b"first\n\x1b[31mIt broke\n"), shard)
    assert isinstance(answer, ShardAnswer)
    assert answer.run is None
    assert re.match(r"shard 1 of 2 on node7: \w+Error: .*\nfirst\n\\x1b\[31mIt broke$", answer.fault), answer.fault


def test_without_ray_and_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it; the run ends at once where Ray itself would try for minutes."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pytest.UsageError, match=r"pip install 'pytest-rlperf\[ray\]'$"):
        connected("auto").__enter__()
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with pytest.raises(pytest.UsageError, match=r"^--rlperf-ray=127.0.0.1:1: .*ConnectionRefusedError"):
        connected("127.0.0.1:1").__enter__()


TESTS = """
import mylib
import pytest

def test_same(rlperf):
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
"""
WAITING = """
import os
import time
from pathlib import Path

def test_waits(rlperf):
    place = Path(os.environ["WAITING"])
    (place / str(os.getpid())).touch()
    while not (place / "go").exists():
        time.sleep(0.05)
    rlperf(lambda: sum(range(1000)))
"""


class OnCluster:
    """A project in git, and a cluster on which it is measured: a head, and nodes of one CPU each."""

    def __init__(self, scratch: Path, nodes: int, head_cpus: int) -> None:
        from ray import cluster_utils

        self.root, self.waiting = scratch / "project", scratch / "waiting"
        self.waiting.mkdir()
        self.variables = environment(
            COLUMNS="100", XDG_CACHE_HOME=str(scratch / "cache"), WAITING=str(self.waiting), RAY_USAGE_STATS_ENABLED="0"
        )
        self._before = dict(os.environ)
        # Ray's sockets have names in its directory, which may have few characters.
        self._directory = tempfile.mkdtemp(prefix="r", dir="/tmp")
        os.environ.update(self.variables, RAY_TMPDIR=self._directory)
        self._small = {"object_store_memory": 80_000_000}
        head = {"num_cpus": head_cpus, "include_dashboard": False, **self._small}
        self.cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        for _ in range(nodes):
            self.cluster.add_node(num_cpus=1, **self._small)
        write(self.root, {"pytest.ini": "[pytest]\n", "conftest.py": "", "tests/test_it.py": TESTS})
        write(self.root, {"mylib/__init__.py": LIBRARY.format(times=2)})
        git(self.root, "init", "--quiet", "--initial-branch=main", env=self.variables)
        self.commit()

    def commit(self) -> None:
        git(self.root, "add", "--all", env=self.variables)
        git(self.root, "commit", "--quiet", "--message=change", env=self.variables)

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "rlperf", "-p", "no:cacheprovider", "-v", *args],
            cwd=self.root,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @property
    def address(self) -> str:
        return f"--rlperf-ray={self.cluster.address}"

    def end(self) -> None:
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
        out, _ = process.communicate(timeout=400)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode, out


def lines_of(out: str) -> set[str]:
    """Return the tests of ``-v`` with their outcomes; Ray writes between the lines."""
    return set(re.findall(r"^(tests/\S+ (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL))\b", out, re.MULTILINE))


def wait_for(happens: Callable[[], object], limit_s: float = 90) -> None:
    """Wait until something happens; an assertion fails where it does not."""
    end_s = time.monotonic() + limit_s
    while not happens():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def measuring(project: OnCluster) -> list[psutil.Process]:
    """Return the processes that measure a project for tasks, and their workers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_own = process.environ().get("WAITING") == str(project.waiting)
            if is_own and any("pytest_rlperf" in word for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.slow
def test_a_run_on_two_nodes_is_as_one_here(make_cluster: Callable[[int, int], OnCluster], tmp_path: Path) -> None:
    """Passes, failures, skips and a SLOWER test have the same outcomes and texts, and one JSON has all figures."""
    project = make_cluster(1, 1)
    write(project.root, {"mylib/__init__.py": LIBRARY.format(times=10)})
    project.commit()
    live = ("--rlperf", "--rlperf-against=git:HEAD~1", "--rlperf-tolerance=60%", "--rlperf-max-time=6")
    code_here, here = ended(project.start(*live))
    code, out = ended(project.start(*live, project.address, f"--rlperf-json={tmp_path / 'run.json'}"))
    assert lines_of(out) == lines_of(here), out
    assert (code, code_here) == (FAILED, FAILED)
    assert len(lines_of(out)) == 6
    for text in ("PerformanceRegression: SLOWER", "its output", "RuntimeError: not made"):
        assert text in out
    document = json.loads((tmp_path / "run.json").read_text())
    names = ["test_same", "test_slower", "test_fails", "test_xfails", "test_has_no_fixture"]
    assert list(document["tests"]) == [f"tests/test_it.py::{name}" for name in names]
    assert document["tests"]["tests/test_it.py::test_slower"]["verdict"]["status"] == "SLOWER"
    assert len(document["parts"]) == 4
    assert not document["provenance"]["dirty"]


@pytest.mark.slow
@pytest.mark.usefixtures("in_foreground")
def test_an_interrupt_ends_the_tasks(make_cluster: Callable[[int, int], OnCluster]) -> None:
    """Ctrl-C leaves no process of the run behind."""
    project = make_cluster(0, 1)
    write(project.root, {"tests/test_it.py": WAITING})
    with project.start(*ONE_CALL, project.address) as process:
        wait_for(lambda: list(project.waiting.iterdir()))
        assert measuring(project)
        process.send_signal(signal.SIGINT)
        code, out = ended(process)
    assert code == INTERRUPTED, out
    wait_for(lambda: not measuring(project))
