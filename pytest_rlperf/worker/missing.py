"""Whether a test ended for want of a name that its own code asks for: older code lacks what a test of it is new for."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType

_MISSING = object()
_LOOKUPS = {"__getattr__", "__getattribute__", "find_spec"}  # functions that are asked for a name


def lacks_name(error: BaseException | None, is_of_tests: Callable[[str], bool]) -> bool:
    """Whether a name that an error misses is missing, and asked for by a file ``is_of_tests``.

    An error that older code makes by itself is its own, whatever its type.
    """
    match error:
        case AttributeError(name=str(name), obj=obj):  # which a property that fails has too, and any code can raise
            lacks = inspect.getattr_static(obj, name, _MISSING) is _MISSING
        case ModuleNotFoundError(name=str(name)):
            lacks = True
        case ImportError(name=str(name)):  # a module that is not loaded was found, and failed
            lacks = name in sys.modules
        case NameError(name=str(name)):
            lacks = True
        case _:
            return False
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    while frames and _only_looks_up(frames[-1], name):
        frames.pop()
    return lacks and bool(frames) and is_of_tests(frames[-1].f_code.co_filename)


def _only_looks_up(frame: FrameType, name: str) -> bool:
    """Whether a frame looks a name up for the frame before, by which that is not found."""
    if frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
        return True
    given = (value for value in frame.f_locals.values() if isinstance(value, str))  # arrays compare otherwise
    return frame.f_code.co_name in _LOOKUPS and name in given
