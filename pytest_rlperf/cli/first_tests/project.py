"""An imported project: its modules, what they define, and its own values that calls are tried with."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count
from types import FunctionType, ModuleType
from typing import Any

from pytest_rlperf.cli.first_tests import messages
from pytest_rlperf.cli.first_tests.drafts import Draft, Making, parameters_of, test_name

_KNOWN_MOST = 3  # the project's own values for one name
_FOREIGN = {"builtins", "collections", "torch", "flax"}  # their methods are not a component's


@dataclass(frozen=True)
class Buffer:
    """One of the project's replay buffers, for agents that take one: the lines that make and fill ``buffer``."""

    module: str
    lines: tuple[str, ...]
    uses: tuple[tuple[str, str], ...]


@dataclass
class OwnProject:
    """The modules of a project, and of its tests and examples.

    ``tops`` are its packages, and its modules outside packages. ``registered`` are the ids of envs that a module's
    import registered with gymnasium. ``known`` are values for parameters by their names. ``ended`` is what ended an
    earlier process: a file, or an object as ``module:name``. If there are ``wanted`` objects, others are left out.
    """

    tops: set[str]
    ended: list[str]
    wanted: list[tuple[str, str]]
    own: list[ModuleType] = field(default_factory=list)
    tests: list[ModuleType] = field(default_factory=list)
    registered: dict[str, str] = field(default_factory=dict)
    known: dict[str, list[Making]] = field(default_factory=dict)
    buffers: list[Buffer] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)  # of tests, with the place of what each measures

    def tell(self, *, begins: str = "", place: str = "", reason: str = "") -> None:
        """Send to the reading process that something begins, or is skipped and why."""
        messages.send(messages.Report(begins=begins, place=place, reason=reason))

    def is_own(self, of: Any) -> bool:
        """Return whether a class or function belongs to the project."""
        return str(getattr(of, "__module__", "")).partition(".")[0] in self.tops

    def is_wanted(self, of: Any) -> bool:
        """Return whether an object was named."""
        return (of.__module__, of.__name__) in self.wanted

    def know(self, name: str, making: Making) -> None:
        """Keep one of the project's own values for parameters with a name."""
        if len(self.known.setdefault(name, [])) < _KNOWN_MOST:
            self.known[name].append(making)

    def known_in(self, module: ModuleType) -> dict[str, list[Making]]:
        """Return the known values, one module's first, such as ``Args()`` for ``args``."""
        name = module.__name__
        ready = {
            each.lower(): [Making((), f"{each}()", ((name, each),))]
            for each, of in vars(module).items()
            if is_a(of, type) and of.__module__ == name and not any(p.default is p.empty for p in parameters_of(of))
        }
        return ready | {
            each: sorted(values, key=lambda value: all(use[0] != name for use in value.uses))
            for each, values in self.known.items()
        }

    def definitions(self) -> Iterator[tuple[ModuleType, str, Any]]:
        """Yield the public classes and functions that the modules define; tell that looking at each begins."""
        for module in self.own:
            for name, of in list(vars(module).items()):
                place = f"{module.__name__}:{name}"
                is_hidden = name[0] == "_" and (module.__name__, name) not in self.wanted
                if is_hidden or not is_a(of, type, FunctionType) or place in self.ended:
                    continue
                self.tell(begins=place)
                if (of.__module__, of.__name__) == (module.__name__, name):
                    yield module, name, of

    def classes(self) -> Iterator[tuple[ModuleType, str, type]]:
        """Yield the public classes that the modules define, without abstract ones and protocols."""
        for module, name, of in self.definitions():
            if isinstance(of, type) and not inspect.isabstract(of) and not vars(of).get("_is_protocol"):
                yield module, name, of

    def draft(
        self,
        place: str,
        name: str,
        fixture: str,
        uses: Iterable[tuple[str, str]],
        bodies: Iterable[Iterable[str]],
        unknown: Iterable[str] = (),
        given: tuple[str, ...] = (),
    ) -> Draft:
        """Return a draft, with a test name that no draft of another place has."""
        uses = tuple(dict.fromkeys(uses))
        first = test_name(name, fixture)
        second = test_name(f"{uses[-1][0].rpartition('.')[2]}_{name}", fixture) if uses else first
        numbered = (f"{second}_{number}" for number in count(2))
        candidates = chain((first, second), numbered)
        test = next(each for each in candidates if self._names.setdefault(each, place) == place)
        versions = tuple(dict.fromkeys(tuple(body) for body in bodies))
        return Draft(place, name, fixture, test, uses, versions, tuple(dict.fromkeys(unknown)), given)


def is_a(value: Any, *kinds: type) -> bool:
    """Return whether an object's type is one of ``kinds``: asking a foreign object for its class may raise."""
    return issubclass(type(value), kinds)


def registry() -> dict[str, Any]:
    """Return the envs that gymnasium knows, by their ids; none if it is not imported."""
    return getattr(sys.modules.get("gymnasium"), "registry", None) or {}


def place_of(of: Any) -> str:
    """Return the place of a definition, as an editor opens it; for anything else, its module's file."""
    try:
        return f"{os.path.relpath(str(inspect.getsourcefile(of)))}:{inspect.getsourcelines(of)[1] or 1}"
    except (TypeError, OSError, ValueError):
        file = getattr(sys.modules.get(getattr(of, "__module__", "")), "__file__", None)
        return os.path.relpath(file) if file else str(getattr(of, "__module__", of))


def method_of(of: Any, names: Iterable[str]) -> str:
    """Return the first of ``names`` that is a method of a class, from itself or its library; "" without one.

    A PyTorch module's ``train`` does not count, as it only sets a mode.
    """
    for name in names:
        owner = next((each for each in getattr(of, "__mro__", ()) if name in vars(each)), None)
        is_mode = name == "train" and "Module" in bases_of(of)
        is_foreign = owner is None or owner.__module__.partition(".")[0] in _FOREIGN
        if not is_mode and not is_foreign and callable(getattr(of, name)):
            return name
    return ""


def names_of(function: Callable[..., Any] | None) -> list[str]:
    """Return the names of a function's parameters."""
    return [each.name for each in parameters_of(function)]


def bases_of(of: Any) -> frozenset[str]:
    """Return the names of a class and of all its bases."""
    return frozenset(each.__name__ for each in getattr(of, "__mro__", ()))


def steps(value: Any) -> bool:
    """Return whether an object, or a class, is an env by its methods."""
    try:
        return not is_a(value, ModuleType) and all(callable(getattr(value, name)) for name in ("reset", "step"))
    except Exception:  # a foreign object's attributes may raise anything
        return False
