"""A run on a Ray cluster: each Ray task measures one shard of the tests on a node, and this run reports all tests.

A task is pytest in the project's directory, which is at the same place on every node. The task has its machine to
itself: both sides of a pair run there, in lanes as in any other run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_rlperf import units, wire
from pytest_rlperf.errors import for_log, shown
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model.judged import Shard
from pytest_rlperf.model.notes import RunProgress, TextNote
from pytest_rlperf.options import usage_error
from pytest_rlperf.report.run_json import MergeError, RunFile, check_shard, decoded, merge_shards, read_document
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.state import RunState
from pytest_rlperf.sides.private import own_directory

OPTION = "--rlperf-ray"
_SHARDS_A_NODE = 2  # a node that is done early takes another shard, and a lost node loses only half of its tests
_CONNECT_S = 5.0
_POLL_S = 1.0
_TAIL = 30  # lines of a node's output


# --------------------------------------------------------------------------- on a node


def measure_shard(directory: str, command: Sequence[str], variables: Mapping[str, str]) -> tuple[str, bytes, bytes]:
    """Run this module as a process in a directory; return this node's name, the answer and the output.

    A second shard on the same machine waits for the first, as it would disturb it.
    """
    place = own_directory() / f"ray-{socket.gethostname()}.lock"  # nodes may share a home
    with place.open("ab") as lock, tempfile.TemporaryFile() as output:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-m", __name__, *command],
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            check=False,
        )
        output.seek(0)
        return socket.gethostname(), done.stdout, output.read()


class ReportRecorder:
    """The hooks of a node's pytest: they override options of the command line, and record reports."""

    def __init__(self, options: Mapping[str, str | None]) -> None:
        self.reports: dict[str, list[object]] = {}  # as JSON has them, by the test's id
        self._options = options
        self._open: list[object] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Set the options before other plugins read them."""
        self._config = config
        for name, value in self._options.items():
            setattr(config.option, name, value)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a report; leave out the reports of a test that an interrupt breaks off."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._open.append(wire.as_json(wire.Reported.of(data)))
        if report.when == "teardown":
            self.reports.setdefault(report.nodeid, []).extend(self._open)
            self._open = []


def main() -> None:
    """Run pytest with the options and the arguments of the command, and write the answer to the standard output."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="rlperf-") as scratch:
        path = Path(scratch) / "run.json"
        recorder = ReportRecorder({**json.loads(sys.argv[1]), "rlperf_json": str(path)})
        status = pytest.main(sys.argv[2:], plugins=[recorder])
        run = path.read_text(encoding="utf-8") if path.exists() else None
    with answers:
        answers.write(json.dumps({"status": status, "reports": recorder.reports, "run": run}).encode())


# --------------------------------------------------------------------------- the cluster


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to a cluster and yield Ray; UsageError if there is none."""
    try:
        import ray
    except ImportError as error:
        raise usage_error(f"{OPTION} needs Ray ({error}): pip install 'pytest-rlperf[ray]'") from None
    handler = signal.getsignal(signal.SIGTERM)
    host, _, port = address.rpartition(":")
    try:
        if host:  # Ray itself would wait for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # whatever Ray raises if it cannot connect
        raise usage_error(f"{OPTION}={address}: no Ray cluster to connect to: {_last_line(error)}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has installed its own
    try:
        yield ray
    finally:
        ray.shutdown()  # this ends the tasks


def _nodes(ray: Any, cpus: float = 1) -> list[Mapping[str, float]]:
    """Return the resources of the nodes that have at least ``cpus`` CPUs."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus]


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return shown(f"{type(error).__name__}: {lines[-1]}")


# --------------------------------------------------------------------------- the run


class ShardAnswer(NamedTuple):
    """A node's answer for a shard: its run, or None, the reports by node id, and why a test has no report."""

    run: RunFile | None
    reports: Mapping[str, list[wire.Reported]]
    fault: str


def read_answer(found: tuple[str, bytes, bytes], shard: Shard) -> ShardAnswer:
    """Return a node's answer; UsageError if its pytest could not start, as it could not on any other node."""
    node, data, output = found
    name = f"{shard.name} on {node}"
    tail = for_log("\n".join(output.decode("utf-8", "replace").splitlines()[-_TAIL:]))
    try:
        answer = decoded(data)
        if answer["status"] == pytest.ExitCode.USAGE_ERROR and not answer["run"]:
            raise usage_error(f"{OPTION}: {name} could not run:\n{tail}")
        run, _ = check_shard(name, read_document(decoded(answer["run"].encode())), shard)
        reports = {
            str(nodeid): [wire.from_json(each, wire.Reported) for each in found]
            for nodeid, found in answer["reports"].items()
        }
    except MergeError as error:
        return ShardAnswer(None, {}, f"{error}\n{tail}")
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # any text may be in place of an answer
        return ShardAnswer(None, {}, f"{name}: {_last_line(error)}\n{tail}")
    return ShardAnswer(run, reports, f"{name} ended before this test:\n{tail}")


@dataclass
class ClusterLoop:
    """Runs measured tests on a cluster, one shard per task, and reports a shard's tests when the shard ends."""

    config: pytest.Config
    run_state: RunState
    progress: RunProgress
    _runs: dict[str, RunFile] = field(default_factory=dict)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        address = self.run_state.settings.ray
        assert address is not None
        self.progress.begin("ray")
        self.progress.show("connecting")
        try:
            with connected(address) as ray:
                self._measure(ray, session)
        finally:
            self.progress.clear()
            if any(run.tests for run in self._runs.values()):
                self._merge()

    def _measure(self, ray: Any, session: pytest.Session) -> None:
        """Measure and report all tests."""
        machine, settings = self.run_state.baselines.machine, self.run_state.settings
        items = {result_key(item): item for item in session.items}
        nodes = _nodes(ray)
        if not nodes:
            raise usage_error(f"{OPTION}: no node of the cluster has a CPU for tasks")
        cpus, gpus = (min(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=1)(measure_shard)
        count = min(len(items), _SHARDS_A_NODE * len(nodes))
        running = {}
        for number in range(1, count + 1):
            shard = self.run_state.shard_of(number, count, items)
            self._runs[shard.name] = RunFile(machine, (), (), {}, strict=settings.strict, shard=shard)
            running[task.remote(*self._order(shard, len(nodes)))] = shard
        while running:
            self.progress.show(f"{count - len(running)} of {units.counted(count, 'shard')} measured")
            done, _ = ray.wait(list(running), timeout=_POLL_S)
            for ref in done:
                shard = running.pop(ref)
                answer = self._answer(ray, ref, shard)
                for key in shard.tests:
                    self._report(items[key], answer)
                    if session.shouldfail:
                        raise session.Failed(session.shouldfail)
                    if session.shouldstop:
                        raise session.Interrupted(session.shouldstop)
            if running and not _nodes(ray, cpus):
                self.run_state.note(TextNote(f"no node of {units.counted(int(cpus), 'CPU')} was left"))
                for ref in running:
                    ray.cancel(ref)

    def _order(self, shard: Shard, nodes: int) -> tuple[str, list[str], dict[str, str]]:
        """Return the arguments of a task: a directory, the options and arguments of its pytest, and variables."""
        total_time_s = self.run_state.settings.total_time_s
        options = {
            **dict.fromkeys(("rlperf_ray", "rlperf_html", "xmlpath", "basetemp")),
            "rlperf_shard": f"{shard.number}/{shard.count}",
            "rlperf_total_time_s": None if total_time_s is None else str(total_time_s * nodes / shard.count),
        }
        parameters = self.config.invocation_params
        given = {name: value for name, value in os.environ.items() if name.startswith(("PYTHONPATH", "PYTEST_"))}
        return str(parameters.dir), [json.dumps(options), *map(str, parameters.args)], given

    def _answer(self, ray: Any, ref: Any, shard: Shard) -> ShardAnswer:
        """Return a task's answer, and keep its run."""
        try:
            answer = read_answer(ray.get(ref), shard)
        except pytest.UsageError:
            raise
        except Exception as error:  # of the task, or of Ray, for example for a node that was lost twice
            return ShardAnswer(None, {}, f"{shard.name}: {_last_line(error)}")
        if answer.run is not None:
            self._runs[shard.name] = answer.run
        return answer

    def _report(self, item: pytest.Item, answer: ShardAnswer) -> None:
        """Report one test as if it ran here."""
        outcome = None if answer.run is None else answer.run.tests.get(result_key(item))
        if outcome is not None:
            self.run_state.outcomes.add(outcome)
        reports = ReportForwarder(self.config, item)
        found = answer.reports.get(item.nodeid, [])
        reports.forward_all(found)
        if not found:
            reports.fabricate(answer.fault)
        reports.finish([])

    def _merge(self) -> None:
        """Merge the shards' runs into one; a shard without a run has no tests."""
        merged = self.run_state.merged = merge_shards(self._runs)
        self.run_state.outcomes.tests = dict(merged.tests)
        for run in self._runs.values():
            self.run_state.note(*map(TextNote, run.notes))


if __name__ == "__main__":
    main()
