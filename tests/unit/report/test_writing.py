"""Files are written whole or not at all: every call into the operating system fails once, or is the last one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from builders import source
from wording import Wording

from pytest_rlperf.writing import check_directory, check_whole, write_whole

OLD, NEW = b"old\n" * 1000, b"new\n" * 5000
# The calls of the system that writing a file makes by name.
CALLS = ("mkdir", "open", "chmod", "fsync", "replace")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_file_is_written_with_its_directories_and_mode(tmp_path: Path) -> None:
    """With the mode that the umask gives, or the old file's, and nothing beside it; what is added stands at the end."""
    path = tmp_path / "a" / "b" / "file"
    before = os.umask(0o027)
    try:
        write_whole(path, NEW)
    finally:
        os.umask(before)
    assert path.read_bytes() == NEW
    assert names(path.parent) == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path = tmp_path / "file"
    path.write_bytes(OLD)
    path.chmod(0o600)
    write_whole(path, NEW)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (NEW, 0o600)


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    """Also where the link leads to a file that is not there yet."""
    (tmp_path / "kept").mkdir()
    for target in (tmp_path / "kept" / "there", tmp_path / "kept" / "missing"):
        link = tmp_path / f"to-{target.name}"
        link.symlink_to(target)
        if target.name == "there":
            target.write_bytes(OLD)
        write_whole(link, NEW)
        assert link.is_symlink()
        assert target.read_bytes() == NEW
    assert names(tmp_path / "kept") == ["missing", "there"]


def test_a_device_and_a_pipe_are_written_to(tmp_path: Path) -> None:
    """Neither is replaced by a file."""
    check_whole(Path(os.devnull))
    write_whole(Path(os.devnull), NEW)
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(pipe, b"short")
        assert os.read(reader, 100) == b"short"
    finally:
        os.close(reader)
    assert names(tmp_path) == ["pipe"]


def test_checks_change_nothing(tmp_path: Path) -> None:
    """A check finds a directory in the way, and leaves files as they were."""
    path = tmp_path / "file"
    path.write_bytes(OLD)
    check_whole(path)
    check_whole(tmp_path / "new" / "file")
    check_directory(tmp_path / "other")
    assert path.read_bytes() == OLD
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["file", "new", "other"]
    with pytest.raises(IsADirectoryError):
        check_whole(tmp_path)
    with pytest.raises(NotADirectoryError):
        check_whole(path / "below")


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, nth: int) -> Iterator[None]:
    """Let the ``nth`` call of a function of ``os`` fail as on a full disk."""
    original: Callable[..., Any] = getattr(os, name)
    left = [nth]

    def fail(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise OSError(28, "No space left on device")
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        yield
    assert left[0] <= 0, f"os.{name} was not called"


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, wording: Wording
) -> None:
    """The error arrives, the old file is whole, and nothing lies beside it."""
    path = tmp_path / "below" / "file"
    if call != "mkdir":
        path.parent.mkdir()
        path.write_bytes(OLD)
        path.chmod(0o600)
    with failing(monkeypatch, call, 1), wording.raises(OSError):
        write_whole(path, NEW)
    if call == "mkdir":
        assert names(tmp_path) == []
    else:
        assert (path.read_bytes(), names(path.parent)) == (OLD, ["file"])


_KILLED = source("writing/killed.py")


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", [call for call in CALLS if call != "mkdir"])
def test_a_killed_process_leaves_one_whole_file(tmp_path: Path, call: str, moment: str) -> None:
    """Killed at any call, a process leaves the old file, or the new one where that has taken its place."""
    path = tmp_path / "file"
    path.write_bytes(OLD)
    path.chmod(0o600)
    done = subprocess.run([sys.executable, "-c", _KILLED, call, str(path), moment], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == (NEW if (call, moment) == ("replace", "after") else OLD)
