"""Comparisons with other versions of dependencies or another interpreter, with today's tree on both sides."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import PROTOCOL, OnStep, Project, Side, Sides
from pytest_rlperf.sides.cache import Cache
from pytest_rlperf.sides.environment import (
    installed_versions,
    interpreter_path,
    make_environment,
    parent_state,
    site_packages,
    start_entries,
)
from pytest_rlperf.sides.installs import import_packages, installs_from, normalized
from pytest_rlperf.sides.programs import INSTALL, last_lines, run, run_pip

_LIMIT_S = 120.0

TodayWith: TypeAlias = Callable[[str, "Path | None"], Side]
"""Returns today's tree under a label, with the packages of a directory before all others, if one is given."""

# Run in another interpreter: reports its version, and whether workers of this version can run in it.
_PROBE = """
import json, platform, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"name": platform.python_implementation(), "version": platform.python_version(), "prefix": sys.prefix}
try:
    import pytest
    import pytest_rlperf.worker.session
    from pytest_rlperf.model import sides
    answer["protocol"] = getattr(sides, "PROTOCOL", 0)
except Exception as error:
    answer["lacks"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


def pip_sides(requirements: tuple[str, ...], today_with: TodayWith, cache: Cache, on_step: OnStep) -> Sides:
    """Return the comparison of today's tree with other versions of its dependencies, in their own environment."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in requirements]
    listed = ", ".join(requirements)

    def install(directory: Path) -> None:
        python = make_environment(directory / "environment")
        step = f"installing {listed} only for this comparison"
        completed = run_pip(python, [*INSTALL, *map(str, wanted)], f"install {listed}", on_step, step)
        if completed.code:
            raise SideError(f"pip cannot install {listed}:\n{last_lines(completed)}")

    key = " ".join(["pip", *sorted(map(str, wanted)), parent_state()])
    own = site_packages(cache.entry(key, install, on_step) / "environment")
    base, head = installed_versions([own]), installed_versions()
    base = {name: version for name, version in base.items() if head.get(name) != version}
    names = [normalized(requirement.name) for requirement in wanted]
    if not base:
        raise SideError(
            f"installing {listed} changes nothing here ({_label(names, head)}): both sides would be the same. Name "
            "another version"
        )
    others = [f"{name}: {base[name]}, today {head.get(name, 'none')}" for name in sorted(base.keys() - set(names))]
    return Sides(
        base=today_with(_label(names, {**head, **base}), own),
        head=today_with(_label(names, head), None),
        packages=tuple(import_packages(own)),
        changed=None,
        notes=(f"the resolver also changed {'; '.join(others)}",) if others else (),
    )


def python_sides(python: str, project: Project, top: Path, on_step: OnStep) -> Sides:
    """Return the comparison of today's tree in another interpreter, which needs pytest and this plugin, and in this."""
    path = (project.directory / (shutil.which(python) or python)).absolute()
    if not path.is_file():
        raise SideError(f"python:{python} is not an interpreter: there is no file {path}; name python:PATH/bin/python")
    on_step(f"checking the interpreter {path}")
    other = _probe(path)
    if "lacks" in other:
        raise SideError(
            f"{path} cannot run the tests ({other['lacks']}); it needs pytest, this plugin and the tests' imports: "
            f"{path} -m pip install PATH, the path or URL from which pytest-rlperf is installed here"
        )
    if other["protocol"] != PROTOCOL:
        raise SideError(
            f"{path} has another version of pytest-rlperf (protocol {other['protocol']}, here {PROTOCOL}); "
            "install the same version there"
        )
    if other["prefix"] == sys.prefix and other["version"] == platform.python_version():
        raise SideError(f"{path} is the interpreter that runs these tests; both sides would be the same")
    # Each environment has its own copy of a non-editable package, and the copies may differ.
    copies = [install.name for install in installs_from(top) if install.how == "installed"]
    own = interpreter_path(str(path), {"PYTHONPATH": None}, path.parent)
    theirs = tuple(dict.fromkeys([*start_entries(project), *own]))
    here = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    return Sides(
        base=project.side(f"{other['name']} {other['version']} ({path})", str(path), theirs, (top,)),
        head=project.side(here, sys.executable, tuple(filter(None, project.path)), (top,)),
        packages=(),
        changed=None,
        notes=(f"{', '.join(copies)}: copies in both environments, which may differ",) if copies else (),
    )


def _label(names: Iterable[str], versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" if name in versions else f"no {name}" for name in names)


def _probe(path: Path) -> dict[str, Any]:
    """Return an interpreter's report on itself."""
    completed = run([path, "-c", _PROBE], cwd=path.parent, limit_s=_LIMIT_S)
    try:
        answer: dict[str, Any] = json.loads(completed.out.splitlines()[-1])
    except (ValueError, IndexError):
        raise SideError(
            f"{path} does not run as a Python interpreter (exit code {completed.code}):\n{last_lines(completed)}"
        ) from None
    return answer
