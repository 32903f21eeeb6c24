"""Which files are opened, in any language and process: Linux reports that a file was opened, but not by whom.

Every process that observes a test imports this, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence
from importlib.util import cache_from_source

_OPENED, _OVERFLOW, _ONCE = 0x20, 0x4000, 0x80000000  # IN_OPEN, IN_Q_OVERFLOW, IN_ONESHOT
_EVENT = struct.Struct("iIII")  # a watch's number, what has happened, a cookie, the length of a name
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class Watch:
    """Notes which ``files`` are opened from now on, modules also by their bytecode.

    Each file is reported once, so that there are never too many events. ``fault`` says why nothing is watched; it is
    empty otherwise.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.fault = ""
        self._files = files
        self._opened: set[str] = set()
        self._watched: dict[int, list[str]] = {}
        self._descriptor = -1
        self.go_on()

    def opened(self) -> set[str]:
        """Return the files that have been opened by now."""
        if self._descriptor >= 0 and not self._is_own():
            self._give_up("a test has closed the files of its process")
        with contextlib.suppress(BlockingIOError):
            while self._descriptor >= 0:
                self._note(os.read(self._descriptor, 1 << 16))
        return self._opened

    def rest(self) -> None:
        """Note nothing until :meth:`go_on`."""
        self.opened()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def go_on(self) -> None:
        """Note what is opened from now on, in addition to what was opened before the rest."""
        left = [file for file in self._files if file not in self._opened]
        if not left or self.fault:
            return
        import ctypes  # no measured process needs it

        try:
            library = ctypes.CDLL(None, use_errno=True)
            begin, add = library.inotify_init1, library.inotify_add_watch
        except (OSError, AttributeError):
            self._give_up("this system has no inotify")
            return
        self._watched, self._descriptor = {}, begin(_FLAGS)
        if self._descriptor < 0:
            self._give_up(f"inotify: {os.strerror(ctypes.get_errno())}")
            return
        for file in left:
            places = [file, cache_from_source(file)] if file.endswith(".py") else [file]
            for place in filter(os.path.exists, places):
                number = add(self._descriptor, os.fsencode(place), ctypes.c_uint32(_OPENED | _ONCE))
                if number >= 0:
                    self._watched.setdefault(number, []).append(file)
                elif os.access(place, os.R_OK):  # an unreadable file is never read
                    self._give_up(f"inotify: {os.strerror(ctypes.get_errno())}")
                    return

    def _note(self, events: bytes) -> None:
        place = 0
        while place < len(events):
            number, happened, _, length = _EVENT.unpack_from(events, place)
            place += _EVENT.size + length
            if happened & _OVERFLOW:
                self._opened.update(self._files)
            elif happened & _OPENED:
                self._opened.update(self._watched[number])

    def _is_own(self) -> bool:
        """Whether the descriptor is still this watch's: a test may have closed it, and opened another file."""
        try:
            return os.readlink(f"/proc/self/fd/{self._descriptor}") == "anon_inode:inotify"  # noqa: PTH115
        except OSError:
            return False

    def _give_up(self, fault: str) -> None:
        if self._descriptor >= 0 and self._is_own():
            os.close(self._descriptor)
        self.fault, self._descriptor = fault, -1
