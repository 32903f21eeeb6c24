"""Timers in the worker processes of the libraries that RL code runs its environments with, each run for real.

Each scenario is a script in ``processes``, as timers are armed when they are imported. The tests of Ray need the extra
``ray``: ``pip install -e '.[test,rl,ray]'``, and then ``pytest tests/unit/timers/test_timers_processes.py -k ray``.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_rlperf.model.timing import TimerTree, Timing
from pytest_rlperf.timers import Tree, files, hierarchical_timer, recording, recording_into

SCRIPTS = Path(__file__).parents[2] / "processes"
WORKERS, ROUNDS, STEPS = 2, 2, 5  # as in processes/worlds.py, which needs gymnasium
OFF, STANDBY, ON = (False, False), (True, False), (True, True)
LIBRARIES = ["gymnasium", "stable_baselines3"]
START_METHODS = {"fork": "ForkProcess", "spawn": "SpawnProcess", "forkserver": "ForkServerProcess"}


def run_script(script: str, *arguments: str, armed: str | None) -> Any:
    """Run a script with timers armed or not; return what it told, once all its processes are gone."""
    environment = {name: value for name, value in os.environ.items() if name != "RLPERF_TIMERS"}
    environment |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    if armed is not None:
        environment["RLPERF_TIMERS"] = armed
    with tempfile.TemporaryDirectory() as folder:
        out, said = Path(folder, "out"), Path(folder, "said")
        with said.open("wb") as output:
            # Into a file: what it leaves behind would hold a pipe open. In a session: that is how it is found.
            process = subprocess.Popen(
                [sys.executable, str(SCRIPTS / script), str(out), *arguments],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code = process.wait(timeout=60)
        finally:
            left = leftovers(process)
        assert code == 0, said.read_text(errors="replace")
        assert left == []
        return pickle.loads(out.read_bytes())  # noqa: S301 - of our own making


def leftovers(process: subprocess.Popen[bytes]) -> list[str]:
    """Return what a script's processes are called that outlive it, and end them."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs([found for found in psutil.process_iter() if _session(found) == process.pid], 10)
    for found in alive:
        found.kill()
    return [str(found) for found in alive]


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except (ProcessLookupError, PermissionError):
        return None


def counts(timing: Timing) -> dict[str, int]:
    return {"/".join(path): below.count for path, below in timing.walk()}


def totals(timing: Timing) -> dict[str, int]:
    return {"/".join(path): below.total_ns for path, below in timing.walk()}


def check_sums(timing: Timing) -> None:
    """Assert that a timing and all below it add up, and that no path takes more than the one above it."""
    below_ns = sum(child.total_ns for child in timing.children if not child.is_parallel)
    assert timing.total_ns == timing.self_ns + below_ns
    assert timing.self_ns >= 0
    for child in timing.children:
        check_sums(child)


def check_collected(seen: TimerTree, names: list[str], each: Mapping[str, int]) -> None:
    """Assert that workers' reports were merged as sum and worker by worker, where ``each`` counts one's entries."""
    collect, below = seen.at("collect"), seen.at("collect", "workers")
    check_sums(seen.root)

    # The sum: as many entries as all workers' together, beside what the parent did.
    assert below.is_parallel
    assert below.count == WORKERS * ROUNDS
    assert counts(below) == {path: WORKERS * count for path, count in each.items()}
    assert collect.self_ns == collect.total_ns - sum(child.total_ns for child in collect.children if child is not below)

    # Each worker: its own entries, under a name of its own, and together the sum, to the nanosecond.
    assert [worker.name for worker in seen.workers] == names
    assert all(counts(worker.root) == each for worker in seen.workers)
    for path, total_ns in totals(below).items():
        assert sum(totals(worker.root)[path] for worker in seen.workers) == total_ns
    assert sum(worker.root.total_ns for worker in seen.workers) == below.total_ns
    for worker in seen.workers:
        check_sums(worker.root)

    assert pickle.loads(pickle.dumps(seen)) == seen  # noqa: S301 - of our own making
    assert files.parse(files.write([seen], "json").encode(), "x") == [seen]


def process_names(start_method: str) -> list[str]:
    """Return what multiprocessing calls the first processes of a start method."""
    return [f"{START_METHODS[start_method]}-{number + 1}" for number in range(WORKERS)]


def test_a_copy_of_a_scope_is_as_good() -> None:
    """Scopes that went through pickle, and those made here, may contain each other."""
    copy = pickle.loads(pickle.dumps(hierarchical_timer("step")).replace(b"step", b"went"))  # noqa: S301 - our own
    other = pickle.loads(pickle.dumps(copy))  # noqa: S301 - of our own making
    with recording() as tree, copy, other:
        pass
    assert counts(tree.snapshot().root) == {"went": 1, "went/went": 1}


def worker(name: str, parts: tuple[TimerTree, ...] = ()) -> TimerTree:
    tree = Tree(name)
    with recording_into(tree), hierarchical_timer("step"):
        pass
    return replace(tree.snapshot(), workers=parts)


def test_workers_of_one_name_can_be_told_apart() -> None:
    """A merge can name its workers; their own workers of the same names stay with them."""
    tree = Tree("main")
    for _ in range(2):
        for rank in range(2):
            tree.merge(worker("Main", (worker("Worker-0"),)), "workers", worker=f"rank {rank}")
    seen = tree.snapshot().workers
    assert [(one.name, one.at("step").count) for one in seen] == [("rank 0", 2), ("rank 1", 2)]
    assert [(part.name, part.at("step").count) for one in seen for part in one.workers] == [("Worker-0", 2)] * 2


STEPPED = {"step": ROUNDS * STEPS, "step/physics": ROUNDS * STEPS, "step/reward": ROUNDS * STEPS}


@pytest.mark.torch
@pytest.mark.parametrize(
    ("library", "start_method"),
    [
        ("gymnasium", "fork"),
        ("gymnasium", "spawn"),
        pytest.param("gymnasium", "forkserver", marks=pytest.mark.slow),
        pytest.param("stable_baselines3", "spawn", marks=pytest.mark.slow),
    ],
)
def test_vector_environments_report(library: str, start_method: str) -> None:
    """Workers see their own steps and nothing of their parent's, and what they report adds up below the open scope."""
    pytest.importorskip(library)
    seen = run_script("vectors.py", library, start_method, "collect", armed="on")
    gymnasium = [f"Worker<AsyncVectorEnv>-{number}" for number in range(WORKERS)]
    names = gymnasium if library == "gymnasium" else process_names(start_method)
    check_collected(seen, names, {"reset": 1, **STEPPED})
    assert seen.at("collect", "wait").count == ROUNDS * STEPS
    assert seen.at("collect", "reset").count == 1


@pytest.mark.torch
@pytest.mark.parametrize(
    ("start_method", "armed", "state"),
    [
        ("fork", "standby", STANDBY),
        ("spawn", None, OFF),
        pytest.param("forkserver", "standby", STANDBY, marks=pytest.mark.slow),
    ],
)
def test_vector_environments_start_as_their_parent_is(
    start_method: str, armed: str | None, state: tuple[bool, bool]
) -> None:
    """Unarmed and waiting parents have workers likewise, and those that wait can be switched on."""
    pytest.importorskip("gymnasium")
    told = [ON] * WORKERS if armed == "standby" else []
    found = run_script("vectors.py", "gymnasium", start_method, "switch", armed=armed)
    assert found == [*[state] * (1 + WORKERS), *told]


# What processes send is shown by test_vector_environments_report, without a PyTorch in each of them.
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_torch_workers_report_by_a_queue(start_method: str) -> None:
    """Trees go through PyTorch's own queues, in any order, and add up by worker."""
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    seen = run_script("torch_workers.py", start_method, armed="on")
    seen = replace(seen, workers=tuple(sorted(seen.workers, key=lambda tree: tree.name)))
    check_collected(seen, process_names(start_method), {"reset": 1, **STEPPED, "forward": ROUNDS * STEPS})
    assert seen.at("collect", "wait").count == WORKERS * ROUNDS


@pytest.mark.torch
def test_ray_actors_report() -> None:
    """Actors return their trees, which add up below the driver's open scope and stay apart as workers."""
    pytest.importorskip("ray")
    pytest.importorskip("gymnasium")
    seen = run_script("ray_actors.py", "collect", armed="on")
    names = [worker.name for worker in seen.workers]
    assert names == [f"worker {number}" for number in range(WORKERS)]
    sampled = {f"sample/{path}": count for path, count in STEPPED.items()}
    check_collected(seen, names, {"reset": 1, "sample": ROUNDS, **sampled})
    assert seen.at("collect", "wait").count == ROUNDS


@pytest.mark.torch
def test_threads_of_a_ray_actor_are_one_path() -> None:
    """The unnamed threads of an actor add up."""
    pytest.importorskip("ray")
    pytest.importorskip("gymnasium")
    tree = run_script("ray_actors.py", "share", armed="on")
    assert tree.at("Thread").is_parallel
    assert (tree.at("Thread", "sample").count, tree.at("Thread", "sample", "step").count) == (4, 4 * STEPS)


@pytest.mark.torch
@pytest.mark.parametrize(("armed", "states"), [(None, [OFF] * 2), ("standby", [STANDBY] * 2 + [ON] * 2)])
def test_ray_actors_start_as_their_driver_is(armed: str | None, states: list[tuple[bool, bool]]) -> None:
    """child_environment() as runtime_env arms actors as the driver is at that moment, also where Ray runs already."""
    pytest.importorskip("ray")
    pytest.importorskip("gymnasium")
    assert run_script("ray_actors.py", "switch", armed=armed) == states
