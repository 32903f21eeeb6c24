"""The shared memory that a run's tests leave on the machine: the run removes it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

_WATCH_S = 1.0


class SharedMemory:
    """Knows the blocks that were in ``place`` before, and removes those that tests have since left there."""

    def __init__(self, place: Path = Path("/dev/shm")) -> None:  # noqa: S108 - of the system
        self._place = place
        self._before = self._names()

    def remove(self, beginnings: Collection[str]) -> int:
        """Remove this user's new blocks whose names have one of these beginnings; return how many there were.

        Call it when no test is under way. If blocks come or go all the same, another program makes them too, and all
        stay. Blocks that any process has open stay as well.
        """
        left = self._left(beginnings)
        if not left:
            return 0
        time.sleep(_WATCH_S)
        if self._left(beginnings) != left:
            return 0
        unused = left - self._in_use()
        for name in unused:
            (self._place / name).unlink(missing_ok=True)
        return len(unused)

    def _names(self) -> frozenset[str]:
        with suppress(OSError):  # a system without such a place
            return frozenset(path.name for path in self._place.iterdir())
        return frozenset()

    def _left(self, beginnings: Collection[str]) -> set[str]:
        starts = tuple(filter(None, beginnings))
        new = self._names() - self._before if starts else ()
        return {name for name in new if name.startswith(starts) and self._is_own(name)}

    def _is_own(self, name: str) -> bool:
        with suppress(OSError):
            path = self._place / name
            return path.is_file() and not path.is_symlink() and path.stat().st_uid == os.geteuid()
        return False

    def _in_use(self) -> set[str]:
        """Return the names of blocks that a process has open or in its memory."""
        found: set[str] = set()
        for pid in psutil.pids():
            process = Path("/proc", str(pid))
            with suppress(OSError):  # it has ended, or is another user's
                maps = (process / "maps").read_text(encoding="utf-8", errors="replace")
                found.update(re.findall(rf" {re.escape(str(self._place))}/(.+)$", maps, re.MULTILINE))
            with suppress(OSError):
                found.update(link.readlink().name for link in (process / "fd").iterdir())
        return found
