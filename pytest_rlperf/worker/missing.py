"""Whether a test ended because a name that its own code asks for is missing: older code lacks what a new test tests."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType

_MISSING = object()
_LOOKUPS = {"__getattr__", "__getattribute__", "find_spec"}  # functions that look names up


def lacks_name(error: BaseException | None, is_of_tests: Callable[[str], bool]) -> bool:
    """Whether the name in an error is really missing, and a file for which ``is_of_tests`` holds asked for it.

    An error that older code makes by itself is its own, whatever its type.
    """
    match error:
        case AttributeError(name=str(name), obj=obj):  # a failing property has these too, and any code can raise it
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
    """Whether a frame only looks a name up for the frame before it."""
    if frame.f_globals.get("__name__", "").partition(".")[0] == "importlib":
        return True
    given = (value for value in frame.f_locals.values() if isinstance(value, str))  # arrays compare otherwise
    return frame.f_code.co_name in _LOOKUPS and name in given
