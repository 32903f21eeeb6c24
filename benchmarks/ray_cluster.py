"""Time, overhead and memory of a run on a Ray cluster of two nodes on this machine, beside the same run without Ray.

A project of trivial tests is made in a scratch directory, whose last commit changes a comment of the code under test;
its tests are compared live with the commit before. Each node has one CPU. Prints a Markdown table and judges nothing::

    python benchmarks/ray_cluster.py --tests 20               # without Ray and on two nodes
    python benchmarks/ray_cluster.py --tests 300 --lanes 2    # without Ray in two lanes only
    python benchmarks/ray_cluster.py --tests 4 --kill         # the output of a run with a node killed meanwhile
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

LIBRARY = "def work():\n    return sum(range(20000))  # about 0.3 ms\n"
TESTS = """
import pytest
import mylib

@pytest.mark.parametrize("case", range({tests}))
def test_work(rlperf, case):
    rlperf(mylib.work)
"""
LIVE = ("--rlperf", "--rlperf-against=git:HEAD~1", "--rlperf-pairs=3..3", "--rlperf-tolerance=10%")
SMALL = {"object_store_memory": 80_000_000}


def git(folder: Path, *arguments: str) -> None:
    """Run git in ``folder``."""
    subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments], cwd=folder, check=True)


def make_project(root: Path, tests: int) -> Path:
    """Return a repository of two commits with so many tests."""
    (root / "mylib").mkdir(parents=True)
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "conftest.py").write_text("")
    (root / "mylib" / "__init__.py").write_text(LIBRARY)
    (root / "test_it.py").write_text(TESTS.format(tests=tests))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=work")
    (root / "mylib" / "__init__.py").write_text(f"{LIBRARY}# another\n")
    git(root, "commit", "--quiet", "--all", "--message=a comment")
    return root


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Any, Any]]:
    """Start a cluster; yield it and its second node."""
    short = tempfile.mkdtemp(prefix="r", dir="/tmp")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=short)
    from ray import cluster_utils

    head = {"num_cpus": 1, "include_dashboard": False, **SMALL}
    cluster: Any = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    try:
        yield cluster, cluster.add_node(num_cpus=1, **SMALL)
    finally:
        cluster.shutdown()
        shutil.rmtree(short, ignore_errors=True)


class Memory(threading.Thread):
    """The most memory that processes had together which started after this: their proportional set size, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self.started_s = time.time()
        self.ended = threading.Event()

    def run(self) -> None:
        """Look at the processes until it has ended."""
        while not self.ended.wait(0.5):
            self.most = max(self.most, sum(map(self._size, psutil.process_iter())))

    def _size(self, process: psutil.Process) -> int:
        try:
            if process.create_time() < self.started_s:
                return 0
            is_ours = any(word in " ".join(process.cmdline()) for word in ("pytest", "ray::"))
            return int(process.memory_full_info().pss) if is_ours else 0
        except psutil.Error:
            return 0


def measure(project: Path, *arguments: str) -> tuple[float, int, str]:
    """Return the seconds of a run, the most memory that it took, and its last line."""
    memory = Memory()
    memory.start()
    started_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *LIVE, *arguments],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started_s
    memory.ended.set()
    return seconds, memory.most, (done.stdout + done.stderr).strip().splitlines()[-1].strip("= ")


def measuring() -> int:
    """Return how many tasks measure."""
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            count += process.cmdline()[-1:] == ["pytest_rlperf.run.ray_node"]
    return count


def kill(project: Path) -> None:
    """Run the tests on two nodes and kill one while it measures; pass on the output."""
    with two_nodes() as (cluster, node):
        command = [sys.executable, "-m", "pytest", "-v", *LIVE, f"--rlperf-ray={cluster.address}"]
        with subprocess.Popen(command, cwd=project) as process:
            while process.poll() is None and measuring() < 2:
                time.sleep(0.1)
            time.sleep(2)  # both nodes measure
            cluster.remove_node(node, allow_graceful=False)
            process.wait()


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=int, default=20)
    parser.add_argument("--lanes", nargs="*", default=["1", "2"], help="of runs without Ray")
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlperf-") as scratch:
        project = make_project(Path(scratch) / "project", options.tests)
        if options.kill:
            kill(project)
            return
        print("| | seconds | seconds a test | memory, MB | pytest |\n|---|---|---|---|---|")
        for lanes in options.lanes:
            show(f"without Ray, lanes: {lanes}", options.tests, *measure(project, f"--rlperf-lanes={lanes}"))
        with two_nodes() as (cluster, _):
            show("two nodes of one CPU", options.tests, *measure(project, f"--rlperf-ray={cluster.address}"))


def show(title: str, tests: int, seconds: float, memory: int, line: str) -> None:
    """Print a row of the table."""
    print(f"| {title} | {seconds:.0f} | {seconds / tests:.1f} | {memory / 1e6:.0f} | {line} |", flush=True)


if __name__ == "__main__":
    main()
