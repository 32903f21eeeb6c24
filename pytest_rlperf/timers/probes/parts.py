"""What an agent updates itself with, found by the names it has for it."""

from __future__ import annotations

import inspect
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

_KINDS = (
    ("target_q", re.compile(r"target|_old$|lagged")),
    ("actor", re.compile(r"actor|policy|(^|_)pi(_|\d|$)")),
    ("critic", re.compile(r"critic|value|(^|_)(q|qf|qnet|v|vf)\d*(_|$)")),
)
_ALPHA = re.compile(r"alpha|ent_coef|entropy|temperature")
_BUFFER = re.compile(r"buffer|memory|replay|(^|_)rb(_|$)")
_SOFT_UPDATE = re.compile(r"(polyak|soft)_?(\w*_)?(update|sync|copy)|update_(target|lagged)|(target|lagged)_?\w*update")
_LOOKED_AT_MOST = 2000
_DEEPEST = 4
_NOT_LOOKED_INTO = frozenset({"env", "envs", "eval_env", "logger", "writer", "collector", "callbacks", "config"})


@dataclass(frozen=True)
class Parts:
    """What an update is made of.

    Modules with what they are (``actor``, ``critic`` or ``target_q``), the section of each optimizer by its id, buffers
    with what holds them, and what moves target networks: functions, and methods with their object.
    """

    modules: tuple[tuple[Any, str], ...]
    optimizers: Mapping[int, str]
    buffers: tuple[tuple[object, object], ...]
    soft_updates: tuple[FunctionType, ...]
    soft_methods: tuple[tuple[object, str], ...]


def find_parts(agent: object) -> Parts:
    """Return an agent's parts; of a function that does an update, those of what it refers to."""
    torch = sys.modules.get("torch")
    if torch is None:
        return Parts((), {}, (), (), ())
    modules: dict[int, tuple[Any, str]] = {}
    optimizers: dict[int, str] = {}
    buffers: dict[int, tuple[object, object]] = {}
    owners: dict[int, object] = {id(agent): agent}
    for path, holder, value in _walk(agent):
        if isinstance(value, torch.optim.Optimizer):
            optimizers[id(value)] = "alpha" if _ALPHA.search(".".join(path)) else _kind(path) or path[-1]
            owners[id(holder)] = holder
        elif isinstance(value, torch.nn.Module):
            kind = _kind(path)
            if kind is not None:
                modules.setdefault(id(value), (value, kind))
        elif _BUFFER.search(path[-1].lower()) and callable(getattr(value, "sample", None)):
            buffers.setdefault(id(value), (holder, value))
    functions = {id(function): function for owner in owners.values() for function in _soft_updates(owner)}
    return Parts(
        modules=_outermost(list(modules.values())),
        optimizers=optimizers,
        buffers=tuple(buffers.values()),
        soft_updates=tuple(functions.values()),
        soft_methods=tuple((owner, name) for owner in owners.values() for name in _soft_methods(owner)),
    )


def _kind(path: tuple[str, ...]) -> str | None:
    """Return what something is by its name, or by the names of what it belongs to."""
    for name in reversed(path):
        for kind, pattern in _KINDS:
            if pattern.search(name.lower()):
                return kind
    return None


def _outermost(modules: list[tuple[Any, str]]) -> tuple[tuple[Any, str], ...]:
    """Return the modules that are of one kind throughout, less parts of others: a policy with critics is neither."""
    kinds = {id(module): kind for module, kind in modules}
    pure = [
        (module, kind)
        for module, kind in modules
        if all(kinds.get(id(part), kind) == kind for part in module.modules())
    ]
    parts = {id(part) for module, _ in pure for part in module.modules() if part is not module}
    return tuple((module, kind) for module, kind in pure if id(module) not in parts)


def _walk(agent: object) -> Iterator[tuple[tuple[str, ...], object, object]]:
    """Yield what an agent is made of, each with the names that lead to it and what holds it, the nearest first."""
    waiting = deque(_members((), agent))
    seen: set[int] = set()
    while waiting and len(seen) < _LOOKED_AT_MOST:
        path, holder, value = waiting.popleft()
        if id(value) in seen or issubclass(type(value), type | ModuleType):
            continue
        seen.add(id(value))
        yield path, holder, value
        if len(path) < _DEEPEST:
            waiting.extend(_members(path, value))


def _members(path: tuple[str, ...], value: object) -> list[tuple[tuple[str, ...], object, object]]:
    """Return what an object refers to by name: attributes, modules, values of a dictionary, variables of a function."""
    if isinstance(value, FunctionType):
        names = inspect.getclosurevars(value)
        held: Mapping[Any, object] = {**names.globals, **names.nonlocals}
    elif isinstance(value, dict):
        held = value
    elif type(value).__module__ in ("builtins", "numpy"):
        return []
    else:
        held = {**getattr(value, "_modules", {}), **getattr(value, "__dict__", {})}
    return [
        ((*path, name), value, member)
        for name, member in held.items()
        if isinstance(name, str) and name not in _NOT_LOOKED_INTO and name != "_modules"
    ]


def _soft_updates(owner: object) -> Iterator[FunctionType]:
    """Yield the functions that move target networks, by their names in the modules that an object's class is from."""
    for origin in (owner,) if isinstance(owner, FunctionType) else type(owner).__mro__:
        module = sys.modules.get(origin.__module__)
        for name, value in list(vars(module).items()) if module is not None else ():
            if isinstance(value, FunctionType) and _SOFT_UPDATE.search(name.lower()):
                yield value


def _soft_methods(owner: object) -> Iterator[str]:
    """Yield the names of an object's methods that move target networks."""
    for name in dir(type(owner)):
        if _SOFT_UPDATE.search(name.lower()) and isinstance(getattr(type(owner), name, None), FunctionType):
            yield name
