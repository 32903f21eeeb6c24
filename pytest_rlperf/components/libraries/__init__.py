"""The libraries with components that the plugin measures unchanged: each has one module or folder in this package.

A module has the adapters of its library, and ``LIBRARY``, the table of what they adapt, of the classes whose steps
are counted, and of the file of tests that the suite runs and ``rlperf init`` writes. It imports the library only
within functions, so reading the tables loads no library. To add a library, add a module here, a file of tests to the
suite, and a section to docs/libraries.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from numbers import Integral
from operator import attrgetter
from pathlib import Path
from pkgutil import iter_modules
from types import MethodType
from typing import Any

_SUITE = Path(__file__).parents[2] / "suite" / "libraries"
BASIS = "pytest-rlperf[rl]"
"""Packages that the suite needs for every library: gymnasium, for the environment, and PyTorch."""


@dataclass(frozen=True)
class Adapter:
    """A class, method or function of a library, ``"module:Class.method"``, and what makes its component's contract.

    ``size`` reads the size that the contract is made with, the batch's or the rollout's, from a value if it has one.
    """

    of: str
    make: Callable[..., Any]
    size: Callable[[Any], int | None] | None = None

    def distance(self, value: object) -> int | None:
        """Return how far ``value``'s class is derived from this one, 0 for a function; None if it does not fit.

        Only a loaded library can have made the value, so no library is imported.
        """
        module, _, path = self.of.partition(":")
        owner: Any = None
        known: Any = sys.modules.get(module)
        for name in path.split("."):
            owner, known = known, getattr(known, name, None)
        if known is None:
            return None
        if isinstance(value, MethodType) and isinstance(owner, type):
            # A user's class may have its own method with that name.
            fits = isinstance(value.__self__, owner) and value.__name__ == name
            return _derivation(value.__self__, owner) if fits else None
        if isinstance(known, type):
            return _derivation(value, known) if isinstance(value, known) else None
        return 0 if value is known else None


def _derivation(value: object, base: type) -> int:
    """Return the place of a base among the classes of an instance; a virtual base comes after all of them."""
    classes = value.__class__.__mro__  # for a proxy, those of its target
    return classes.index(base) if base in classes else len(classes)


@dataclass(frozen=True)
class Library:
    """A library: its name in tables and test ids, the module to import, what pip installs, and its adapters.

    ``environments`` names the classes whose steps are counted, ``"module:Class.method"``. ``starter`` is a file of
    tests to begin with, in the suite's directory of libraries or by its whole path, imports first. ``rlperf init``
    joins the files of several libraries in one module, so names differ. If the file has the functions
    ``LIBRARY_replay(transitions)`` and ``LIBRARY_vecenv(num_envs, env_id)``, ``rlperf init`` measures the former at
    several sizes, and the latter with short episodes.
    """

    name: str
    module: str
    requirement: str
    vecenv: tuple[Adapter, ...] = ()
    replay: tuple[Adapter, ...] = ()
    gae: tuple[Adapter, ...] = ()
    sac: tuple[Adapter, ...] = ()
    ppo: tuple[Adapter, ...] = ()
    learn: tuple[Adapter, ...] = ()
    environments: tuple[str, ...] = ()
    starter: str = ""

    @property
    def first_tests(self) -> Path:
        """The file of tests to begin with."""
        return _SUITE / self.starter


def libraries() -> tuple[Library, ...]:
    """Return the tables of all modules on this package's path, sorted by module name."""
    return _libraries(tuple(__path__))


@cache
def _libraries(path: tuple[str, ...]) -> tuple[Library, ...]:
    names = sorted(module.name for module in iter_modules(path))
    return tuple(import_module(f"{__name__}.{name}").LIBRARY for name in names)


def adapter_for(table: Callable[[Library], tuple[Adapter, ...]], value: object) -> Callable[..., Any] | None:
    """Return what makes the adapter of ``value``, by the nearest of its classes; None if no library has one.

    ``table`` picks the component: ``lambda library: library.vecenv``.
    """
    nearest = _nearest(table, value)
    return None if nearest is None else nearest.make


def size_of(table: Callable[[Library], tuple[Adapter, ...]], value: object, name: str) -> int | None:
    """Return the size that a value has, as its library reads it, or by its attribute ``name``; None without one."""
    nearest = _nearest(table, value)
    read = attrgetter(name) if nearest is None else nearest.size
    if read is None or isinstance(value, type):
        return None
    try:
        size: Any = read(value)
    except Exception:  # a value without it, or whose attributes raise anything
        return None
    return int(size) if isinstance(size, Integral) and size is not True and int(size) > 0 else None


def _nearest(table: Callable[[Library], tuple[Adapter, ...]], value: object) -> Adapter | None:
    distances = ((adapter, adapter.distance(value)) for library in libraries() for adapter in table(library))
    fitting = [(distance, adapter) for adapter, distance in distances if distance is not None]
    return min(fitting, key=lambda each: each[0])[1] if fitting else None


def libraries_known(table: Callable[[Library], tuple[Adapter, ...]]) -> str:
    """Return the libraries that have adapters for a component, as text."""
    return ", ".join(library.module for library in libraries() if table(library))


def environments() -> tuple[str, ...]:
    """Return the classes of environments of all libraries, each with the method that is a step."""
    return tuple(name for library in libraries() for name in library.environments)
