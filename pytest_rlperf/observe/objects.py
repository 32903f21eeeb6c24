"""The functions of a process as objects: what keeps them, and whether something has read their annotations.

A compiler reads a function, keeps it, and runs something else in its place, which nothing notes.
"""

from __future__ import annotations

import builtins
import functools
import gc
import sys
from collections.abc import Collection, Iterable, Mapping
from types import CellType, FrameType, FunctionType, ModuleType
from typing import NamedTuple

from pytest_rlperf.observe.observer import paths_of

# Types that run the very function that they keep, if they run anything, in Python's own loop.
_TRANSPARENT = (
    *(CellType, FrameType, classmethod, property, staticmethod, functools.cached_property, functools.partial),
    type(functools.cache(len)),
)
_TABLES = (dict, frozenset, list, set, tuple)
_ORDINARY = ("_frozen_importlib", "importlib.", "zipimport", "_pytest.assertion.")  # loaders that run a module as it is
_LinesByFile = dict[str, list[int]]


class AsObjects(NamedTuple):
    """The first lines of functions by their files: those ``kept``, and those whose annotations were ``read``."""

    kept: _LinesByFile
    read: _LinesByFile


def functions_as_objects(files: Collection[str]) -> AsObjects:
    """Return what is known about the functions in ``files``, by a look at all objects.

    It takes a tenth of a second for a few functions, and longer for more: each object is compared with all functions.
    """
    gc.unfreeze()  # frozen objects are in no list
    found = [each for each in gc.get_objects() if type(each) is FunctionType]
    known = {name: paths_of(name) for name in {each.__code__.co_filename for each in found}}
    names = {name for name, places in known.items() if not places.isdisjoint(files)}
    functions = {id(each): each for each in found if each.__code__.co_filename in names}
    del found
    holders = gc.get_referrers(*functions.values()) if functions else []
    others = {id(functions), *(id(each.__defaults__) for each in functions.values())}
    named = _named_in(names) if any(type(each) in _TABLES for each in holders) else set()
    others |= {id(each) for each in holders if type(each) in _TABLES and id(each) in named}
    kept = {each for holder in holders if id(holder) not in others for each in _kept_by(holder, functions)}
    read = (number for number, each in functions.items() if _is_read(each))
    return AsObjects(*(_lines([functions[number] for number in each]) for each in (kept, read)))


def _kept_by(holder: object, functions: Mapping[int, FunctionType]) -> Iterable[int]:
    """Return the functions that an object keeps, none for a module, a class, or what runs them itself."""
    if isinstance(holder, _TRANSPARENT):
        return ()
    if type(holder) is tuple and [id(each) for each in holder] == [*functions]:
        return ()  # the arguments of get_referrers itself, from Python 3.13 on
    if type(holder) is dict:
        if _is_namespace(holder):
            return ()
        # Every wrapper names what it wraps; whatever else keeps the function shows how it runs.
        return [id(each) for name, each in holder.items() if id(each) in functions and name != "__wrapped__"]
    return [id(each) for each in gc.get_referents(holder) if id(each) in functions]


def _named_in(files: Collection[str]) -> set[int]:
    """Return the ids of all that modules with these files name, and their classes.

    A container of Python's own among them is a table, from which the modules' code takes functions to call them.
    """
    modules = [each for each in list(sys.modules.values()) if isinstance(each, ModuleType)]
    found = [value for each in modules if vars(each).get("__file__") in files for value in vars(each).values()]
    inner = [value for each in found if isinstance(each, type) for value in vars(each).values()]
    return {id(each) for each in (*found, *inner)}


def _is_namespace(names: Mapping[object, object]) -> bool:
    """Whether a dict has the names of a module, a class or a cached property."""
    is_class = "__module__" in names and "__name__" not in names  # which functools.update_wrapper gives to an object
    is_class = is_class and ("__doc__" in names or "__qualname__" in names)
    return is_class or "__builtins__" in names or "__spec__" in names or {"func", "attrname"} <= names.keys()


def _is_read(function: FunctionType) -> bool:
    """Whether something has read a function's annotations: only then do they become a dict."""
    inner = gc.get_referents(function)
    others = (function.__globals__, vars(builtins), function.__kwdefaults__, vars(function))
    return any(type(each) is dict and not any(each is other for other in others) for each in inner)


def _lines(functions: Iterable[FunctionType]) -> _LinesByFile:
    lines: dict[str, set[int]] = {}
    for each in functions:
        for place in paths_of(each.__code__.co_filename):
            lines.setdefault(place, set()).add(each.__code__.co_firstlineno)
    return {file: sorted(found) for file, found in lines.items()}


def specially_loaded(loaded: Mapping[str, str]) -> Collection[str]:
    """Return the loaded files, given by module, whose loader may make something else of them than Python does."""
    specs = {file: getattr(sys.modules.get(name), "__spec__", None) for name, file in loaded.items()}
    loaders = {file: getattr(spec, "loader", None) for file, spec in specs.items()}
    return [
        file for file, each in loaders.items() if each is not None and not type(each).__module__.startswith(_ORDINARY)
    ]
