"""Packages from elsewhere that read the user's tree while they are imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_rlperf.observe.audit import listen


class ImportWatch:
    """Notes, in the run's own process, which packages from elsewhere read the tree's files while they are imported.

    Each side has to import these packages itself: a process that imports them for both would read the user's tree.
    ``end`` ends the watch.
    """

    def __init__(self, top: Path) -> None:
        self.packages: set[str] = set()
        self._below = f"{top}{os.sep}"
        self.end = listen(["open"], self._note)

    def _note(self, arguments: tuple[object, ...]) -> None:
        if not isinstance(arguments[0], str):
            return
        path = os.path.join(os.getcwd(), arguments[0])  # noqa: PTH109, PTH118 - for every opened file
        if not path.startswith(self._below) or not os.path.exists(path):  # noqa: PTH110
            return
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_code.co_name != "<module>":
            if frame.f_globals.get("__name__") == "linecache":
                return  # for the text of a traceback, as PyTorch keeps one of its importers
            frame = frame.f_back
        if frame.f_code.co_name != "<module>":  # in a thread
            return
        name = str(frame.f_globals.get("__name__", "__main__")).partition(".")[0]
        if name != "__main__" and not frame.f_code.co_filename.startswith(self._below):
            self.packages.add(name)
