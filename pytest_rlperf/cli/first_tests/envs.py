"""Drafts of tests that step a project's envs: registered ones, PettingZoo's modules, classes, and functions."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from pytest_rlperf.cli.first_tests.drafts import Draft, Making, makings
from pytest_rlperf.cli.first_tests.project import OwnProject, bases_of, names_of, place_of, registry, steps
from pytest_rlperf.components.checks import attribute
from pytest_rlperf.components.functional import is_keyed

_STEP = "rlperf_vecenv_step"
_AGENTS = {"AECEnv": "aec_env", "ParallelEnv": "parallel_env"}  # PettingZoo's classes, and a value's name for each
_WRAPPED = {"env", "aec_env", "par_env", "parallel_env"}


def registered_envs(project: OwnProject) -> Iterator[Draft]:
    """Yield a draft per family of envs that the project registers with gymnasium: a family's classes share a module."""
    families: dict[str, tuple[str, str, Any]] = {}
    for name, module in project.registered.items():
        entry = registry()[name].entry_point
        where, _, exported = entry.partition(":") if isinstance(entry, str) else ("", "", "")
        if not (where.partition(".")[0] in project.tops or (callable(entry) and project.is_own(entry))):
            continue
        try:
            of = getattr(importlib.import_module(where), exported) if where else entry
        except Exception as error:
            project.tell(place=name, reason=f"its class cannot be imported: {type(error).__name__}: {error}")
            continue
        families.setdefault(getattr(of, "__module__", where), (name, module, of))
    for family in spread(families):
        name, module, of = families[family]
        uses = ((module, ""),)
        project.know("env", Making((), f'gymnasium.make("{name}")', uses, bases=bases_of(of)))
        project.know("env_id", Making((), f'"{name}"', uses))
        many = f'{_STEP}(lambda: gymnasium.make_vec("{name}", num_envs='
        bodies = [[f"{many}num_envs))"], [f"{many}8))"], [f'{_STEP}(lambda: gymnasium.make("{name}"))']]
        yield project.draft(place_of(of), name, _STEP, uses, bodies)


def agents_envs(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for PettingZoo's modules, which have ``parallel_env`` or ``env``, by each one's shortest name."""
    found: dict[str, tuple[ModuleType, str]] = {}
    makers: set[int] = set()
    for module in sorted(project.own, key=lambda each: each.__name__.count(".")):
        made = vars(module)
        maker = next((name for name in ("parallel_env", "env") if callable(made.get(name))), "")
        if maker and {"raw_env", "parallel_env"} & made.keys() and id(made[maker]) not in makers:
            makers.add(id(made[maker]))
            found[module.__name__] = module, maker
    for name in spread(found):
        module, maker = found[name]
        package, _, last = name.rpartition(".")
        uses = ((package, last) if package else (last, ""),)
        for each, kind in (("env", "aec_env"), ("parallel_env", "parallel_env")):
            if callable(getattr(module, each, None)):
                project.know(kind, Making((), f"{last}.{each}()", uses))
        bodies = [[f"{_STEP}(lambda: {last}.{each}())"] for each in dict.fromkeys((maker, "env"))]
        yield project.draft(os.path.relpath(str(module.__file__)), last, _STEP, uses, bodies)


def classes_of_envs(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for env classes that are not registered, and that no other class of the project is derived from."""
    registered = {getattr(registry().get(name), "entry_point", "") for name in project.registered}
    found: dict[str, list[type]] = {}
    for module, _, of in project.classes():
        is_known = _exported(of, registered)
        is_last = not any(project.is_own(each) for each in _below(of))
        if steps(of) and (project.is_wanted(of) or (is_last and not is_known)):
            found.setdefault(module.__name__, []).append(of)
    families = [found[name] for name in spread(found)]
    for of in (*(first for first, *_ in families), *(each for _, *more in families for each in more)):
        yield from _class_of_env(project, of)


def _exported(of: type, registered: Iterable[Any]) -> bool:
    """Return whether an env is registered by its class, or by the name that its own package exports it by."""
    name, top = of.__name__, of.__module__.partition(".")[0]
    texts = [each for each in registered if isinstance(each, str)]
    return of in registered or any(each.startswith(top) and each.endswith(f":{name}") for each in texts)


def tell_of_abstract_classes(project: OwnProject) -> None:
    """Report named classes that are abstract as skipped, with a subclass that can be measured, if there is one."""
    for _, name, of in project.definitions():
        if inspect.isabstract(of) and project.is_wanted(of):
            missing = ", ".join(sorted(of.__abstractmethods__))
            below = next((each for each in _below(of) if not inspect.isabstract(each)), None)
            example = f": rlperf init {below.__module__}:{below.__name__}" if below else ""
            project.tell(place=place_of(of), reason=f"{name} is abstract: a subclass defines {missing}{example}")


def _class_of_env(project: OwnProject, of: type) -> Iterator[Draft]:
    """Yield the draft for a class: an env, a vector env, a functional env, or a wrapper."""
    bases, takes = bases_of(of), set(names_of(of))
    attributes = {name for each in of.__mro__ for name in (*vars(each).get("__annotations__", {}), *vars(each))}
    is_functional = is_keyed(attribute(of, "reset"))
    is_env = bool(bases & {"Env", *_AGENTS})
    is_vector = bool({"num_envs", "n_envs"} & (attributes | takes))
    kind = next((kind for name, kind in _AGENTS.items() if name in bases), "env")
    if not (is_functional or is_env or is_vector or project.is_wanted(of)):
        return
    if takes & _WRAPPED and kind != "env" and kind not in project.known:
        return  # a wrapper of envs that the project lacks
    known = {**project.known, "env": project.known.get(kind, []), "size": [Making((), "8")]}
    made = makings(of.__name__, of, known, ((of.__module__, of.__name__),))
    bodies = [[*each.lines, f"{_STEP}(lambda: {each.expression})"] for each in made]
    yield project.draft(place_of(of), of.__name__, _STEP, made[0].uses, bodies, made[0].unknown)
    if not made[0].unknown and (is_env or is_functional) and not takes & _WRAPPED:
        project.know("env", Making(made[0].lines, made[0].expression, made[0].uses, bases=bases))


def functions_of_envs(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for functions named ``make_env…``, also if they return what makes one env, as CleanRL's do."""
    for module, name, of in project.definitions():
        if isinstance(of, type) or not name.startswith("make_env"):
            continue
        made = makings(name, of, project.known, ((module.__name__, name),))
        bodies = [[*each.lines, f"{_STEP}(lambda: {each.expression})"] for each in made]
        if any(inspect.iscode(each) for each in of.__code__.co_consts):  # an inner function
            several = f"{_STEP}(lambda: gymnasium.vector.SyncVectorEnv([{{}}] * 8))"
            bodies = [[*each.lines, several.format(each.expression)] for each in made] + bodies
        yield project.draft(place_of(of), name, _STEP, made[0].uses, bodies, made[0].unknown)


def _below(of: type) -> Iterator[type]:
    """Yield the loaded subclasses of a class."""
    below: list[type] = type.__subclasses__(of)
    for each in below:
        yield each
        yield from _below(each)


def spread(modules: Iterable[str]) -> list[str]:
    """Return modules' names, alternating between packages, so that the first few are from many packages."""
    counts: dict[str, int] = {}
    order = []
    for name in sorted(modules):
        package = name.rpartition(".")[0]
        counts[package] = counts.get(package, 0) + 1
        order.append((counts[package], package, name))
    return [name for *_, name in sorted(order)]
