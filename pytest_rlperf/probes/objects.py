"""Objects and what they refer to: everything reachable, and an agent's parts by its names for them."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, TypeAlias

import msgspec

from pytest_rlperf.probes.torch import phase_name

Path: TypeAlias = tuple[str, ...]  # the names from an object to another that it refers to

_KINDS = (
    ("target_q", re.compile(r"targ|_old$|lagged")),
    ("actor", re.compile(r"(?<!extr)actor|policy|(^|_)pi(_|\d|$)")),
    ("critic", re.compile(r"critic|value|(^|_)(q|qf|qnet|v|vf)\d*(_|$)")),
)
_ALPHA = re.compile(r"alpha|ent_coef|entropy|temperature")
_BUFFER = re.compile(r"buffer|memory|replay|(^|_)rb(_|$)")
_LOOKED_AT_MOST = 2000
_LISTED_MOST = 32  # members of a list, which may be a buffer of transitions
_DEEPEST = 4
_NOT_LOOKED_INTO = frozenset({"env", "envs", "eval_env", "logger", "writer", "collector", "callbacks", "config"})


class Parts(msgspec.Struct, frozen=True):
    """The parts of an actor-critic update.

    ``modules`` have their kind: ``actor``, ``critic`` or ``target_q``. ``optimizers`` maps an optimizer's id to its
    section. ``buffers`` have the object that holds them.
    """

    modules: tuple[tuple[Any, str], ...]
    optimizers: Mapping[int, str]
    buffers: tuple[tuple[object, object], ...]


def find_parts(agent: object) -> Parts:
    """Return an agent's parts or, for a function that does an update, the parts of what it refers to."""
    torch = sys.modules.get("torch")
    if torch is None:
        return Parts((), {}, ())
    modules: dict[int, tuple[Any, str]] = {}
    optimizers: dict[int, tuple[Any, Path]] = {}
    buffers: dict[int, tuple[object, object]] = {}
    for path, holder, value in _nearest_first(agent, _LOOKED_AT_MOST, _may_be_a_part):
        if not path:
            continue
        if issubclass(type(value), torch.optim.Optimizer):
            optimizers.setdefault(id(value), (value, path))
        elif issubclass(type(value), torch.nn.Module):
            if (kind := _kind(path)) is not None:
                modules.setdefault(id(value), (value, kind))
        elif _BUFFER.search(path[-1].lower()) and callable(getattr(value, "sample", None)):
            buffers.setdefault(id(value), (holder, value))
    found = _outermost(list(modules.values()))
    kinds = {id(tensor): kind for module, kind in found for tensor in module.parameters()}
    return Parts(
        modules=found,
        optimizers={key: _section(optimizer, path, kinds) for key, (optimizer, path) in optimizers.items()},
        buffers=tuple(buffers.values()),
    )


def _kind(path: Path) -> str | None:
    """Return the kind of an object by its name, or by the names of what it belongs to."""
    for name in reversed(path):
        for kind, pattern in _KINDS:
            if pattern.search(name.lower()):
                return kind
    return None


def _section(optimizer: Any, path: Path, kinds: Mapping[int, str]) -> str:
    """Return an optimizer's section: by the parameters that it trains, else by its name."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    trained = {kinds.get(id(tensor)) for tensor in tensors}
    if len(trained) == 1 and None not in trained:
        return str(trained.pop())
    if _ALPHA.search(".".join(path)) or (trained == {None} and all(tensor.numel() == 1 for tensor in tensors)):
        return "alpha"
    return _kind(path) or phase_name(path[-1])


def _outermost(modules: list[tuple[Any, str]]) -> tuple[tuple[Any, str], ...]:
    """Return the modules of one kind throughout, without parts of others: a policy with critics is neither kind."""
    kinds = {id(module): kind for module, kind in modules}
    pure = [
        (module, kind)
        for module, kind in modules
        if all(kinds.get(id(part), kind) == kind for part in module.modules())
    ]
    parts = {id(part) for module, _ in pure for part in module.modules() if part is not module}
    return tuple((module, kind) for module, kind in pure if id(module) not in parts)


def _may_be_a_part(path: Path, name: str | None) -> bool:
    """Whether to follow an object's reference by a name, or to one of a list's first members."""
    if name is None or len(path) >= _DEEPEST or name in _NOT_LOOKED_INTO:
        return False
    return not name.isdigit() or int(name) < _LISTED_MOST


def variables_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function refers to, in its closure and its module, as far as they have values."""
    found = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has none yet
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of variables in a function's code, and in its inner functions'."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


MOST_OBJECTS = 10_000  # to look at: a buffer may hold its transitions as objects
_PLAIN = frozenset(map(id, (int, float, complex, bool, str, bytes, type(None))))  # classes of what refers to nothing


def reached(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield an object and those that it refers to, with the path to each from ``name``, the nearest first.

    References are attributes, members of containers, the objects of bound methods, and variables of functions. Numbers
    and texts that an object refers to are left out.
    """
    for path, _, found in _nearest_first(value, MOST_OBJECTS, lambda path, name: True):
        yield ".".join((name, *path)), found


def _nearest_first(
    start: object, most: int, follows: Callable[[Path, str | None], bool]
) -> Iterator[tuple[Path, object, object]]:
    """Yield objects, each once with its path and the object that holds it; classes and modules are left out."""
    waiting: deque[tuple[Path, object, object]] = deque([((), None, start)])
    seen: set[int] = set()
    while waiting and len(seen) < most:
        path, holder, value = waiting.popleft()
        if id(value) in seen or issubclass(type(value), type | ModuleType):
            continue
        seen.add(id(value))
        yield path, holder, value
        with suppress(Exception):  # a proxy of a freed object, or attributes made on demand, may raise anything
            for name, member in islice(_members(value), MOST_OBJECTS):
                if id(type(member)) not in _PLAIN and id(member) not in seen and follows(path, name):
                    waiting.append(((*path, name) if name else path, value, member))


def _members(value: object) -> Iterator[tuple[str | None, object]]:
    """Yield the objects that one refers to, each with its name.

    The name is empty if the other stands for the object, and None if it has none, like a value under a tensor key.
    """
    if isinstance(value, FunctionType):
        yield from variables_of(value).items()
        yield from _numbered(value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).items()
    elif isinstance(value, MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, partial):
        yield "", value.func
        yield from _numbered(value.args)
        yield from value.keywords.items()
    elif isinstance(value, dict | MappingProxyType):  # others may load what they give
        # An optimizer keeps its state by parameter: a tensor's text takes milliseconds, and waits for its device.
        members = dict.items(value) if isinstance(value, dict) else value.items()
        yield from ((str(key) if isinstance(key, str | int) else None, member) for key, member in members)
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from _numbered(value)
    else:
        yield from ((slot, getattr(value, slot)) for slot in _slots(type(value)) if hasattr(value, slot))
        own = getattr(value, "__dict__", None)
        for name, member in own.items() if isinstance(own, dict) else ():
            yield "" if name == "_modules" else name, member


def _numbered(members: Iterable[object]) -> Iterator[tuple[str, object]]:
    return ((str(number), member) for number, member in enumerate(members))


def _slots(kind: type) -> Iterator[str]:
    """Yield the names by which a class's own slots are attributes; a private one has its class's name before it."""
    for origin in kind.__mro__:
        slots = origin.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if not slot.endswith("__"):
                yield f"_{origin.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
