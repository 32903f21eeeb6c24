"""Runs the tests of projects in processes that observe them, as the templates and workers of a measured run do.

The arguments are a directory for what is found, and the tops of projects; the variable OBSERVED has the tests' names.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from msgspec import to_builtins
from msgspec.structs import replace

from pytest_rlperf.observe.footprint import footprint
from pytest_rlperf.observe.recorder import FunctionRecorder
from pytest_rlperf.observe.observer import LoadedFiles, Observer
from pytest_rlperf.worker.resources import children_seen

CALLS = 50
# Plugins of pytest that none of the projects uses, and that each of their many sessions would set up.
UNUSED = (
    "debugging",
    "doctest",
    "faulthandler",
    "junitxml",
    "legacypath",
    "logging",
    "pastebin",
    "setuponly",
    "setupplan",
    "stepwise",
    "unittest",
)


class Observed:
    """The hooks and the fixture of a session that forks for each test, and writes what this runs and reads."""

    def __init__(self, top, found):
        alike = frozenset(sys.modules)
        sources = frozenset(map(str, Path(top).rglob("*.py")))  # before the observer sees that they are listed
        self._observer, self._recorder = Observer([top]), FunctionRecorder()
        self._observer.changed = sources
        self._found, self._alike = found, alike
        self._loaded_files = LoadedFiles([top], (), alike)
        self._test, self._ended = "", 0

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.name in os.environ["OBSERVED"].split()]

    def pytest_collection_finish(self):
        gc.collect()
        gc.freeze()

    def pytest_runtest_protocol(self, item):
        with self._observer.own_fork():
            child = os.fork() if len(item.session.items) > 1 else 0  # this process is a copy for one project already
        if child:
            os.waitpid(child, 0)
            return True
        self._test = item.name
        for report in runtestprotocol(item, log=False):
            if report.failed:
                print(report.longreprtext, flush=True)
        os._exit(0)

    @pytest.fixture
    def rlperf(self):
        return self._observe

    def _observe(self, call, calls=CALLS, least_s=0.0):
        self._ended = children_seen()[1]
        call()
        first = self._footprint()
        end_s = time.monotonic() + least_s
        for _ in range(calls):
            call()
        while time.monotonic() < end_s:
            call()
        gc.collect()
        looks = [to_builtins(first), to_builtins(self._footprint(searches=True))]
        (self._found / f"{self._test}.json").write_text(json.dumps(looks))

    def _footprint(self, *, searches=False):
        """Return what this process has run and read, as an engine does."""
        running, ended = children_seen()
        found = footprint(self._observer, self._recorder, self._loaded_files, self._alike, searches=searches)
        return replace(found, children=found.children or running > 0 or ended > self._ended)


def main(found, *tops):
    gc.collect()
    gc.freeze()
    files = [(top, file) for top in tops for file in sorted(Path(top).rglob("test_*.py"))]
    for top, file in files:  # each with its own modules alone: a look at the objects compares each with all functions
        child = os.fork()
        if not child:
            os.chdir(top)
            without = [word for name in ("cacheprovider", *UNUSED) for word in ("-p", f"no:{name}")]
            options = ["-q", "-s", *without, f"--rootdir={top}"]
            pytest.main([*options, str(file)], plugins=[Observed(top, Path(found))])
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
