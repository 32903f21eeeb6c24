"""Measured runs beside the usual plugins, options and layouts: the same tests pass, and the same are measured."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from builders import ONE_CALL, source, write

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
    Case("xdist by scope", ("xdist",), ("-n", "2", "--dist=loadscope")),
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
    Case("sugar", ("sugar",), shows=False),
    Case("html", ("html", "metadata"), ("--html=report.html",)),
    Case("hypothesis", ("hypothesispytest",)),
    Case("-x", (), ("-x",), passed=BEFORE_WRONG, is_quick=True),
    Case("--lf", (), ("--lf",), passed=NONE),
    Case("--sw", (), ("--sw",), passed=BEFORE_WRONG, code=2),
    Case("--co", (), ("--co",), passed=NONE, fails=False, code=0, shows=False, is_measured=False),
    Case(
        "--pdb",
        (),
        ("--pdb", "-k", "not wrong"),
        passed=MEASURED | {"test_plain"},
        fails=False,
        code=0,
        is_measured=False,
    ),
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


def run(directory: Path, case: Case) -> subprocess.CompletedProcess[str]:
    """Run the tests as a user would, without any plugin but the case's."""
    removed = ("PYTEST_ADDOPTS", "PYTEST_XDIST", "PYTEST_CURRENT_TEST", "COV_CORE_", "COVERAGE_PROCESS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    plugins = [argument for name in ("rlperf", *case.plugins) for argument in ("-p", name)]
    verbose = ("-v",) if case.shows else ()
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *ONE_CALL, "--rlperf-json=run.json", *verbose, *case.options],
        cwd=directory,
        env=environment | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=() if case.is_quick else pytest.mark.slow) for case in CASES]
)
def test_beside(case: Case, tmp_path: Path) -> None:
    """The run's exit code, the tests' outcomes and the figures are those of a run without plugins and options."""
    missing = {*case.plugins} - {entry.name for entry in entry_points(group="pytest11")}
    if missing:
        pytest.skip(f"needs the plugins {', '.join(sorted(missing))}")
    directory = write(
        tmp_path / "ein Pröjekt",
        {
            "pytest.ini": f"[pytest]\npythonpath = {case.source}\n",
            f"{case.source}/library.py": LIBRARY,
            f"{DIRECTORY}/test_it.py": TESTS,
        },
    )
    if case.name == "--lf":
        cache = directory / ".pytest_cache/v/cache/lastfailed"
        cache.parent.mkdir(parents=True)
        cache.write_text(json.dumps({f"{DIRECTORY}/test_it.py::test_wrong": True}))
    done = run(directory, case)
    text = f"{done.stdout}\n--- stderr ---\n{done.stderr}"
    assert done.returncode == case.code, text
    assert "INTERNALERROR" not in text, text
    assert (directory / "run.json").exists() is case.is_measured, text
    if case.is_measured:
        tests = json.loads((directory / "run.json").read_text(encoding="utf-8"))["tests"]
        errors = {name.partition("::")[2] for name, test in tests.items() if test["verdict"]["status"] == "ERROR"}
        assert {name.partition("::")[2] for name in tests} == case.passed | errors, text
        assert errors == ({"test_wrong"} if case.fails else set())
    if case.shows:
        words = dict(re.findall(r"^\S[^:\n]*::(.+?) (PASSED|FAILED|ERROR|SKIPPED)", done.stdout, re.MULTILINE))
        expected = dict.fromkeys(case.passed, "PASSED") | ({"test_wrong": "FAILED"} if case.fails else {})
        assert words == expected, text
