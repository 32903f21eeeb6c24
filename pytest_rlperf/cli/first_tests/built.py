"""Drafts of tests with what a project's own tests build: fixtures, helper functions, and objects in their modules."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any

from pytest_rlperf.cli.first_tests.drafts import Draft, Making, parameters_of
from pytest_rlperf.cli.first_tests.objects import Agent
from pytest_rlperf.cli.first_tests.project import OwnProject, is_a, names_of, place_of, steps
from pytest_rlperf.components.checks import attribute

_MAKES = re.compile(r"_?(make|build|create|get|new|setup)(_|$)")
_FILLS = re.compile(r"_?(fill|populate)_")
_MEMBERS_MOST = 12  # inspected in a list
_DEEPEST = 3  # fixtures that take fixtures


@dataclass(frozen=True)
class _Built:
    """An object that a test module makes: its name there, its expression, and the fixture that gives it."""

    module: ModuleType
    name: str
    expression: str
    value: Any
    given: str = ""

    @property
    def uses(self) -> tuple[tuple[str, str], ...]:
        """Return what its test imports; a fixture needs no import."""
        return () if self.given else ((self.module.__name__, self.name),)

    @property
    def place(self) -> str:
        """Return where it is made."""
        value = vars(self.module)[self.name]
        return place_of(value) if is_a(value, FunctionType) else os.path.relpath(str(self.module.__file__))


def built(project: OwnProject) -> Iterator[Draft]:
    """Yield drafts for what the tests' fixtures and helper functions return, and for objects in test modules."""
    for module in project.tests:
        for name, value in list(vars(module).items()):
            place = f"{module.__name__}:{name}"
            is_held = is_a(value, list, tuple) or _is_env(value)
            if place not in project.ended and (is_held or attribute(value, "__module__") == module.__name__):
                project.tell(begins=place)
                for each in _made(project, module, name, value):
                    yield from _drafts(project, each)


def _is_conftest(module: ModuleType) -> bool:
    return module.__name__.rpartition(".")[2] == "conftest"


def _is_env(value: Any) -> bool:
    return not is_a(value, type) and type(value).__module__ != "unittest.mock" and steps(value)


def _made(project: OwnProject, module: ModuleType, name: str, value: Any) -> Iterator[_Built]:
    """Yield what a name in a test module stands for, or makes; only fixtures that a test has without an import."""
    if _fixture(value) is not None:
        made = _from_fixture(project, module, name) if _is_conftest(module) else None
        if made is not None:
            yield _Built(module, name, name, made, given=name)
    elif is_a(value, FunctionType):
        if _MAKES.match(name) and all(each.default is not each.empty for each in parameters_of(value)):
            made = _called(value)
            if made is not None:
                yield _Built(module, name, f"{name}()", made)
    elif is_a(value, list, tuple):
        for index, each in enumerate(value[:_MEMBERS_MOST]):
            if _is_env(each):
                yield _Built(module, name, f"{name}[{index}]", each)
    elif _is_env(value):
        yield _Built(module, name, name, value)


def _fixture(value: Any) -> Callable[..., Any] | None:
    """Return the function of a pytest fixture; None for anything else."""
    if type(value).__name__ == "FixtureFunctionDefinition":
        function: Callable[..., Any] = value._get_wrapped_function()
        return function
    wrapped: Callable[..., Any] | None = attribute(attribute(value, "__pytest_wrapped__"), "obj")  # before pytest 8.4
    return wrapped


def _called(function: Callable[..., Any], **given: Any) -> Any:
    """Return what a test's function returns, or yields first; None if it fails."""
    try:
        made = function(**given)
        return next(made) if inspect.isgenerator(made) else made
    except BaseException:  # also SystemExit, and pytest's own for skipping
        return None


def _from_fixture(project: OwnProject, module: ModuleType, name: str, depth: int = 0) -> Any:
    """Return what a fixture gives a test, with the fixtures that it takes; None if that fails."""
    modules = [module, *filter(_is_conftest, project.tests)]
    function = next((found for each in modules if (found := _fixture(vars(each).get(name))) is not None), None)
    if function is None or depth > _DEEPEST:
        return None
    given = {each: _from_fixture(project, module, each, depth + 1) for each in names_of(function)}
    return None if any(each is None for each in given.values()) else _called(function, **given)


def _drafts(project: OwnProject, made: _Built) -> Iterator[Draft]:
    """Yield drafts for an object, or for a tuple's first member, with an observation that may follow it."""
    several = is_a(made.value, tuple) and len(made.value) > 0
    first, *rest = made.value if several else (made.value,)
    given = (made.given,) if made.given else ()
    if _is_env(first):
        whole = f"{made.expression}[0]" if several else made.expression
        call = f"lambda: {whole}" if made.expression.endswith(")") else whole
        name = re.sub(r"\W+", "_", made.expression).strip("_")
        bodies = [[f"rlperf_vecenv_step({call})"]]
        yield project.draft(made.place, name, "rlperf_vecenv_step", made.uses, bodies, given=given)
    elif project.is_own(type(first)):
        observed = bool(rest) and any(attribute(rest[0], name) is not None for name in ("shape", "keys"))
        targets = f"agent, obs{', *_' * (len(rest) > 1)}" if observed else "agent"
        line = f"{targets} = {made.expression}{'[0]' * (several and not observed)}"
        making = Making((line,), "agent", made.uses, observed="obs" if observed else "")
        filler = _filler(made.module, type(first), int(observed))
        if filler:
            setup = f"setup=lambda: {filler}(agent{', obs' * observed})"
            making = replace(making, uses=(*made.uses, (made.module.__name__, filler)), setup=setup)
        for draft in Agent(project, made.module, type(first), [making], {}, is_ready=True).drafts():
            yield replace(draft, given=given, place=made.place)


def _filler(module: ModuleType, of: type, more: int) -> str:
    """Return the function of a test module that fills an object of a class, by its name and annotation; or ""."""
    for name, value in vars(module).items():
        parameters = parameters_of(value) if is_a(value, FunctionType) and _FILLS.match(name) else []
        if len(parameters) == 1 + more and of.__name__ in str(parameters[0].annotation):
            return name
    return ""
