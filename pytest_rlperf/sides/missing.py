"""Packages that the build of a side declares and this environment lacks, installed for that side alone."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Additions, OnStep
from pytest_rlperf.scratch import temporary_directory
from pytest_rlperf.sides.build import last_lines, needs_isolation, read_settings, run_pip
from pytest_rlperf.sides.cache import Cache
from pytest_rlperf.sides.environment import (
    installed_versions,
    make_environment,
    parent_state,
    site_packages,
)
from pytest_rlperf.sides.packages import is_project, normalized

_ENVIRONMENT = "environment"
_BUILD_FILES = {"pyproject.toml", "setup.cfg", "setup.py"}
_PATIENCE = ("--retries", "1", "--timeout", "10")  # without a network a comparison goes on without the packages


def may_declare_others(changed: Iterable[str]) -> bool:
    """Whether any of the files by which a tree differs from today's may declare dependencies."""
    names = (PurePosixPath(name).name for name in changed)
    return any(name in _BUILD_FILES or "requirements" in name for name in names)


def declared(project_dirs: Iterable[Path]) -> list[str]:
    """Return the dependencies that projects declare, by their builds where pyproject.toml has no list of them."""
    found: list[str] = []
    for project_dir in project_dirs:
        if is_project(project_dir):
            listed = _listed(project_dir)
            found += _built(project_dir) if listed is None else listed
    return found


def lacking(texts: Iterable[str], own: Collection[str]) -> list[Requirement]:
    """Return the requirements that are not installed here in any version, less those of the names in ``own``.

    Texts that are no requirements are left out: a build of them fails.
    """
    present = {*installed_versions(), *map(normalized, own)}
    found: dict[str, Requirement] = {}
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_wanted and normalized(requirement.name) not in present:
            found.setdefault(normalized(requirement.name), requirement)
    return list(found.values())


def install_missing(wanted: list[Requirement], cache: Cache, on_step: OnStep) -> tuple[Path | None, Additions]:
    """Return a directory with the packages, and those that they need, and what it adds to this environment.

    Nothing that is installed here is among them in another version. The directory is None where pip fails.
    """
    listed = ", ".join(sorted(map(str, wanted)))

    def build(directory: Path) -> None:
        on_step(f"installing {listed}, for one side alone")
        python = make_environment(directory / _ENVIRONMENT, (), None, built=False)
        pins = directory / "installed.txt"
        pins.write_text("\n".join(_pins()), encoding="utf-8")
        completed = run_pip(
            python,
            ["install", *_PATIENCE, "--constraint", str(pins), *sorted(map(str, wanted))],
            f"install {listed}",
        )
        if completed.code:
            raise SideError(last_lines(completed).splitlines()[-1])

    try:
        environment = cache.entry(f"missing\0{listed}\0{parent_state()}", build, on_step) / _ENVIRONMENT
    except SideError as error:
        return None, Additions((), tuple(requirement.name for requirement in wanted), str(error))
    place = site_packages(environment)
    added = sorted(installed_versions([place]).items())
    return place, Additions(tuple(f"{name} {version}" for name, version in added))


def _pins() -> Iterator[str]:
    for name, version in sorted(installed_versions().items()):
        try:
            yield f"{name}=={Version(version)}"
        except InvalidVersion:  # pip would refuse the whole file
            continue


def _listed(project_dir: Path) -> list[str] | None:
    """Return the dependencies listed in pyproject.toml; None where the build decides about them."""
    project = read_settings(project_dir).get("project")
    if not isinstance(project, dict) or "dependencies" in project.get("dynamic", []):
        return None
    return [str(text) for text in project.get("dependencies", [])]


def _built(project_dir: Path) -> list[str]:
    """Return the dependencies in the metadata that a project's build makes; none where it makes none."""
    with temporary_directory() as directory:
        copied, report = directory / "project", directory / "report.json"
        shutil.copytree(project_dir, copied, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", str(report), *_PATIENCE]
        isolation = [] if needs_isolation(sys.executable, [copied]) else ["--no-build-isolation"]
        try:
            run_pip(sys.executable, ["install", *options, *isolation, str(copied)], "read the metadata of a project")
            (project,) = json.loads(report.read_text(encoding="utf-8"))["install"]
            return list(map(str, project["metadata"].get("requires_dist", [])))
        except (SideError, OSError, ValueError, KeyError, TypeError):
            return []
