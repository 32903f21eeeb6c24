"""How the processes of another side are started: their virtual environment, sys.path, arguments and variables.

The virtual environments are thin: they see all packages of the running one (the parent), except those that it imports
from today's tree. Such an environment holds one ``.pth`` file. It lists the parent's site-packages as plain lines, so
that Python does not process the ``.pth`` files in there, and repeats the wanted lines of those files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import PROTOCOL, OnStep, Project, Sides
from pytest_rlperf.sides.cache import Cache
from pytest_rlperf.sides.packages import (
    Install,
    Package,
    import_packages,
    in_tree,
    installs_from,
    is_import_line,
    normalized,
    packages_under_test,
    pth_lines,
)
from pytest_rlperf.sides.programs import changed_environment, last_lines, run, run_pip

_LIMIT_S = 120.0
_PARENT = "rlperf_parent.pth"
_HIDDEN = "rlperf_hidden.pth"


# ------------------------------------------------------------------ paths in another tree


def mapped(path: Path, mapping: tuple[Path, Path] | None) -> Path:
    """Return the place on a side of ``path`` in today's tree; a path outside today's tree stays as it is.

    ``mapping`` is the top of today's tree and of the tree that replaces it; None leaves today's where it is.
    """
    if mapping is None or not in_tree(path, mapping[0]):
        return path
    return mapping[1] / path.resolve().relative_to(mapping[0].resolve())


# ------------------------------------------------------------------ thin virtual environments


def make_environment(
    directory: Path, packages: tuple[Package, ...], mapping: tuple[Path, Path] | None, *, built: bool
) -> str:
    """Make a thin environment in ``directory`` and return its interpreter.

    With ``built`` the packages under test are left out, for builds of them to be installed.
    """
    try:
        venv.EnvBuilder(symlinks=os.name == "posix", with_pip=False).create(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SideError(f"cannot make a virtual environment in {directory}: {error}") from None
    installs = installs_from(mapping[0]) if mapping is not None else ()
    lines = list(_parent_lines(installs, mapping, built=built))
    if not built:  # in the place of setuptools' finders, which come after all entries of sys.path
        installed = (package for package in packages if package.distribution is not None)
        lines += dict.fromkeys(str(mapped(package.entry, mapping)) for package in installed)
    text = "".join(f"{line}\n" for line in lines)
    (site_packages(directory) / _PARENT).write_text(text, encoding="utf-8", errors="surrogateescape")
    return python_in(directory)


def python_in(environment: Path) -> str:
    """Return the interpreter of a virtual environment."""
    return str(environment / "bin" / "python")


def site_packages(directory: Path) -> Path:
    """Return the directory of a virtual environment's own packages."""
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    variables = {"base": str(directory), "platbase": str(directory), "installed_base": str(directory)}
    return Path(sysconfig.get_path("purelib", scheme, variables))


def parent_sites() -> list[Path]:
    """Return the running interpreter's directories of installed packages, in the order of its search."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for name in dict.fromkeys([*user, *site.getsitepackages()]) if (path := Path(name)).is_dir()]


def parent_state() -> str:
    """Return a digest of the parent's packages and paths: with another digest, an earlier environment is outdated."""
    versions = sorted(installed_versions().items())
    lines = list(_parent_lines((), None, built=False))
    return hashlib.sha256(repr((sys.prefix, sys.version, versions, lines)).encode("utf-8", "replace")).hexdigest()


def installed_versions(directories: Iterable[Path] = ()) -> dict[str, str]:
    """Return the version of every distribution in ``directories`` by name; without them, of all that imports find."""
    found = importlib.metadata.distributions(path=[*map(str, directories)] or sys.path)
    versions: dict[str, str] = {}
    for distribution in found:
        name = distribution.metadata["Name"]
        if name:  # a removal that failed leaves directories without metadata
            versions.setdefault(normalized(name), distribution.version)
    return versions


def _parent_lines(installs: Iterable[Install], mapping: tuple[Path, Path] | None, *, built: bool) -> Iterator[str]:
    """Yield the parent's site-packages, each followed by the additions of its ``.pth`` files, in Python's order."""
    of_the_tree = {pth.resolve() for install in installs for pth in install.pths}
    for directory in parent_sites():
        yield str(directory)
        for pth in sorted(directory.glob("*.pth")):
            if pth.name.startswith(".") or not pth.is_file():
                continue
            own = pth.resolve() in of_the_tree
            lines = list(pth_lines(pth))
            if not own and any(map(is_import_line, lines)):
                yield f"import site; site.addpackage({str(directory)!r}, {pth.name!r}, None)"
            elif not (own and built):
                yield from (str(mapped(directory / line, mapping)) for line in lines if not is_import_line(line))


def hide(environment: Path, names: Iterable[str]) -> None:
    """Have packages that the parent has, and that a built environment lacks, not be found there."""
    lines = (f"import sys; sys.modules[{name!r}] = None\n" for name in names)
    (site_packages(environment) / _HIDDEN).write_text("".join(lines), encoding="utf-8")


# ------------------------------------------------------------------ sys.path


def start_path(
    python: str,
    project: Project,
    mapping: tuple[Path, Path] | None,
    environment: Mapping[str, str | None],
) -> tuple[str, ...]:
    """Return sys.path for the workers of an environment: the start entries of today's run, mapped, then its own."""
    started = [str(mapped(Path(entry), mapping)) for entry in start_entries(project)]
    # The start entries include those of PYTHONPATH.
    own = interpreter_path(python, {**environment, "PYTHONPATH": None}, Path(python).parent)
    return tuple(dict.fromkeys([*started, *own]))


def start_entries(project: Project) -> list[str]:
    """Return the entries before the standard library on today's path: the start-up directory and PYTHONPATH."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    library |= {f"{Path(entry).parent / 'python'}{sys.version_info[0]}{sys.version_info[1]}.zip" for entry in library}
    before = takewhile(lambda entry: entry not in library, project.path)
    return [str(project.directory / entry) for entry in before if entry]


def interpreter_path(python: str, environment: Mapping[str, str | None], directory: Path) -> tuple[str, ...]:
    """Return the sys.path that an interpreter starts with, less the current directory.

    ``environment`` are changes to this process's variables.
    """
    code = "import json, sys; print(json.dumps([entry for entry in sys.path if entry]))"
    answer = run([python, "-c", code], cwd=directory, env=changed_environment(environment), limit_s=_LIMIT_S)
    try:
        return tuple(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, IndexError):
        output = "\n".join((answer.err or answer.out).splitlines()[-10:])
        raise SideError(f"{python} does not start (exit code {answer.code}):\n{output}") from None


# ------------------------------------------------------------------ arguments and variables


def side_args(project: Project, mapping: tuple[Path, Path]) -> tuple[str, ...]:
    """Return the run's arguments for another tree: with its paths, its root and its settings file."""
    args = list(mapped_args(project.args, mapping))
    added = [f"--rootdir={mapped(project.rootdir, mapping)}"]
    if project.inipath is not None:
        added += ["-c", str(mapped(project.inipath, mapping))]
    # The last of several values counts, and no argument after "--" is an option.
    end = args.index("--") if "--" in args else len(args)
    return (*args[:end], *added, *args[end:])


def side_variables(project: Project, mapping: tuple[Path, Path], environment: Path) -> Mapping[str, str | None]:
    """Return the variables of a side's workers that differ from this process's.

    ``environment`` is the side's virtual environment. It replaces the running one on the PATH, so that children started
    by name import from the side's tree too.
    """
    variables: dict[str, str | None] = {}
    if (value := os.environ.get("PYTHONPATH")) is not None:
        entries = (mapped(project.directory / entry, mapping) for entry in value.split(os.pathsep) if entry)
        variables["PYTHONPATH"] = os.pathsep.join(map(str, entries))
    if value := os.environ.get("PYTEST_ADDOPTS"):
        variables["PYTEST_ADDOPTS"] = shlex.join(mapped_args(shlex.split(value), mapping))
    if "VIRTUAL_ENV" in os.environ:
        variables["VIRTUAL_ENV"] = str(environment)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if str(Path(sys.executable).parent) in places:
        variables["PATH"] = os.pathsep.join([str(environment / "bin"), *places])
    return variables


def mapped_args(args: Iterable[str], mapping: tuple[Path, Path]) -> Iterator[str]:
    """Yield arguments of pytest, with the absolute paths among them and their values as they are in another tree.

    Workers start in the counterpart of the run's own directory, so relative paths stay as they are.
    """
    for arg in args:
        option, equals, value = ("", "", arg) if arg.startswith("/") else arg.partition("=")
        path, colons, test = value.partition("::")
        yield f"{option}{equals}{mapped(Path(path), mapping)}{colons}{test}" if path.startswith("/") else arg


# --------------------------------------------------------------------------- pip: and python:


_ENVIRONMENT = "environment"

# Run in another interpreter: reports its version, and whether workers of this version can run in it.
_PROBE = """
import json, platform, sys
sys.path[:] = [entry for entry in sys.path if entry]
answer = {"name": platform.python_implementation(), "version": platform.python_version(), "prefix": sys.prefix}
try:
    import pytest
    import pytest_rlperf.workers.session
    from pytest_rlperf.model import sides
    answer["protocol"] = getattr(sides, "PROTOCOL", 0)
except Exception as error:
    answer["lacks"] = f"{type(error).__name__}: {error}"
print(json.dumps(answer))
"""


def pip_sides(requirements: tuple[str, ...], project: Project, top: Path, cache: Cache, on_step: OnStep) -> Sides:
    """Return today's tree with other versions of its dependencies, in an environment of its own, beside itself."""
    wanted = [Requirement(text) for text in requirements]
    listed = ", ".join(requirements)

    def install(directory: Path) -> None:
        on_step(f"installing {listed}, for this comparison alone")
        python = make_environment(directory / _ENVIRONMENT, (), None, built=False)
        completed = run_pip(python, ["install", *map(str, wanted)], f"install {listed}")
        if completed.code:
            raise SideError(f"pip cannot install {listed}:\n{last_lines(completed)}")

    key = " ".join(["pip", *sorted(map(str, wanted)), parent_state()])
    environment = cache.entry(key, install, on_step) / _ENVIRONMENT
    own = site_packages(environment)
    base, head = installed_versions([own]), installed_versions()
    base = {name: version for name, version in base.items() if head.get(name) != version}
    names = [normalized(requirement.name) for requirement in wanted]
    if not base:
        raise SideError(
            f"installing {listed} changes nothing here ({_label(names, head)}): both sides would be the same. Name "
            "another version"
        )
    packages = tuple(import_packages(own))
    python = python_in(environment)
    variables = side_variables(project, (top, top), environment)
    path = start_path(python, project, None, variables)
    side = project.side(_label(names, {**head, **base}), python, path, (own,))
    homes = tuple(_homes_today(packages))
    others = [f"{name}: {base[name]}, today {head.get(name, 'none')}" for name in sorted(base.keys() - set(names))]
    return Sides(
        base=replace(side, environment=variables),
        head=project.side(_label(names, head), sys.executable, _own_path(project), homes),
        packages=packages,
        changed=None,
        notes=(f"the resolver also changed {'; '.join(others)}",) if others else (),
    )


def python_sides(python: str, project: Project, top: Path, on_step: OnStep) -> Sides:
    """Return today's tree in another interpreter, which must have pytest and this plugin, beside it in this one."""
    path = (project.directory / (shutil.which(python) or python)).absolute()
    if not path.is_file():
        raise SideError(f"python:{python} names no interpreter: there is no file {path}; name python:PATH/bin/python")
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
    # Each environment has its own copy of a package that is not editable, and the copies may differ.
    found = packages_under_test(project, top)
    copies = [package.name for package in found if package.how == "installed"]
    own = interpreter_path(str(path), {"PYTHONPATH": None}, path.parent)
    theirs = tuple(dict.fromkeys([*start_entries(project), *own]))
    here = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    return Sides(
        base=project.side(f"{other['name']} {other['version']} ({path})", str(path), theirs, (top,)),
        head=project.side(here, sys.executable, _own_path(project), (top,)),
        packages=tuple(package.name for package in found if package.how != "installed"),
        changed=None,
        notes=(f"{', '.join(copies)}: copies in both environments, which may differ",) if copies else (),
    )


def _own_path(project: Project) -> tuple[str, ...]:
    return tuple(entry for entry in project.path if entry)


def _label(names: Iterable[str], versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" if name in versions else f"no {name}" for name in names)


def _homes_today(packages: Iterable[str]) -> Iterator[Path]:
    """Yield the places that this process would import packages from, without importing them."""
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


def _probe(path: Path) -> dict[str, Any]:
    """Return the report of an interpreter on itself."""
    completed = run([path, "-c", _PROBE], cwd=path.parent, limit_s=_LIMIT_S)
    try:
        answer: dict[str, Any] = json.loads(completed.out.splitlines()[-1])
    except (ValueError, IndexError):
        raise SideError(
            f"{path} does not run as a Python interpreter (exit code {completed.code}):\n{last_lines(completed)}"
        ) from None
    return answer
