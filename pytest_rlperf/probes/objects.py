"""Objects and what they refer to: everything reachable, and the parts of an agent by the names it has for them."""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from pytest_rlperf.probes.torch import phase_name

P = TypeVar("P")  # a path

# Words in names of what moves target networks: polyak_update, soft_copy, sync_q_target, update_lagged_network_weights.
_MOVE = re.compile(r"updates?|sync|synchronize|copy|move|track|blend")
_TARGET = re.compile(r"targ(et)?s?|lagged")
_MANNER = re.compile(r"soft|hard|ema")
_NETWORK = re.compile(
    r"(critic|actor|policy|value|net|network|model|param|parameter|weight|[qv]f?\d*|q?net\d*)s?|policies"
)
_BETWEEN = re.compile(rf"{_NETWORK.pattern}|all|the|to|soft|hard|\d+")
_OF_THINGS = re.compile(r"move|track")  # a robot's and a camera's targets, too
# Words of other targets than networks, and of functions that are about moving them but do not.
_OTHER = re.compile(
    r"entropy|ent|kl|returns?|rewards?|goals?|pos|positions?|angles?|velocity|velocities|speeds?|actions?|noise|states?|"
    r"loss|lr|tau|rate|interval|freq|frequency|period|every|schedule|coef|coefficient|get|set|init|make|build|is|has|"
    r"should|compute"
)


def moves_targets(name: str) -> bool:
    """Whether a function of that name moves target networks, softly or at once."""
    words = _words(name)
    if any(_OTHER.fullmatch(word) for word in words):
        return False
    of_networks = any(_NETWORK.fullmatch(word) for word in words)
    verbs = [
        index
        for index, word in enumerate(words)
        if _MOVE.fullmatch(word) and (of_networks or not _OF_THINGS.fullmatch(word))
    ]
    return "polyak" in words or (bool(verbs) and (_names_manner(words) or _moves_target(words, verbs)))


def _words(name: str) -> list[str]:
    """Return a name's words, of snake_case, camelCase and ``softupdate``."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=soft|hard)(?=update|copy|sync)", "_", name)
    return [word for word in spaced.lower().replace("state_dict", "weights").split("_") if word]


def _names_manner(words: list[str]) -> bool:
    """Whether the verb or target follows how it is moved, or nothing does.

    Soft Q functions and soft actors are SAC's own: ``soft_q_update`` trains one.
    """
    following = [after for word, after in zip(words, [*words[1:], ""], strict=True) if _MANNER.fullmatch(word)]
    return any(not word or _MOVE.fullmatch(word) or _TARGET.fullmatch(word) for word in following)


def _moves_target(words: list[str], verbs: list[int]) -> bool:
    """Whether nothing but networks' names is between a verb and a target."""
    targets = [index for index, word in enumerate(words) if _TARGET.fullmatch(word)]
    spans = [sorted((verb, target)) for verb in verbs for target in targets]
    return any(all(_BETWEEN.fullmatch(word) for word in words[first + 1 : last]) for first, last in spans)


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


@dataclass(frozen=True)
class Parts:
    """The parts of an actor-critic update.

    ``modules`` have their kind: ``actor``, ``critic`` or ``target_q``. ``optimizers`` maps an optimizer's id to its
    section. ``buffers`` have the object that holds them. ``soft_updates`` are module-level functions that move target
    networks; ``soft_methods`` are the attributes that do so, with the object, or the function, that has them.
    """

    modules: tuple[tuple[Any, str], ...]
    optimizers: Mapping[int, str]
    buffers: tuple[tuple[object, object], ...]
    soft_updates: tuple[FunctionType, ...]
    soft_methods: tuple[tuple[object, str], ...]


def find_parts(agent: object, target_updates: Iterable[FunctionType] = ()) -> Parts:
    """Return an agent's parts; of a function that does an update, those of what it refers to.

    ``target_updates`` are functions that move target networks, beside those that are found by their names.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return Parts((), {}, (), (), ())
    modules: dict[int, tuple[Any, str]] = {}
    optimizers: dict[int, tuple[Any, tuple[str, ...]]] = {}
    buffers: dict[int, tuple[object, object]] = {}
    variables: dict[int, tuple[object, str]] = {}
    owners: dict[int, object] = {id(agent): agent}
    start = [(path, agent, member) for path, member in _named_members((), agent)]
    for path, holder, value in _nearest_first(start, _named_members, _LOOKED_AT_MOST):
        if issubclass(type(value), torch.optim.Optimizer):
            optimizers.setdefault(id(value), (value, path))
            owners[id(holder)] = holder
        elif issubclass(type(value), torch.nn.Module):
            if (kind := _kind(path)) is not None:
                modules.setdefault(id(value), (value, kind))
        elif isinstance(holder, FunctionType) and isinstance(value, FunctionType):
            if moves_targets(path[-1]):
                variables[id(value)] = (holder, path[-1])
        elif _BUFFER.search(path[-1].lower()) and callable(getattr(value, "sample", None)):
            buffers.setdefault(id(value), (holder, value))
    soft = (function for owner in owners.values() for function in _soft_updates(owner))
    functions = {id(function): function for function in (*target_updates, *soft)}
    found = _outermost(list(modules.values()))
    kinds = {id(tensor): kind for module, kind in found for tensor in module.parameters()}
    return Parts(
        modules=found,
        optimizers={key: _section(optimizer, path, kinds) for key, (optimizer, path) in optimizers.items()},
        buffers=tuple(buffers.values()),
        soft_updates=tuple(functions.values()),
        soft_methods=(
            *((owner, name) for owner in owners.values() for name in _soft_methods(owner)),
            *(place for key, place in variables.items() if key not in functions),
        ),
    )


def _kind(path: tuple[str, ...]) -> str | None:
    """Return what something is by its name, or by the names of what it belongs to."""
    for name in reversed(path):
        for kind, pattern in _KINDS:
            if pattern.search(name.lower()):
                return kind
    return None


def _section(optimizer: Any, path: tuple[str, ...], kinds: Mapping[int, str]) -> str:
    """Return the section of an optimizer: by the parameters that it trains, and only then by its name."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    trained = {kinds.get(id(tensor)) for tensor in tensors}
    if len(trained) == 1 and None not in trained:
        return str(trained.pop())
    if _ALPHA.search(".".join(path)) or (trained == {None} and all(tensor.numel() == 1 for tensor in tensors)):
        return "alpha"
    return _kind(path) or phase_name(path[-1])


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


def _named_members(path: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield the objects that one refers to by name: attributes, modules, items of containers, and variables."""
    held: Mapping[Any, object] = {}
    if len(path) == _DEEPEST:
        return
    if isinstance(value, FunctionType):
        held = variables_of(value)
    elif isinstance(value, MethodType):
        held = {"self": value.__self__, "function": value.__func__}
    elif isinstance(value, partial):
        held = {"function": value.func, "self": list(value.args), **value.keywords}
    elif isinstance(value, dict):
        held = value
    elif isinstance(value, list | tuple):
        held = {str(index): member for index, member in enumerate(value[:_LISTED_MOST])}
    elif type(value).__module__ not in ("builtins", "numpy"):
        own = getattr(value, "__dict__", None)
        held = own if isinstance(own, dict) else {}
        modules = held.get("_modules")
        held = {**(modules if isinstance(modules, dict) else {}), **held}
    for name, member in list(held.items()):
        if isinstance(name, str) and name not in _NOT_LOOKED_INTO and name != "_modules":
            yield (*path, name), member


def variables_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function refers to, of its closure and its module, as far as they have values."""
    found = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # it has none yet
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of variables in a function's code, and in that of functions within."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _soft_updates(owner: object) -> Iterator[FunctionType]:
    """Yield the functions that move target networks, by their names in the modules that an object's class is from."""
    for origin in (owner,) if isinstance(owner, FunctionType) else type(owner).__mro__:
        module = sys.modules.get(origin.__module__)
        for name, value in list(vars(module).items()) if module is not None else ():
            if isinstance(value, FunctionType) and moves_targets(name):
                yield value


def _soft_methods(owner: object) -> Iterator[str]:
    """Yield the names of an object's methods that move target networks."""
    for name in dir(type(owner)):
        if moves_targets(name) and isinstance(getattr(type(owner), name, None), FunctionType):
            yield name


MOST_OBJECTS = 10_000  # looked at; a buffer may hold its transitions as objects


def reached(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield an object and those that it refers to, with the path to each from ``name``, the nearest first.

    These are attributes, members of containers, the objects of bound methods, and variables of functions.
    """
    for path, _, found in _nearest_first([(name, None, value)], _all_members, MOST_OBJECTS):
        yield path, found


def _nearest_first(
    start: Iterable[tuple[P, object, object]],
    members: Callable[[P, object], Iterable[tuple[P, object]]],
    most: int,
) -> Iterator[tuple[P, object, object]]:
    """Yield objects, each once with its path and the object that holds it; classes and modules are left out."""
    waiting = deque(start)
    seen: set[int] = set()
    while waiting and len(seen) < most:
        path, holder, value = waiting.popleft()
        if id(value) in seen or issubclass(type(value), type | ModuleType):
            continue
        seen.add(id(value))
        yield path, holder, value
        with suppress(Exception):  # a proxy of what is gone, or what makes its attributes, may raise anything
            waiting.extend((inner, value, member) for inner, member in islice(members(path, value), MOST_OBJECTS))


def _all_members(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield all objects that one refers to."""
    if isinstance(value, FunctionType):
        yield from ((f"{path}.{name}", member) for name, member in variables_of(value).items())
        yield from ((f"{path}({index})", member) for index, member in enumerate(value.__defaults__ or ()))
        yield from ((f"{path}({name})", member) for name, member in (value.__kwdefaults__ or {}).items())
    elif isinstance(value, MethodType):
        yield path, value.__self__
        yield f"{path}.__func__", value.__func__
    elif isinstance(value, partial):
        yield path, value.func
        yield from ((f"{path}[{index}]", member) for index, member in enumerate(value.args))
        yield from ((f"{path}[{name}]", member) for name, member in value.keywords.items())
    elif isinstance(value, Mapping):
        named = ((_shown(key, place), member) for place, (key, member) in enumerate(value.items()))
        yield from ((f"{path}[{name}]", member) for name, member in named)
    elif isinstance(value, list | tuple | deque | set | frozenset):
        yield from ((f"{path}[{index}]", member) for index, member in enumerate(value))
    else:
        for slot in _slots(type(value)):
            if hasattr(value, slot):
                yield f"{path}.{slot}", getattr(value, slot)
        own = getattr(value, "__dict__", None)
        yield from ((f"{path}.{name}", member) for name, member in (own if isinstance(own, dict) else {}).items())


def _shown(key: object, place: int) -> str:
    """Return a mapping's key as text: a name or number itself, of any other its class and its place.

    An optimizer keeps its state by parameter: the text of a tensor takes milliseconds, and waits for its device.
    """
    return repr(key) if isinstance(key, str | int | float) else f"<{type(key).__name__} {place}>"


def _slots(kind: type) -> Iterator[str]:
    """Yield the names that a class's own slots have, less private ones and those that are no attributes."""
    for origin in kind.__mro__:
        slots = origin.__dict__.get("__slots__", ())
        yield from (slot for slot in ((slots,) if isinstance(slots, str) else slots) if not slot.startswith("__"))
