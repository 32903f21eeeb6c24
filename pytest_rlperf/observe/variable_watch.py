"""A watch on the variables of the run's own process, which notes the code that sets them."""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from pytest_rlperf.observe.audit import listen

# Some versions have frozen copies of these modules.
_OF_MAPPINGS = {function.__code__.co_filename for function in (os._Environ.__setitem__, MutableMapping.update)}


class VariableWatch:
    """Notes the files of all code that has set or removed each variable, ``files`` by the variables' names.

    A variable that a library sets when it is imported is there from then on, in a preload server as well. One that the
    tests' own code sets is there before their imports. ``end`` ends it.
    """

    def __init__(self) -> None:
        self.files: dict[str, set[str]] = {}
        self.end = listen(["os.putenv", "os.unsetenv"], self._note)

    def _note(self, arguments: tuple[object, ...]) -> None:
        frame = sys._getframe(2)
        while frame.f_code.co_filename in _OF_MAPPINGS and frame.f_back is not None:
            frame = frame.f_back
        name = os.fsdecode(arguments[0])  # type: ignore[arg-type]
        self.files.setdefault(name, set()).add(frame.f_code.co_filename)
