"""Measured runs beside the usual plugins, options and layouts: the same tests pass, and the same are measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from builders import ONE_CALL, source
from example import Example

LIBRARY = "def work():\n    return sum(range(1000))\n"
TESTS = source("beside/tests.py")
DIRECTORY = "tests/größe"
MEASURED = frozenset(
    {"test_work", "test_sizes[zw\\xf6lf]", "test_sizes[2]", "TestClass::test_method", "Cases::test_case"}
)


@dataclass(frozen=True)
class Case:
    """A run: plugins by their entry points, options, the sources' directory, and what comes of it where that differs.

    ``passed`` are the tests that pass, each with a figure where ``is_measured``; the wrong one fails where ``fails``.
    ``shows`` is whether the output has a line for each of them.
    """

    name: str
    plugins: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    source: str = "."
    passed: frozenset[str] = MEASURED
    fails: bool = True
    code: int = 1
    shows: bool = True
    is_measured: bool = True
    is_quick: bool = False


BEFORE_WRONG = frozenset({"test_work", "test_sizes[zw\\xf6lf]", "test_sizes[2]"})
NONE: frozenset[str] = frozenset()
COVERED = ("--cov=library", "--cov-fail-under=100")
CASES = (
    Case("xdist", ("xdist",), ("-n", "2")),
    Case("randomly", ("randomly",)),
    Case("timeout", ("timeout",), ("--timeout=60",)),
    Case("cov", ("pytest_cov",), ("--cov=library",)),
    Case("cov with fail-under", ("pytest_cov",), (*COVERED, "-k", "not wrong"), fails=False, code=0),
    Case("asyncio", ("asyncio",), ("--asyncio-mode=auto",)),
    Case("rerunfailures", ("rerunfailures",), ("--reruns=2",)),
    Case(
        "repeat",
        ("repeat",),
        ("--count=2", "-k", "test_work"),
        passed=frozenset({"test_work[1-2]", "test_work[2-2]"}),
        fails=False,
        code=0,
    ),
    Case("forked", ("pytest_forked",), ("--forked",)),
    Case("-x", (), ("-x",), passed=BEFORE_WRONG),
    Case("--lf", (), ("--lf",), passed=NONE),
    Case("--sw", (), ("--sw",), passed=BEFORE_WRONG, code=2),
    Case("--co", (), ("--co",), passed=NONE, fails=False, code=0, shows=False, is_measured=False),
    Case("-s", (), ("-s",), shows=False),
    Case("importlib mode", (), ("--import-mode=importlib",)),
    Case("no:terminal", (), ("-p", "no:terminal"), shows=False),
    Case("no:cacheprovider", (), ("-p", "no:cacheprovider")),
    Case("strict, warnings as errors", (), ("--strict-markers", "--strict-config", "-W", "error")),
    Case("src layout", source="src", is_quick=True),
    Case("src layout, importlib mode", (), ("--import-mode=importlib",), source="src"),
    Case(
        "all of them",
        ("xdist", "randomly", "timeout", "pytest_cov", "asyncio", "rerunfailures", "pytest_forked", "html", "metadata"),
        (
            "-n2",
            "--timeout=60",
            "--cov=library",
            "--cov-fail-under=100",
            "--reruns=1",
            "--forked",
            "--html=report.html",
        ),
    ),
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=() if case.is_quick else pytest.mark.slow) for case in CASES]
)
def test_beside(case: Case, tmp_path: Path) -> None:
    """The run's exit code, the tests' outcomes and the figures are those of a run without plugins and options."""
    missing = {*case.plugins} - {entry.name for entry in entry_points(group="pytest11")}
    if missing:
        pytest.skip(f"needs the plugins {', '.join(sorted(missing))}")
    example = Example(
        tmp_path / "ein Pröjekt",
        {
            "pytest.ini": f"[pytest]\npythonpath = {case.source}\n",
            f"{case.source}/library.py": LIBRARY,
            f"{DIRECTORY}/test_it.py": TESTS,
            ".pytest_cache/v/cache/lastfailed": json.dumps({f"{DIRECTORY}/test_it.py::test_wrong": True}),
        },
        PYTHONUTF8="1",
    )
    verbose = ("-v",) if case.shows else ()
    plugins = ("rlperf", "cacheprovider", *case.plugins)
    run = example.pytest(*ONE_CALL, *verbose, *case.options, plugins=plugins, code=case.code)
    assert "INTERNALERROR" not in run.text, run.text
    assert bool(run.document) is case.is_measured, run.text
    errors = {name for name, status in (run.statuses if case.is_measured else {}).items() if status == "ERROR"}
    if case.is_measured:
        assert set(run.tests) == case.passed | errors, run.text
        assert errors == ({"test_wrong"} if case.fails else set())
    if case.shows:
        expected = dict.fromkeys(case.passed, "PASSED") | ({"test_wrong": "FAILED"} if case.fails else {})
        assert run.outcomes == expected, run.text
