"""Sides that run today's tree on something else: other versions of what it depends on, or another interpreter."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import PROTOCOL, Project, Side, Sides
from pytest_rlperf.sides.build import is_satisfied, last_lines, run_pip
from pytest_rlperf.sides.cache import Cache
from pytest_rlperf.sides.command import run
from pytest_rlperf.sides.environment import (
    installed_versions,
    interpreter_path,
    make_environment,
    parent_state,
    side_variables,
    site_packages,
    start_entries,
    start_path,
)
from pytest_rlperf.sides.packages import import_names, is_named, normalized, packages_under_test
from pytest_rlperf.sides.sources import digest, listing

Progress = Callable[[str], None]

_ASK_LIMIT_S = 120.0
_ENVIRONMENT = "environment"
_NO_PACKAGES = {"doc", "docs", "examples", "test", "tests"}  # that wheels bring by mistake, and users have too

# What another interpreter is asked: who it is, and whether workers of this version can run in it.
_WHO = """
import json, platform, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"name": platform.python_implementation(), "version": platform.python_version(), "prefix": sys.prefix}
try:
    import pytest
    import pytest_rlperf.workers.worker
    from pytest_rlperf.model import sides
    answer["protocol"] = getattr(sides, "PROTOCOL", 0)
except Exception as error:
    answer["lacks"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


def pip_sides(requirements: tuple[str, ...], project: Project, top: Path, cache: Cache, progress: Progress) -> Sides:
    """Return today's tree beside itself with other versions of what it depends on, in an environment of its own."""
    wanted = [_parsed(text) for text in requirements]
    _check_not_own(wanted, project, top)
    _check_not_installed(wanted)
    local = [content for requirement in wanted if (content := _local_content(requirement)) is not None]

    def install(directory: Path) -> None:
        progress(f"installing {', '.join(requirements)}, for this comparison alone")
        python = make_environment(directory / _ENVIRONMENT, project, (), None, built=False)
        # What pip has built of a file before it keeps by the file's name, whatever is in it now.
        options = ["--no-cache-dir"] if local else []
        completed = run_pip(python, ["install", *options, *map(str, wanted)], f"install {', '.join(requirements)}")
        if completed.code:
            raise SideError(f"pip cannot install {', '.join(requirements)}:\n{last_lines(completed)}")

    key = " ".join(["pip", *sorted(map(str, wanted)), *sorted(local), parent_state()])
    environment = cache.entry(key, install, progress) / _ENVIRONMENT
    own = site_packages(environment)
    base, head = installed_versions([own]), installed_versions()
    base = {name: version for name, version in base.items() if head.get(name) != version}
    names = [normalized(requirement.name) for requirement in wanted]
    if not base:
        raise SideError(f"installing {', '.join(requirements)} changed nothing: both sides would be the same")
    packages = tuple(_import_packages(own))
    python = str(environment / "bin" / "python")
    variables = side_variables(project, (top, top), environment)
    path = start_path(python, project, None, variables)
    side = _side(_label(names, {**head, **base}), python, path, project, (own,))
    return Sides(
        base=replace(side, environment=variables),
        head=_side(_label(names, head), sys.executable, _own_path(project), project, tuple(_homes_today(packages))),
        packages=packages,
        changed=None,
        notes=tuple(_also_changed(names, base, head)),
    )


def python_sides(python: str, project: Project, top: Path, progress: Progress) -> Sides:
    """Return today's tree in another interpreter, which must have pytest and this plugin, beside it in this one."""
    path = _interpreter(python, project)
    progress(f"asking {path} who it is")
    answer = _ask(path)
    if "lacks" in answer:
        raise SideError(
            f"{path} cannot run the tests ({answer['lacks']}); it needs pytest, this plugin and what the tests import: "
            f"{path} -m pip install pytest-rlperf"
        )
    if answer["protocol"] != PROTOCOL:
        raise SideError(
            f"{path} has another version of pytest-rlperf (protocol {answer['protocol']}, here {PROTOCOL}); "
            "install the same version there"
        )
    if answer["prefix"] == sys.prefix and answer["version"] == platform.python_version():
        raise SideError(f"{path} is the interpreter that runs these tests; both sides would be the same")
    # What is installed as a copy lies in either environment, and nobody can tell whether the copies are the same.
    found = packages_under_test(project, top)
    copies = [package.name for package in found if package.how == "installed"]
    own = interpreter_path(str(path), {"PYTHONPATH": None}, path.parent)
    return Sides(
        base=_side(
            f"{answer['name']} {answer['version']} ({path})",
            str(path),
            tuple(dict.fromkeys([*start_entries(project), *own])),
            project,
            (top,),
        ),
        head=_side(
            f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
            sys.executable,
            _own_path(project),
            project,
            (top,),
        ),
        packages=tuple(package.name for package in found if package.how != "installed"),
        changed=None,
        notes=(f"{', '.join(copies)}: copies in both environments, which may differ",) if copies else (),
    )


def _side(label: str, python: str, path: tuple[str, ...], project: Project, homes: tuple[Path, ...]) -> Side:
    """Return a side that runs today's tree."""
    return project.side(label, python, path, homes)


def _own_path(project: Project) -> tuple[str, ...]:
    return tuple(entry for entry in project.path if entry)


def _parsed(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise SideError(
            f"pip:{text} is no requirement ({str(error).splitlines()[0]}); "
            "name a version, pip:gymnasium==1.0.0, or a file, 'pip:gymnasium @ file:///path/to/it.whl'"
        ) from None


def _local_content(requirement: Requirement) -> str | None:
    """Return a digest of the file or directory that a requirement takes from this machine, None where it takes none."""
    url = urlsplit(requirement.url or "")
    if url.scheme != "file":
        return None
    place = Path(unquote(url.path, errors="surrogateescape")).resolve()
    return digest(place, sorted(listing(place))) if place.is_dir() else digest(place.parent, [place.name])


def _check_not_own(wanted: Iterable[Requirement], project: Project, top: Path) -> None:
    """Check that no requirement is this repository itself, whose code would be today's all the same."""
    found = packages_under_test(project, top)
    own = {normalized(package.distribution) for package in found if package.distribution is not None}
    places = {project.rootdir, top, *(package.project_dir for package in found if package.project_dir is not None)}
    for requirement in wanted:
        if normalized(requirement.name) in own or any(is_named(place, requirement.name) for place in places):
            exact = [pin.version for pin in requirement.specifier if pin.operator == "=="]
            raise SideError(
                f"pip:{requirement} is this repository's own distribution, and today's code would be imported before "
                f"it; compare with the commit it was made from, by its tag: --rlperf-against=v{(exact or ['1.0'])[0]}"
            )


def _check_not_installed(wanted: list[Requirement]) -> None:
    if all(is_satisfied(str(requirement)) for requirement in wanted):
        versions = installed_versions()
        have = _label([normalized(requirement.name) for requirement in wanted], versions)
        raise SideError(f"{have} is what is installed; both sides would be the same. Name another version")


def _label(names: Iterable[str], versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" if name in versions else f"no {name}" for name in names)


def _also_changed(names: list[str], base: Mapping[str, str], head: Mapping[str, str]) -> Iterator[str]:
    """Yield what the resolver changed beside what it was asked for."""
    for name in sorted(base.keys() - set(names)):
        if name in head:
            yield f"the resolver also changed {name}: {base[name]}, today {head[name]}"
        else:
            yield f"the resolver also installed {name} {base[name]}, which is not there today"


def _import_packages(directory: Path) -> Iterator[str]:
    """Yield the import packages that are installed in a directory."""
    seen = set()
    for distribution in importlib.metadata.distributions(path=[str(directory)]):
        for name in import_names(PurePosixPath(str(file)) for file in distribution.files or ()):
            if name not in seen and name not in _NO_PACKAGES:
                seen.add(name)
                yield name


def _homes_today(packages: Iterable[str]) -> Iterator[Path]:
    """Yield where this process would import packages from, without importing them."""
    for package in packages:
        name, *below = package.split(".")
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            continue
        for place in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
            yield Path(place, *below)


def _interpreter(python: str, project: Project) -> Path:
    """Return an interpreter's path, which may lie on the PATH or be relative to where the run was started."""
    named = Path(python).expanduser()
    found = shutil.which(python) if len(named.parts) == 1 else None
    path = Path(found) if found else project.directory / named
    if path.is_dir():
        within = path / "bin" / "python"
        hint = f"python:{within}" if within.is_file() else "the path of the program, such as python:PATH/bin/python"
        raise SideError(f"python:{python} names no interpreter: {path} is a directory; it takes {hint}")
    if not path.is_file():
        raise SideError(f"python:{python} names no interpreter: there is no {path}")
    return path.absolute()


def _ask(path: Path) -> dict[str, Any]:
    completed = run([path, "-c", _WHO], cwd=path.parent, limit_s=_ASK_LIMIT_S)
    try:
        answer: dict[str, Any] = json.loads(completed.out.splitlines()[-1])
    except (ValueError, IndexError):
        raise SideError(
            f"{path} is no Python that runs (exit code {completed.code}):\n{last_lines(completed)}"
        ) from None
    return answer
