"""What works on Windows and macOS, as far as Linux can show it: the platform's name and its modules are faked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from builders import ONE_CALL
from example import OK, USAGE, Example, Run
from wording import Wording

from pytest_rlperf.run.hooks import _platform_notes

SAMPLES = Path(__file__).parents[1] / "samples"
# A plugin of pytest, which itself starts as on the real platform; `arrive` changes the name that our code sees.
FAKE = {
    "win32": """
import subprocess, sys, tempfile, psutil
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None
def arrive():
    sys.platform = "win32"
""",
    "darwin": """
import os, sys, psutil
del os.sched_getaffinity, os.sched_setaffinity
def arrive():
    sys.platform = "darwin"
""",
}
HOOK = """
import pytest
@pytest.hookimpl(tryfirst=True)
def pytest_configure():
    arrive()
"""
TEST = "def test_it(rlperf): rlperf(lambda: sum(range(100)))\n"


def run(directory: Path, platform: str, *arguments: str, code: int = OK) -> Run:
    example = Example(directory, {"fake.py": FAKE[platform] + HOOK, "test_it.py": TEST})
    return example.pytest(*arguments, plugins=("fake", "rlperf"), PYTHONPATH=str(example.root), code=code)


@pytest.mark.parametrize("platform", FAKE)
def test_tests_run_unmeasured(tmp_path: Path, platform: str) -> None:
    """Without --rlperf a component runs once and is checked, on every platform."""
    done = run(tmp_path, platform)
    assert (done.counts, done.err) == ("1 passed", "")


def test_measuring_on_windows_is_one_sentence(tmp_path: Path, wording: Wording) -> None:
    """The usage error names what works and the way out; nothing that Windows lacks was imported before."""
    assert run(tmp_path, "win32", "--rlperf", code=USAGE).err == wording


def test_measuring_on_macos_is_noted(tmp_path: Path, wording: Wording) -> None:
    """A run without CPUs to place processes on measures, and has a note."""
    done = run(tmp_path, "darwin", *ONE_CALL, "-v")
    assert done.counts == "1 passed"
    assert done.notes("macOS") == wording
    assert _platform_notes("linux") == []


@pytest.mark.parametrize("platform", FAKE)
def test_files_are_shown_on_every_platform(platform: str) -> None:
    """The command line reads what runs elsewhere have written."""
    commands = (["tree", "mlagents_timers.json"], ["show", "run.json"])
    code = f"import platform{FAKE[platform]}arrive()\nfrom pytest_rlperf.cli import main\n"
    code += f"codes = [main(command) for command in {commands!r}]\nassert codes == [0, 1], codes\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SAMPLES, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in ("root", "SLOWER") if word not in done.stdout] == []
