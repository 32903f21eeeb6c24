"""A process that imports a project's modules and inspects the objects in them: what to measure, and how to make it.

It runs in the project's environment, reads its orders from standard input, and tells what it begins, finds or skips.
Its reader ends it if a module takes too long, and starts it again without that module. It writes no file in the
project: an import that would is refused.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

from pytest_rlperf.cli.first_tests import built, envs, messages, objects
from pytest_rlperf.cli.first_tests.drafts import Draft
from pytest_rlperf.cli.first_tests.messages import Orders, Report
from pytest_rlperf.cli.first_tests.project import OwnProject, is_a, registry
from pytest_rlperf.components.checks import attribute

_MOST = 6  # tests of one kind, and half as many of wrappers and of plain calls; further ones are named
_MORE = "more of a kind that has tests: rlperf init MODULE:NAME writes its test"
# The audit events that write: where a path stands among the arguments, and a descriptor that it may be relative to.
_WRITES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "shutil.rmtree": ((0, None),),
}


def main() -> None:
    """Search the modules, as the orders say."""
    orders = messages.read(sys.stdin.read(), Orders)
    sys.argv[:] = ["pytest", "test_perf.py"]  # as when a test imports the project
    sys.path[:] = [*orders.entries, *(each for each in sys.path if each)]
    _refuse_writing(orders.root)
    project = _imported(orders)
    for draft in _chosen(project, envs_only=orders.envs_only):
        messages.send(Report(draft=draft))
    messages.send(Report(loaded=tuple(sorted({name.partition(".")[0] for name in sys.modules})), unmet=_unmet(project)))
    os._exit(0)  # the project's threads and exit handlers are not needed


def _unmet(project: OwnProject) -> str:
    """Return which named object its module lacks; "" if there is none."""
    for module, name in project.wanted:
        found = next((each for each in project.own if each.__name__ == module), None)
        if found is not None and not hasattr(found, name):
            defined = [each for of, each, _ in project.definitions() if of is found]
            return f"no module {module} that defines {name}; it defines: {', '.join(defined) or 'nothing'}"
    return ""


def _refuse_writing(root: str) -> None:
    """Raise PermissionError from now on if this process would write below a directory."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) if mode is None else bool(set("wax+") & set(str(mode)))
            paths = [path] if writes else []
        else:  # what is relative to a descriptor is shutil.rmtree's, which has an event of its own
            places = _WRITES.get(event, ())
            paths = [arguments[at] for at, descriptor in places if descriptor is None or arguments[descriptor] == -1]
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                place = _place(os.fsdecode(path), follows=event in {"open", "os.truncate"})
                if place.startswith(root + os.sep):
                    written = os.path.relpath(place, root)
                    raise PermissionError(f"rlperf init lets no module write {written} while it imports the project")

    sys.addaudithook(audit)


def _place(path: str, *, follows: bool) -> str:
    """Return the real place of a path; of a link, its own place unless the operation ``follows`` it."""
    return os.path.realpath(path) if follows else str(Path(path).parent.resolve() / Path(path).name)


def _imported(orders: Orders) -> OwnProject:
    """Import every module, the tests' last; tell which fail, with the error."""
    tops = {each.name.partition(".")[0] for each in orders.sources if not each.is_test}
    project = OwnProject(tops, orders.ended, orders.wanted)
    for source in orders.sources:
        if source.path in orders.ended:
            continue
        project.tell(begins=source.path)
        os.chdir(orders.root)
        path, before = [*sys.path], set(registry())
        reason = ""
        try:
            module = importlib.import_module(source.name)
            loaded = getattr(module, "__file__", None)
            if loaded and os.path.realpath(loaded) == os.path.realpath(source.path):
                (project.tests if source.is_test else project.own).append(module)
            elif loaded:
                reason = f"{source.name} is imported from {loaded}: pip install -e ., or rename it"
        except BaseException as error:  # also SystemExit, and pytest's own for skipping
            first, *_ = str(error).splitlines() or [""]
            reason = f"importing it fails: {type(error).__name__}{first and ': '}{first:.200}"
            if isinstance(error, SystemExit):
                reason += "; move the code that it runs below if __name__ == '__main__'"
        if not source.is_test and not reason and (line := _loop_of_program(source.path)):
            project.tell(
                place=f"{os.path.relpath(source.path)}:{line}",
                reason="no test can import this loop: move it from below if __name__ == '__main__' into a function",
            )
        project.registered |= {each: source.name for each in registry() if each not in before}
        sys.path += [each for each in path if each not in sys.path]
        if reason and not source.is_test:
            project.tell(place=os.path.relpath(source.path), reason=reason)
    os.chdir(orders.root)
    project.wanted = [_home(project, *each) for each in project.wanted]
    return project


def _loop_of_program(path: str) -> int:
    """Return the line of the first loop of some lines that a file runs only as a program; 0 if there is none."""
    body = ast.parse(Path(path).read_bytes()).body
    blocks = [each for each in body if isinstance(each, ast.If) and "__main__" in ast.dump(each.test)]
    loops = (each for block in blocks for each in ast.walk(block) if isinstance(each, (ast.For, ast.While)))
    return min((each.lineno for each in loops if (each.end_lineno or 0) - each.lineno > 1), default=0)


def _home(project: OwnProject, module: str, name: str) -> tuple[str, str]:
    """Return a named object with the module that defines it; the named module may import it from there."""
    of = next((vars(each).get(name) for each in project.own if each.__name__ == module), None)
    if is_a(of, type, FunctionType) and project.is_own(of):
        return str(attribute(of, "__module__")), str(attribute(of, "__name__"))
    return module, name


def _chosen(project: OwnProject, *, envs_only: bool) -> Iterator[Draft]:
    """Yield the drafts to try: all for named objects, else a few of each kind; envs first, as agents need them."""
    finders = [envs.registered_envs, envs.agents_envs]
    if not envs_only or project.wanted:
        finders += [envs.functions_of_envs, envs.classes_of_envs]
        finders += [objects.functions, objects.buffers, objects.agents, built.built]
    envs.tell_of_abstract_classes(project)
    counts: dict[tuple[str, str], int] = {}
    drafts = [draft for find in finders for draft in find(project)]
    for draft in sorted(drafts, key=lambda each: bool(each.unknown)):  # first those that can be tried
        if project.wanted:
            if any(draft.uses[-1:] == (each,) for each in project.wanted):
                yield draft
        else:
            lines = draft.bodies[0]
            kind = "wrapper" if any("env=" in each for each in lines) else lines[-1].partition("unit=")[2]
            counts[draft.fixture, kind] = counts.get((draft.fixture, kind), 0) + 1
            if counts[draft.fixture, kind] <= (_MOST // 2 if kind else _MOST):
                yield draft
            else:
                project.tell(place=draft.place, reason=_MORE)
