"""What works on Windows and macOS, as far as Linux can show it: the platform's name and its modules are faked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import ONE_CALL
from wording import Wording

from pytest_rlperf.run.hooks import _platform_notes

SAMPLES = Path(__file__).parent / "samples"
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


def run(directory: Path, platform: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on one test, on a platform."""
    (directory / "fake.py").write_text(FAKE[platform] + HOOK, encoding="utf-8")
    (directory / "test_it.py").write_text(TEST, encoding="utf-8")
    variables = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": str(directory),
        "PYTEST_ADDOPTS": "-p fake -p pytest_rlperf.plugin -p no:cacheprovider",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *arguments],
        cwd=directory,
        env=variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("platform", FAKE)
def test_tests_run_unmeasured(tmp_path: Path, platform: str) -> None:
    """Without --rlperf a component runs once and is checked, on every platform."""
    done = run(tmp_path, platform)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "1 passed" in done.stdout


def test_measuring_on_windows_is_one_sentence(tmp_path: Path, wording: Wording) -> None:
    """The usage error names what works and the way out; nothing that Windows lacks was imported before."""
    done = run(tmp_path, "win32", "--rlperf")
    assert done.returncode == 4
    assert done.stderr.strip() == wording


def test_measuring_on_macos_is_noted(tmp_path: Path) -> None:
    """A run without CPUs to place processes on measures, and its header has a note."""
    done = run(tmp_path, "darwin", *ONE_CALL, "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "on macOS processes cannot be placed on CPUs, and there is no /proc" in done.stdout
    assert "1 passed" in done.stdout
    assert _platform_notes("linux") == []


@pytest.mark.parametrize("platform", FAKE)
@pytest.mark.parametrize("arguments", [["show", "run.json"], ["machine"], ["tree", "mlagents_timers.json"]])
def test_files_are_shown_on_every_platform(platform: str, arguments: list[str]) -> None:
    """The command line reads what runs elsewhere have written."""
    code = f"import platform{FAKE[platform]}arrive()\nfrom pytest_rlperf.cli import main\nsys.exit(main({arguments!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SAMPLES, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (1 if arguments[0] == "show" else 0, "")
    assert done.stdout
