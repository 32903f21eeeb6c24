"""A worker: a pytest session in a process of its own, told by the coordinator what to run.

It is an ordinary session of the user's, with the user's options, conftests and plugins, except that it writes no
reports, and that its run loop waits for orders. A measured test runs with all its own fixtures; when it calls an
rlperf fixture, the call stays open and takes slices until the coordinator has a verdict.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import pytest
from _pytest import capture
from _pytest.config import _prepareconfig

from pytest_rlperf.fixtures import ENGINE
from pytest_rlperf.options import read_option
from pytest_rlperf.pytest_benchmark import TakenOver
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.session import RemoteEngine, Session

# Plugins that would run a test again, reseed it, or talk to a controller that is not there. They are dropped before
# they configure themselves, with what they would have declared: a marker that --strict-markers would miss.
_DROPPED = {"rerunfailures": "flaky: rerun on failure; ignored while measuring", "randomly": None}


def _prepare(start: m.Start) -> pytest.Config:
    """Return the user's own configuration, less what belongs to the coordinator alone."""
    config = _prepareconfig(list(start.args))
    config.inicfg.pop("faulthandler_timeout", None)  # a measured test is open for longer than its own code runs
    for name, marker in _DROPPED.items():
        if config.pluginmanager.unregister(name=name) is not None and marker is not None:
            config.addinivalue_line("markers", marker)
    # Plugins ask for this attribute to learn that they are in a process that reports to another.
    config.workerinput = {  # type: ignore[attr-defined]
        "workerid": f"rlperf{start.number}",
        "workercount": 1,
        "testrunuid": "rlperf",
        "mainargv": sys.argv,
    }
    config.workeroutput = {}  # type: ignore[attr-defined]
    config.args = list(start.files)
    overrides: dict[str, Any] = {
        # Reports of pytest-benchmark's are the coordinator's to write, and its gates to judge.
        "benchmark_autosave": False,
        "benchmark_compare": None,
        "benchmark_compare_fail": [],
        "benchmark_csv": None,
        "benchmark_histogram": None,
        "benchmark_json": None,
        "benchmark_quiet": True,
        "benchmark_save": None,
        "basetemp": str(Path(start.scratch) / "tmp"),
        "continue_on_collection_errors": True,
        "dist": "no",
        "failedfirst": False,
        "lf": False,
        "maxfail": 0,
        "newfirst": False,
        "no_cov": True,
        "numprocesses": None,
        "stepwise": False,
        "stepwise_skip": False,
        "trace": False,
        "tx": [],
        "usepdb": False,
        # The file is the coordinator's; one worker adds to it.
        **({"log_file_mode": "a"} if start.reports else {"log_file": os.devnull}),
    }
    for name, value in overrides.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    return config


def _die_with_parent() -> None:
    """Have Linux send SIGTERM when the coordinator dies while this process is deep in a call.

    Elsewhere, and in between calls, the end of the connection tells.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def _keep_captured_output(scratch: Path) -> None:
    """Have pytest capture into named files, so that the coordinator can read them when this process is dead."""
    numbers = itertools.count()

    def named_file(buffering: int) -> IO[bytes]:
        return (scratch / f"captured{next(numbers)}").open("w+b", buffering=buffering)

    if hasattr(capture, "TemporaryFile"):
        capture.TemporaryFile = named_file


def main() -> None:
    """Run a worker until its coordinator has no more use for it."""
    _die_with_parent()
    terminal = os.dup(1)  # before pytest captures it
    start = m.decode_start(os.environ.pop(m.ENVIRONMENT_KEY))
    sys.path[:] = start.path
    os.set_inheritable(start.descriptor, False)
    connection: Connection[Any, Any] = Connection(start.descriptor)
    _keep_captured_output(Path(start.scratch))
    config = _prepare(start)
    engine = RemoteEngine(start, connection, sync_edges=read_option(config, "device_edges") == "sync")
    config.stash[ENGINE] = engine
    config.pluginmanager.register(TakenOver(), "rlperf-benchmark")
    config.pluginmanager.register(Session(start, connection, engine, terminal), "rlperf-worker")
    sys.exit(int(config.hook.pytest_cmdline_main(config=config)))
