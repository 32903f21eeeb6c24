"""What the tests take, by file: a plugin, for ``python -m pytest -p benchmarks.durations -n 3 --dist loadfile``.

Processor time is that of a test's process and of all that it started, also of what outlives its own parent, as the
workers of a measured run do. Other work on the machine changes it little. What tests share counts for the first of
them, and what still ends after a test, for the next. Two tests that look for processes without a parent fail with this.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Generator

import pytest

_LONG_S = 1.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
_NAME = "processor time"
_BEGAN = pytest.StashKey[float]()


def pytest_configure() -> None:
    """Adopt processes whose parent has ended, so that what they used is counted."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _used_s() -> float:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Note where a test begins."""
    item.stash[_BEGAN] = _used_s()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add a test's processor time to its last report."""
    report = yield
    if call.when == "teardown":
        now_s = _used_s()
        report.user_properties.append((_NAME, now_s - item.stash.get(_BEGAN, now_s)))
    return report


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write a table of files, and one of the tests that take long."""
    reports = (each for found in terminalreporter.stats.values() for each in found)
    taken: dict[str, float] = {}
    for report in reports:
        if isinstance(report, pytest.TestReport) and report.when == "teardown":
            (taken[report.nodeid],) = (float(str(value)) for name, value in report.user_properties if name == _NAME)
    files: dict[str, list[float]] = {}
    for nodeid, seconds in taken.items():
        files.setdefault(nodeid.partition("::")[0], []).append(seconds)
    terminalreporter.section("processor time, in seconds")
    terminalreporter.write_line(f"{sum(taken.values()):7.1f} {len(taken):5} all")
    for name, found in sorted(files.items(), key=lambda each: -sum(each[1])):
        terminalreporter.write_line(f"{sum(found):7.1f} {len(found):5} {name}")
    for nodeid, seconds in sorted(taken.items(), key=lambda each: -each[1]):
        if seconds > _LONG_S:
            terminalreporter.write_line(f"{seconds:7.1f} {nodeid}")
