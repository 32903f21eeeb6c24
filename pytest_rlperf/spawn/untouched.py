"""The functions of the standard library as they were before tests were collected.

Tests replace them, some for as long as their process lives: ``open`` and ``os`` by those of a fake file system,
``subprocess.Popen``, ``os.getpid``. Measured code gets the replacements; the run itself must not.
"""

from __future__ import annotations

import builtins
import functools
import glob
import inspect
import io
import json
import multiprocessing.connection
import os
import pathlib
import posixpath
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar

import psutil

Place: TypeAlias = ModuleType | type
P = ParamSpec("P")
R = TypeVar("R")


class Untouched:
    """The functions, classes and modules that some modules and classes hold now, by their names there."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._before = {place: dict(_members(place)) for place in places}

    def restore(self) -> list[tuple[Place, str, Any]]:
        """Put back what has been replaced or removed since; return the replacements."""
        replaced = []
        for place, before in self._before.items():
            now = vars(place)
            for name, value in before.items():
                found = now.get(name, _REMOVED)
                if found is not value:
                    replaced.append((place, name, found))
                    setattr(place, name, value)
        return replaced


_REMOVED = object()


def _members(place: Place) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(place).items()):
        is_public = callable(value) and not name.startswith("__")
        if is_public or isinstance(value, ModuleType | staticmethod | classmethod | property):
            yield name, value


_PSUTIL = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "psutil"]
_PATHS = inspect.getmro(pathlib.PosixPath)[:-1]
_STANDARD: tuple[Place, ...] = (
    builtins, glob, io, json, multiprocessing.connection, os, pathlib, posixpath, select, shutil, signal, socket,
    subprocess, tempfile, threading, time, *_PSUTIL, *_PATHS, *(sys.modules[each.__module__] for each in _PATHS),
    psutil.Process, subprocess.Popen, threading.Thread, multiprocessing.connection.Connection,
)  # fmt: skip
_BEFORE = Untouched(_STANDARD)


def standard_and_own() -> Untouched:
    """Return what the standard library and this package hold now."""
    own = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == __name__.partition(".")[0]]
    return Untouched([*_STANDARD, *own])


def untouched(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with what its module held when it was defined, and with the standard library's own functions."""
    own = Untouched([sys.modules[function.__module__]])

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        replaced = [*_BEFORE.restore(), *own.restore()]
        try:
            return function(*args, **kwargs)
        finally:
            for place, name, found in replaced:
                delattr(place, name) if found is _REMOVED else setattr(place, name, found)

    return run
