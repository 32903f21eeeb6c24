"""What is known of the code that a process has executed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import write
from forks import run_forked

LIBRARY = """
    from elsewhere import late as soon, shared

    EVENTS = {600: "evaluate"}

    def save():
        pass

    def load():
        pass

    class Buffer:
        def grow(self):
            return 1

        def flush(self):
            load()

        def call(self, method="other"):
            getattr(self, "grow" if method else "save")()

        def run(self):
            return [name for name in ("close", "finish") if not name]

        close = grow
"""
ELSEWHERE = """
    def late():
        pass

    def shared():
        pass
"""
IMPORTS = "import os; from pytest_rlperf.observe.recorder import FunctionRecorder"
# Exits with 10 where a name was met, with 11 where it was not.
PROGRAM = """
called, name = case
recorder = FunctionRecorder()
from library import Buffer, save
getattr(Buffer(), called)()
os._exit(10 if recorder.has_met(frozenset([name])) else 11)
"""
MET, NOT_MET = 10, 11
RUN_BY_PYTEST = """
    from pytest_rlperf.observe.recorder import FunctionRecorder

    def test_it(pytestconfig):
        recorder = FunctionRecorder()
        pytestconfig.getini("testpaths")
        noted = {code.co_name: code for code in recorder._noted.codes()}
        assert "_getini" in noted["getini"].co_names
        assert not recorder.has_met(frozenset(["_getini"]))
        (lambda: pytestconfig._getini("testpaths"))()
        assert recorder.has_met(frozenset(["_getini"]))
"""


CASES = {
    ("flush", "load"): True,
    ("grow", "load"): False,  # that function has not run
    ("grow", "save"): False,  # bodies that have run define it, and import it
    ("grow", "flush"): False,
    ("grow", "grow"): True,  # the class's body reads it
    ("call", "save"): True,
    ("run", "finish"): True,  # a text within a constant
    ("grow", "finish"): False,
    ("grow", "evaluate"): True,  # a text of a body
    ("grow", "late"): True,  # imported by another name
    ("grow", "shared"): False,
}


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], int]:
    """Run all cases; return the exit codes of their processes."""
    directory = write(tmp_path_factory.mktemp("recorded"), {"elsewhere.py": ELSEWHERE, "library.py": LIBRARY})
    ended = run_forked(IMPORTS, PROGRAM, [*CASES], directory)
    return {case: code for case, (code, _) in zip(CASES, ended, strict=True)}


@pytest.mark.parametrize(
    ("called", "name", "expected"), [(called, name, expected) for (called, name), expected in CASES.items()]
)
def test_code_that_has_run_has_a_name(
    codes: dict[tuple[str, str], int], called: str, name: str, expected: bool
) -> None:
    """A function's definition is no use of its name, nor is an import."""
    assert codes[called, name] == (MET if expected else NOT_MET)


@pytest.mark.usefixtures("alone")
def test_what_runs_a_test_has_no_name_of_its(tmp_path: Path) -> None:
    """Words such as ``update`` stand in any of pytest's functions, which calls nothing by them while a call is made."""
    write(tmp_path, {"test_it.py": RUN_BY_PYTEST})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
