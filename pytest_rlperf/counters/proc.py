"""Files of ``/proc`` that a process reads about itself, while a test may have replaced ``open`` or ``os``."""

from __future__ import annotations

import os

# A fake file system replaces these functions wherever a module has them by a name of its own.
_CALLS = (os.open, os.read, os.close, os.listdir)
_MOST = 1 << 16  # bytes


def read(path: str) -> bytes:
    """Return what a file holds, as far as one call of the system gives it."""
    open_file, read_most, close, _ = _CALLS
    descriptor = open_file(path, os.O_RDONLY)
    try:
        return read_most(descriptor, _MOST)
    finally:
        close(descriptor)


def entries(directory: str) -> list[str]:
    """Return the names in a directory."""
    return _CALLS[-1](directory)


def children_of(thread: str | int) -> list[bytes]:
    """Return the numbers of the child processes of one of this process's threads."""
    return read(f"/proc/self/task/{thread}/children").split()
