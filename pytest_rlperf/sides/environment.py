"""Thin virtual environments: everything the running one has, except what is imported from today's tree.

Such an environment holds one ``.pth`` file. It names the parent's site-packages as plain lines, so that Python does
not process the ``.pth`` files in there, and repeats the lines of those that are wanted.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shlex
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides.command import run
from pytest_rlperf.sides.packages import Install, Package, in_tree, installs_from, is_import_line, normalized, pth_lines

_ASK_LIMIT_S = 60.0
_PARENT = "rlperf_parent.pth"
_LINKS = "rlperf_links"
_HIDING_MODULE = "rlperf_hiding"

# Finds packages under test as Python would if they were not installed in the parent too.
_HIDING = """\
import os, sys
from importlib.machinery import PathFinder

NAMES = {names!r}
PARENTS = {parents!r}  # each with a separator at its end


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in NAMES:
            return None
        entries = sys.path if path is None else path
        own = [entry for entry in entries if not (os.path.realpath(entry) + os.sep).startswith(PARENTS)]
        spec = PathFinder.find_spec(name, own, target)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return spec


sys.meta_path.insert(0, Finder)
"""


def make_environment(
    directory: Path,
    project: Project,
    packages: tuple[Package, ...],
    mapping: tuple[Path, Path] | None,
    *,
    built: bool,
) -> str:
    """Make a thin environment in ``directory`` and return its interpreter.

    ``mapping`` is the top of today's tree and the tree that takes its place; None leaves today's where it is. With
    ``built`` the packages under test are left out, for a build of them to be installed.
    """
    try:
        venv.EnvBuilder(symlinks=os.name == "posix", with_pip=False).create(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SideError(f"cannot make a virtual environment in {directory}: {error}") from None
    installs = installs_from(mapping[0]) if mapping is not None else ()
    copies = [package.name for package in packages if package.how == "installed"]
    lines = _hiding_lines(site_packages(directory), copies) if built and copies else []
    lines += _parent_lines(installs, mapping, built=built)
    if mapping is not None and not built:
        lines += _finder_lines(directory / _LINKS, packages, mapping)
    text = "".join(f"{line}\n" for line in lines)
    (site_packages(directory) / _PARENT).write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(directory / "bin" / "python")


def site_packages(directory: Path) -> Path:
    """Return where a virtual environment's own packages lie."""
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    variables = {"base": str(directory), "platbase": str(directory), "installed_base": str(directory)}
    return Path(sysconfig.get_path("purelib", scheme, variables))


def parent_sites() -> list[Path]:
    """Return the running interpreter's directories of installed packages, in the order it looks through them."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for name in dict.fromkeys([*user, *site.getsitepackages()]) if (path := Path(name)).is_dir()]


def parent_state() -> str:
    """Return a digest of all that a thin environment takes over: with another, one made earlier is out of date."""
    versions = sorted(installed_versions().items())
    lines = list(_parent_lines((), None, built=False))
    return hashlib.sha256(repr((sys.prefix, sys.version, versions, lines)).encode("utf-8", "replace")).hexdigest()


def installed_versions(directories: Iterable[Path] | None = None) -> dict[str, str]:
    """Return the version of every distribution by name: of those directories, else of all that imports find."""
    if directories is None:
        found = importlib.metadata.distributions()
    else:
        found = importlib.metadata.distributions(path=[str(directory) for directory in directories])
    versions: dict[str, str] = {}
    for distribution in found:
        name = distribution.metadata["Name"]
        if name:  # a removal that failed leaves directories without metadata
            versions.setdefault(normalized(name), distribution.version)
    return versions


def mapped(path: Path, mapping: tuple[Path, Path] | None) -> Path:
    """Return where a side finds what today's tree has at ``path``; what is not of that tree stays where it is."""
    if mapping is None:
        return path
    head, other = mapping
    if path.resolve().is_relative_to(other.resolve()) or not in_tree(path, head):
        return path
    return other / path.resolve().relative_to(head.resolve())


def mapped_search_path(value: str, directory: Path, mapping: tuple[Path, Path] | None) -> str:
    """Return the value of PYTHONPATH for a side, entries relative to ``directory`` made absolute."""
    return os.pathsep.join(str(mapped(directory / entry, mapping)) for entry in value.split(os.pathsep) if entry)


def start_path(
    python: str,
    project: Project,
    mapping: tuple[Path, Path] | None,
    environment: Mapping[str, str | None],
) -> tuple[str, ...]:
    """Return sys.path for the workers of an environment: what today's run was started with, mapped, then its own."""
    started = [str(mapped(Path(entry), mapping)) for entry in start_entries(project)]
    # What PYTHONPATH adds is among what today's run was started with.
    own = interpreter_path(python, {**environment, "PYTHONPATH": None}, Path(python).parent)
    return tuple(dict.fromkeys([*started, *own]))


def start_entries(project: Project) -> list[str]:
    """Return what today's run has on its path before the standard library: its start-up directory and PYTHONPATH."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    library |= {f"{Path(entry).parent / 'python'}{sys.version_info[0]}{sys.version_info[1]}.zip" for entry in library}
    entries = []
    for entry in project.path:
        if entry in library:
            break
        if entry:
            entries.append(str(project.directory / entry))
    else:
        return []  # no standard library on the path, so it is not one that an interpreter starts with
    return entries


def interpreter_path(python: str, environment: Mapping[str, str | None], directory: Path) -> tuple[str, ...]:
    """Return the sys.path that an interpreter starts with, the current directory left out.

    ``environment`` is laid over this process's.
    """
    code = "import json, sys; print(json.dumps([entry for entry in sys.path if entry]))"
    answer = run([python, "-c", code], cwd=directory, env=changed_environment(environment), limit_s=_ASK_LIMIT_S)
    try:
        return tuple(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, IndexError):
        said = "\n".join((answer.err or answer.out).splitlines()[-10:])
        raise SideError(f"{python} does not start (exit code {answer.code}):\n{said}") from None


def changed_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment with changes made to it; None removes a variable."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _parent_lines(installs: Iterable[Install], mapping: tuple[Path, Path] | None, *, built: bool) -> Iterator[str]:
    """Yield the parent's site-packages, each followed by what its ``.pth`` files add, as Python would."""
    of_the_tree = {pth.resolve() for install in installs for pth in install.pths}
    for directory in parent_sites():
        yield str(directory)
        for pth in sorted(directory.glob("*.pth")):
            if pth.name.startswith(".") or not pth.is_file():
                continue
            own = pth.resolve() in of_the_tree
            for line in pth_lines(pth):
                if not is_import_line(line):
                    if not (own and built):
                        yield str(mapped(directory / line, mapping))
                elif not own:
                    yield _as_if_in(directory, line)


def _as_if_in(directory: Path, line: str) -> str:
    """Return an import line that finds the directory of its ``.pth`` file where such lines look for it.

    Old namespace packages ask the frame that runs them for ``sitedir``.
    """
    return f"import sys; (lambda sitedir: exec({line!r}))({str(directory)!r})"


def _hiding_lines(directory: Path, names: list[str]) -> list[str]:
    """Return what hides the parent's copies of packages from an environment that may have fewer of its own."""
    parents = [f"{parent.resolve()}{os.sep}" for parent in parent_sites()]
    text = _HIDING.format(names=set(names), parents=tuple(parents))
    (directory / f"{_HIDING_MODULE}.py").write_text(text, encoding="utf-8")
    return [f"import {_HIDING_MODULE}"]


def _finder_lines(links: Path, packages: Iterable[Package], mapping: tuple[Path, Path]) -> Iterator[str]:
    """Yield what takes the place of setuptools' finders, which look after everything on the path has been tried.

    A package whose directory bears its name needs that directory's parent on the path, any other a link.
    """
    entries: list[str] = []
    for package in packages:
        if package.how != "finder":
            continue
        place = mapped(package.location, mapping)
        if package.location == _regular_place(package):
            entries.append(str(mapped(package.entry, mapping)))
        elif place.exists():
            link = links.joinpath(*package.name.split("."))
            link = link.with_name(link.name + ("" if place.is_dir() else "".join(place.suffixes)))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(place)
            entries.append(str(links))
    return iter(dict.fromkeys(entries))


def _regular_place(package: Package) -> Path:
    """Return where a package would lie if its directories bore its name."""
    place = package.entry.joinpath(*package.name.split("."))
    return place if package.location.is_dir() else place.with_name(place.name + "".join(package.location.suffixes))


# Options whose value is no path, though there may be a file of that name.
_TAKE_WORDS = {"-k", "-m", "-n", "-o", "-p", "-r", "-W"}


def side_args(project: Project, mapping: tuple[Path, Path]) -> tuple[str, ...]:
    """Return the run's arguments with what names today's tree naming the other, and its root and settings said."""
    args = list(_mapped_args(project.args, project, mapping))
    said = [f"--rootdir={mapped(project.rootdir, mapping)}"]
    if project.inipath is not None:
        said += ["-c", str(mapped(project.inipath, mapping))]
    # What comes last counts, and behind "--" nothing is an option.
    end = args.index("--") if "--" in args else len(args)
    return (*args[:end], *said, *args[end:])


def side_variables(project: Project, mapping: tuple[Path, Path], environment: Path) -> Mapping[str, str | None]:
    """Return the variables that a side's workers have unlike this process.

    ``environment`` is the side's virtual environment, which takes the place of the running one on the PATH: children
    started by name import from the same tree.
    """
    variables: dict[str, str | None] = {}
    if (value := os.environ.get("PYTHONPATH")) is not None:
        variables["PYTHONPATH"] = mapped_search_path(value, project.directory, mapping)
    if value := os.environ.get("PYTEST_ADDOPTS"):
        variables["PYTEST_ADDOPTS"] = shlex.join(_mapped_args(shlex.split(value), project, mapping))
    if "VIRTUAL_ENV" in os.environ:
        variables["VIRTUAL_ENV"] = str(environment)
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    if str(Path(sys.executable).parent) in places:
        variables["PATH"] = os.pathsep.join([str(environment / "bin"), *places])
    return variables


def _mapped_args(args: Iterable[str], project: Project, mapping: tuple[Path, Path]) -> Iterator[str]:
    before = ""
    for arg in args:
        option, equals, value = arg.partition("=")
        if arg.startswith("-") and equals:
            yield f"{option}={_mapped_value(value, project, mapping, guess=True)}"
        elif arg.startswith("-"):
            yield arg
        else:
            yield _mapped_value(arg, project, mapping, guess=before not in _TAKE_WORDS)
        before = arg


def _mapped_value(text: str, project: Project, mapping: tuple[Path, Path], *, guess: bool) -> str:
    """Return a value that may be a path, a node id or a setting; with ``guess`` a relative path counts as one.

    The workers start in the place of the directory that the run was started in. So a relative path needs mapping
    only where that directory is of no tree, or where the path leads out of the tree.
    """
    path, colons, test = text.partition("::")
    name, equals, value = path.partition("=")
    if equals and not Path(path).is_absolute():  # --override-ini=NAME=VALUE
        return f"{name}={_mapped_value(value, project, mapping, guess=False)}{colons}{test}"
    head, _ = mapping
    whole = project.directory / path
    if not path or not (Path(path).is_absolute() or (guess and whole.exists())):
        return text
    started_inside = in_tree(project.directory, head)
    if Path(path).is_absolute() or in_tree(whole, head) != started_inside:
        place = mapped(whole, mapping)
        return text if place == Path(path) else f"{place}{colons}{test}"
    return text
