"""The GitHub Actions workflows that ``rlperf init --github`` writes: what they install, run and compare with."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlperf.cli.command import print_text
from pytest_rlperf.errors import SideError
from pytest_rlperf.sides.git import repository_around
from pytest_rlperf.sides.installs import direct_url, installs_from, is_project, local_directory, normalized
from pytest_rlperf.sides.programs import read_settings
from pytest_rlperf.writing import write_whole

_WORKFLOWS = Path(".github", "workflows")
_GATE, _DEPENDENCIES = "gate.yml", "dependencies.yml"
_EFFECTS = {
    _GATE: "each pull request is compared with its base",
    _DEPENDENCIES: "weekly, new releases of dependencies are compared with the ones before",
}
_NAME = "pytest-rlperf"
_REPOSITORY = f"git+https://github.com/{_NAME}/{_NAME}"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")  # supported by this package
_PYTHON = "3.13"  # for a project that lists none: some libraries have no wheels for the newest one
_CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
_PIP_WITH_GROUPS = "'pip>=25.1'"
_BUILT_FROM = ("pyproject.toml", "setup.cfg", "setup.py")
_FOR_TESTS = ("test", "tests", "testing", "dev")  # names of extras and of dependency groups
_FILES_FOR_TESTS = ("requirements-test.txt", "requirements/test.txt")
# Files that no test reads unless a source names them: documentation, below the project's directory or the repository's,
# and GitHub's own files.
_DOCUMENTATION = r"(docs?/.+|[^/]+)\.(md|rst)|docs?/.+\.(gif|jpe?g|png|svg)"
_FIXTURE = re.compile(r"^\s*def test_\w*\([^)]*\brlperf", re.MULTILINE)
_OF_GITHUB = r"\.github/((workflows|ISSUE_TEMPLATE)/)?[^/]+\.(md|ya?ml)"


def write_workflows(
    root: Path, top: Path, output: Path, needed: Iterable[str], *, dependencies: Collection[str] | None = None
) -> None:
    """Write the workflows that do not exist yet: the gate and, unless ``dependencies`` is None, the weekly one.

    ``root`` is the project's directory, ``top`` the repository's, ``output`` the test file. ``needed`` has the
    requirements of libraries that the tests import and the project does not declare. ``dependencies`` has the names of
    the distributions whose releases are compared.
    """
    values = {**_values(root, top, output, list(needed)), "dependencies": shlex.join(dependencies or ())}
    for name in _EFFECTS if dependencies is not None else (_GATE,):
        path = Path(os.path.relpath(top / _WORKFLOWS / name))
        if path.exists() or path.is_symlink():
            print_text(f"kept {path}\n")
        elif name == _DEPENDENCIES and not dependencies:
            print_text(f"left out {path}: the project declares no dependency\n")
        else:
            write_whole(path, filled(Path(__file__).with_name(name).read_text(encoding="utf-8"), values).encode())
            print_text(f"wrote {path}: {_EFFECTS[name]}, by {values['tests']}; commit it\n")


def filled(template: str, values: Mapping[str, str]) -> str:
    """Return a workflow with values for the names after ``~``, without the lines that have an empty value."""
    name = re.compile(r"~(\w+)")
    lines = [line for line in template.splitlines(keepends=True) if all(values[each] for each in name.findall(line))]
    return name.sub(lambda found: values[found[1]], "".join(lines))


def _values(root: Path, top: Path, output: Path, needed: list[str]) -> dict[str, str]:
    """Return the value of each name in the templates for one project."""
    here = Path(os.path.relpath(root.resolve(), top)).as_posix()
    below = "" if here == "." else f"{here}/"
    project = _project(root)
    install = _install(root, below, project)
    has_torch = "torch" in re.findall(r"\w+", output.read_text(encoding="utf-8"))
    wanted = [*needed, *["torch"] * has_torch, *install.requirements]
    place = f"({re.escape(below)})?" if below else ""
    return {
        "install": shlex.join([*install.arguments, _tool("[rl]" if has_torch else ""), *dict.fromkeys(needed)]),
        "pip": _PIP_WITH_GROUPS if "--group" in install.arguments else "",
        "index": _CPU_BUILDS if "torch" in _installed_by(wanted) else "",
        "python": _python(project),
        "cached": "\n            ".join([*install.files, (_WORKFLOWS / _GATE).as_posix()]),
        "tests": shlex.join(Path(os.path.relpath(path.resolve(), top)).as_posix() for path in _measured(output)),
        "documentation": shlex.quote(f"^{place}({_DOCUMENTATION})$|^{_OF_GITHUB}$"),
    }


def _measured(output: Path) -> list[Path]:
    """Return the file of first tests, and those beside it whose tests have an rlperf fixture."""
    others = {*output.parent.glob("test_*.py"), *output.parent.glob("*_test.py")} - {output}
    return [output, *(path for path in sorted(others) if _FIXTURE.search(path.read_text("utf-8", errors="replace")))]


# --------------------------------------------------------------------------- the project


class _Install(msgspec.Struct, frozen=True):
    """How pip installs a project and what its tests need: pip's arguments, the files to read, the requirements."""

    arguments: list[str]
    files: list[str]
    requirements: list[str]


def _install(root: Path, below: str, project: Mapping[str, Any]) -> _Install:
    """Return how to install a project from the top of its repository; its files lie in the directory ``below``."""
    is_built = is_project(root)
    extras = project.get("optional-dependencies", {}) if is_built else {}
    groups = project["dependency-groups"]
    name = next((name for name in _FOR_TESTS if name in {*extras, *groups}), "")
    group, suffix = ("", f"[{name}]") if name in extras else (name, "")
    files = [*["requirements.txt"] * (not is_built), *(() if name else _FILES_FOR_TESTS)]
    files = [file for file in files if (root / file).is_file()]
    arguments = ["-e", f"./{below}".rstrip("/") + suffix] if is_built else []
    arguments += ["--group", f"{below}pyproject.toml:{group}" if below else group] if group else []
    arguments += [word for file in files for word in ("-r", below + file)]
    manifests = [file for file in _BUILT_FROM if (is_built or group) and (root / file).is_file()]
    lines = (line for file in files for line in (root / file).read_text("utf-8", errors="replace").splitlines())
    stated = [*project.get("dependencies", []), *extras.get(name, []), *groups.get(group, []), *lines]
    cached = [below + file for file in (*manifests, *files)]
    return _Install(arguments, cached, [project.get("name", "") + suffix, *stated])


def _project(root: Path) -> dict[str, Any]:
    """Return a project's table in pyproject.toml, or else its installed metadata, and its dependency groups."""
    settings = read_settings(root)
    groups = {"dependency-groups": settings.get("dependency-groups", {})}
    if "project" in settings:
        return {**settings["project"], **groups}
    for install in installs_from(root.resolve()):
        if install.project_dir == root.resolve():
            found = distribution(install.name).metadata
            return {
                "name": install.name,
                "requires-python": "".join(found.get_all("Requires-Python", [])),
                "classifiers": found.get_all("Classifier", []),
                "optional-dependencies": {extra: [] for extra in found.get_all("Provides-Extra", [])},
                **groups,
            }
    return groups


def _installed_by(requirements: Iterable[object]) -> set[str]:
    """Return the names of what pip installs for requirements, by the metadata of installed distributions."""
    from packaging.requirements import InvalidRequirement, Requirement

    waiting = [(each, {""}) for each in requirements if isinstance(each, str)]  # a table names a group within a group
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        text, extras = waiting.pop()
        with suppress(InvalidRequirement, PackageNotFoundError):  # a pip option, a path; it is not installed
            wanted = Requirement(text.partition(" #")[0].strip())
            key = normalized(wanted.name), frozenset(wanted.extras)
            if key not in seen and any(
                wanted.marker is None or wanted.marker.evaluate({"extra": each}) for each in extras
            ):
                seen.add(key)
                waiting += [(each, wanted.extras or {""}) for each in distribution(wanted.name).requires or ()]
    return {name for name, _ in seen}


def _python(project: Mapping[str, Any]) -> str:
    """Return the newest Python that a project and this package support."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    listed = re.findall(r"Python :: (3\.\d+)$", "\n".join(project.get("classifiers") or ()), re.MULTILINE)
    wanted = project.get("requires-python") or ""
    if not listed and not wanted:
        return _PYTHON
    try:
        allowed = SpecifierSet(wanted)
    except InvalidSpecifier:  # pip refuses it
        return _PYTHON
    found = [each for each in PYTHONS if allowed.contains(f"{each}.99")]  # the newest patch, which GitHub has
    here = ".".join(map(str, sys.version_info[:2]))  # the tests have passed with it
    unlisted = _PYTHON if _PYTHON in found else found[-1] if found else here
    return max((each for each in found if each in listed), key=PYTHONS.index, default=unlisted)


# --------------------------------------------------------------------------- this package


def _tool(extra: str) -> str:
    """Return this package's requirement, in the version that writes the workflow."""
    own = distribution(_NAME)
    origin = direct_url(own)
    if not origin and "+" not in own.version:  # it is from an index; no index takes a local version
        return f"{_NAME}{extra}=={own.version}"
    in_version = re.search(r"\+g([0-9a-f]{7,40})\b", own.version)  # of a build from a clone
    commit = (
        origin.get("vcs_info", {}).get("commit_id") or _head(local_directory(own)) or (in_version and in_version[1])
    )
    return f"{_NAME}{extra} @ {_REPOSITORY}@{commit or f'v{own.version}'}"


def _head(clone: Path | None) -> str:
    """Return the checked-out commit of a clone, "" for another directory."""
    with suppress(SideError):  # git refuses to read it
        repository = None if clone is None else repository_around(clone)
        if repository is not None and repository.top == clone:
            return repository.head
    return ""
