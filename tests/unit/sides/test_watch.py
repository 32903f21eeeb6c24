"""Which files anybody opens, in whichever language and process."""

from __future__ import annotations

import ctypes
import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_rlperf.observe.observer import Observer
from pytest_rlperf.observe.watch import Watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="others have no inotify")


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Three files, of which the last is a module."""
    names = [tmp_path / name for name in ("a.bin", "b.bin", "c.py")]
    for path in names:
        path.write_text("", encoding="utf-8")
    return list(map(str, names))


def open_in_c(file: str) -> None:
    """Open a file as a library in C does, of which Python has no event."""
    library = ctypes.CDLL(None)
    os.close(library.open(os.fsencode(file), os.O_RDONLY))


def test_whoever_opens_a_file_is_seen(files: list[str]) -> None:
    """A library in C, and a child; to ask whether there is a file opens nothing."""
    watch = Watch(files)
    assert Path(files[2]).exists()
    assert watch.opened() == set()
    for _ in range(3):
        open_in_c(files[0])
    assert watch.opened() == {files[0]}
    subprocess.run(["cat", files[1]], check=True)
    assert watch.opened() == {*files[:2]}


def test_bytecode_is_its_module(files: list[str]) -> None:
    """A child that imports a module does not open its source where there is bytecode."""
    compiled = py_compile.compile(files[2])
    watch = Watch(files)
    assert compiled is not None
    open_in_c(compiled)
    assert watch.opened() == {files[2]}


def test_a_copy_sees_what_is_opened_in_its_own_time(files: list[str]) -> None:
    """It knows what was opened before it was made; what other copies open meanwhile is nothing to those that follow."""
    watch = Watch(files)
    open_in_c(files[0])
    watch.rest()
    open_in_c(files[1])
    watch.go_on()
    open_in_c(files[2])
    assert watch.opened() == {files[0], files[2]}


def test_what_an_event_tells_of_is_not_counted_twice(tmp_path: Path, files: list[str]) -> None:
    """What Python opens is known by its own event, and judged by what was run of it."""
    process = subprocess.run(
        [sys.executable, "-c", OBSERVED, str(tmp_path), *files], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == [files[1]]


OBSERVED = f"""
import ctypes, os, sys
from {Observer.__module__} import Observer

observer = Observer([sys.argv[1]], sys.argv[2:])
open(sys.argv[2]).close()
os.close(ctypes.CDLL(None).open(os.fsencode(sys.argv[3]), os.O_RDONLY))
print(*observer.opened())
"""


def test_a_watch_that_cannot_be_had_says_why(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A test has closed its descriptor, though another file may have its number now; or there are no more of them."""
    watch = Watch(files)
    with open(files[0]) as other:  # noqa: PTH123
        number = os.dup2(other.fileno(), watch._descriptor)
        assert (watch.opened(), watch.fault) == (set(), "a test has closed the files of its process")
        os.close(number)  # which is left open
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    assert Watch(files).fault == "this system has no inotify"
    assert not Watch([]).fault
