"""The trial of written tests: a pytest plugin that tells how each ends, and whether it runs the project's code.

A process that ``rlperf init`` starts loads it by ``-p``.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_rlperf.cli.first_tests import messages
from pytest_rlperf.cli.first_tests.messages import DESELECTED, ROOT, TOPS, Tried
from pytest_rlperf.cli.first_tests.search import is_test_file


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Keep pytest-xdist from distributing the tests, whatever the project's settings say."""
    if early_config.pluginmanager.has_plugin("xdist"):
        args.append("-n0")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run every test once, and leave no files, whatever the project's settings say."""
    option = vars(config.option)
    option.update(dict.fromkeys(name for name in option if name.startswith("rlperf_")))
    changed = {"maxfail": 0, "benchmark_storage": f"file://{os.devnull}"}
    option.update({name: value for name, value in changed.items() if name in option})


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Send which tests the project's settings deselect."""
    for item in items:
        messages.send(Tried(ends=item.nodeid, error=DESELECTED))


def pytest_runtest_logstart(nodeid: str) -> None:
    """Send that a test begins."""
    messages.send(Tried(begins=nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Note whether the test runs one of the project's functions, until the first one."""
    observer = _Observer(os.environ[ROOT].split(os.pathsep), os.environ[TOPS].split(","), item.path)
    item.stash[_OBSERVED] = observer
    sys.setprofile(observer)
    try:
        yield
    finally:
        sys.setprofile(None)


class _Observer:
    """A profiling function that looks for the first call of the project's code."""

    def __init__(self, roots: list[str], tops: list[str], test: Path) -> None:
        self._roots, self._tops, self._test = [f"{root}{os.sep}" for root in roots], tops, os.path.realpath(test)
        self._is_own = cache(self._is_of_project)
        self.runs_code = False
        self.began_s = time.monotonic()

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            found = code.co_name != "<module>" and self._is_own(code.co_filename)
        else:
            owner = getattr(argument, "__module__", None) or type(getattr(argument, "__self__", None)).__module__
            found = event == "c_call" and isinstance(owner, str) and owner.partition(".")[0] in self._tops
        if found:
            self.runs_code = True
            sys.setprofile(None)

    def _is_of_project(self, path: str) -> bool:
        """Whether a file is the project's, and not one of its tests."""
        if path.startswith("<"):  # such as "<frozen abc>"
            return False
        path = os.path.realpath(path)
        root = next((each for each in self._roots if path.startswith(each)), "")
        if not root or path == self._test:
            return False
        *directories, name = Path(path.removeprefix(root)).parts
        return not is_test_file(name) and {"test", "tests", "site-packages"}.isdisjoint(directories)


_OBSERVED = pytest.StashKey[_Observer]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Send how a test ended, by its first phase that failed, or by its call."""
    report = yield
    if report.when == "call" or not report.passed:
        observer = item.stash.get(_OBSERVED, None)
        error = "" if report.passed else _error(report)
        took_s = 0.0 if observer is None else time.monotonic() - observer.began_s
        messages.send(
            Tried(ends=item.nodeid, error=error, runs_code=observer is not None and observer.runs_code, took_s=took_s)
        )
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Send which file could not be imported, with the line of the failing import."""
    if report.failed:
        text = str(report.longrepr)
        lines = re.findall(r"^(\S+\.py):(\d+): in ", text, re.MULTILINE)
        own = next((int(line) for path, line in lines if path.endswith(report.nodeid.rpartition("/")[2])), 0)
        messages.send(Tried(error=_error(report), line=own))


def _error(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return a test's error, with the last place in the project's code."""
    if isinstance(report.longrepr, tuple):  # skipped: path, line, reason
        return str(report.longrepr[2])
    text = str(report.longrepr or "")
    lines = text.strip().splitlines() or [""]
    error = next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1])
    places = re.findall(r"^([^\s/][^\s:]*\.py:\d+): ", text, re.MULTILINE)
    error = error.removeprefix("pytest_rlperf.").removeprefix("ComponentError: ")  # which says what to do
    return f"{error} ({places[-1]})" if places else error
