"""How the processes of a side are started: their virtual environment, sys.path, arguments and variables.

The virtual environments are thin: they see all packages of the running one (the parent). A thin environment holds one
``.pth`` file. It lists the parent's site-packages as plain lines, so that Python does not process the ``.pth`` files
there, and repeats the lines of those files. Its last line installs a finder, which takes the modules of today's tree
from the side's (:mod:`pytest_rlperf.sides.redirect`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shlex
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project
from pytest_rlperf.sides import redirect
from pytest_rlperf.sides.installs import is_import_line, normalized, pth_lines
from pytest_rlperf.sides.programs import changed_environment, run
from pytest_rlperf.sides.trees import Relocation, moved_variables

_LIMIT_S = 120.0
_PARENT = "rlperf_parent.pth"
_REDIRECT = "_rlperf_redirect.py"
_RUN_REDIRECT = "import importlib.util as u; s = u.spec_from_file_location('_rlperf_redirect', {path!r}); s.loader.exec_module(u.module_from_spec(s))"  # noqa: E501 - one line of a .pth file
CACHES = ("NUMBA_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR")  # of code that was compiled at run time
_CACHES_IF_SET = {"JAX_COMPILATION_CACHE_DIR"}  # without the variable, nothing is kept


# ------------------------------------------------------------------ thin virtual environments


def make_environment(
    directory: Path,
    place: Relocation | None = None,
    *,
    first: Path | None = None,
    without: Iterable[Path] = (),
    hidden: Iterable[str] = (),
) -> str:
    """Make a thin environment in ``directory`` and return its interpreter.

    The environment takes what lies in today's tree from ``place``; with None, it takes it from today's tree. Packages
    in the directory ``first`` come before all others. The environment leaves out the parent's ``.pth`` files in
    ``without``, and the modules in ``hidden``.
    """
    try:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SideError(f"cannot make a virtual environment in {directory}: {error}") from None
    lines = [] if first is None else [str(first)]
    lines += _parent_lines({pth.resolve() for pth in without}, place)
    if place is not None:  # after the parent's lines, whose hooks may put themselves first
        lines.append(_redirect(site_packages(directory), place, first, hidden))
    text = "".join(f"{line}\n" for line in lines)
    (site_packages(directory) / _PARENT).write_text(text, encoding="utf-8", errors="surrogateescape")
    return python_in(directory)


def _redirect(directory: Path, place: Relocation, built: Path | None, hidden: Iterable[str]) -> str:
    """Write the finder that takes modules from a side's tree, and return the line of a ``.pth`` file that runs it."""
    values = {
        "TOP": str(place.top),
        "TREE": str(place.tree),
        "TREES": tuple(map(str, place.trees)),
        "BUILT": "" if built is None else str(built),
    }
    text = Path(redirect.__file__).read_text(encoding="utf-8")
    for name, value in values.items():
        text = _with_value(text, name, repr(value))
    text = _with_value(text, "HIDDEN", f"frozenset({sorted(hidden)!r})")
    program = directory / _REDIRECT
    program.write_text(text, encoding="utf-8", errors="surrogateescape")
    return _RUN_REDIRECT.format(path=str(program))


def _with_value(text: str, name: str, value: str) -> str:
    """Return a program with another value for a variable that is set on its own line."""
    return re.sub(rf"(?m)^{name}\b.*$", lambda _: f"{name} = {value}", text)


def python_in(environment: Path) -> str:
    """Return the interpreter of a virtual environment."""
    return str(environment / "bin" / "python")


def site_packages(directory: Path) -> Path:
    """Return the directory of a virtual environment's own packages."""
    scheme = "venv" if "venv" in sysconfig.get_scheme_names() else "posix_prefix"
    variables = {"base": str(directory), "platbase": str(directory), "installed_base": str(directory)}
    return Path(sysconfig.get_path("purelib", scheme, variables))


def parent_sites() -> list[Path]:
    """Return the running interpreter's directories of installed packages, in search order."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [path for name in dict.fromkeys([*user, *site.getsitepackages()]) if (path := Path(name)).is_dir()]


def parent_state() -> str:
    """Return a digest of the parent's packages and paths; an environment with another digest is outdated."""
    versions = sorted(installed_versions().items())
    lines = list(_parent_lines(frozenset(), None))
    return hashlib.sha256(repr((sys.prefix, sys.version, versions, lines)).encode("utf-8", "replace")).hexdigest()


def installed_versions(directories: Iterable[Path] = ()) -> dict[str, str]:
    """Return the versions of the distributions in ``directories`` by name, or of all that imports find."""
    found = importlib.metadata.distributions(path=[*map(str, directories)] or sys.path)
    versions: dict[str, str] = {}
    for distribution in found:
        name = distribution.metadata["Name"]
        if name:  # a failed removal leaves directories without metadata
            versions.setdefault(normalized(name), distribution.version)
    return versions


def _parent_lines(without: Collection[Path], place: Relocation | None) -> Iterator[str]:
    """Yield the parent's site-packages, each followed by the additions of its ``.pth`` files, in Python's order."""
    for directory in parent_sites():
        yield str(directory)
        for pth in sorted(directory.glob("*.pth")):
            if pth.name.startswith(".") or not pth.is_file() or pth.resolve() in without:
                continue
            lines = list(pth_lines(pth))
            if any(map(is_import_line, lines)):
                yield f"import site; site.addpackage({str(directory)!r}, {pth.name!r}, None)"
            else:
                yield from (str(_at(place, directory / line)) for line in lines)


def _at(place: Relocation | None, path: Path) -> Path:
    return path if place is None else place.of(path)


# ------------------------------------------------------------------ a side's processes


def run_time_caches(directory: Path) -> Iterator[tuple[str, str]]:
    """Make a directory for each cache of what is compiled at run time; yield their variables and their paths."""
    for name in (*CACHES, *_CACHES_IF_SET & os.environ.keys()):
        (directory / name).mkdir(parents=True, exist_ok=True)
        yield name, str(directory / name)


def file_at(project: Project, place: Relocation, path: Path) -> Path:
    """Return a test file's place; a link keeps its name, which is part of the test's id."""
    if path.is_relative_to(project.rootdir):
        return place.of(project.rootdir) / path.relative_to(project.rootdir)
    return place.of(path)


def start_path(
    python: str, project: Project, place: Relocation | None, environment: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Return sys.path for an environment's workers: the start entries of today's run, moved, then its own."""
    started = [str(_at(place, Path(entry))) for entry in start_entries(project)]
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
    """Return the sys.path that an interpreter starts with, without the current directory.

    ``environment`` are changes to this process's variables.
    """
    code = "import json, sys; print(json.dumps([entry for entry in sys.path if entry]))"
    answer = run([python, "-c", code], cwd=directory, env=changed_environment(environment), limit_s=_LIMIT_S)
    try:
        return tuple(json.loads(answer.out.splitlines()[-1]))
    except (ValueError, IndexError):
        output = "\n".join((answer.err or answer.out).splitlines()[-10:])
        raise SideError(f"{python} does not start (exit code {answer.code}):\n{output}") from None


def side_args(project: Project, place: Relocation, settings: Path | None) -> tuple[str, ...]:
    """Return the run's arguments for another tree, with its paths, its root and its settings file."""
    args = list(moved_args(project.args, place))
    added = [f"--rootdir={place.of(project.rootdir)}", *([] if settings is None else ["-c", str(settings)])]
    # The last of several values counts, and arguments after "--" are not options.
    end = args.index("--") if "--" in args else len(args)
    return (*args[:end], *added, *args[end:])


def side_variables(project: Project, place: Relocation, environment: Path) -> dict[str, str | None]:
    """Return the variables of a side's workers that differ from this process's.

    Paths into today's tree lead to the side's. The side's virtual ``environment`` replaces the running one on the PATH,
    so that children started by name import from the side's tree too.
    """
    begun = project.variables
    variables = moved_variables(begun, place)
    if (value := begun.get("PYTHONPATH")) is not None:  # it may have relative entries
        entries = (place.of(project.directory / entry) for entry in value.split(os.pathsep) if entry)
        variables["PYTHONPATH"] = os.pathsep.join(map(str, entries))
    if value := begun.get("PYTEST_ADDOPTS"):
        variables["PYTEST_ADDOPTS"] = shlex.join(moved_args(shlex.split(value), place))
    if "VIRTUAL_ENV" in begun:
        variables["VIRTUAL_ENV"] = str(environment)
    places = begun.get("PATH", os.defpath).split(os.pathsep)
    if str(Path(sys.executable).parent) in places:
        moved = (variables.get("PATH") or begun.get("PATH", os.defpath)).split(os.pathsep)
        variables["PATH"] = os.pathsep.join([str(environment / "bin"), *moved])
    return variables


def moved_args(args: Iterable[str], place: Relocation) -> Iterator[str]:
    """Yield pytest's arguments, with their absolute paths as they are in another tree.

    Workers start in the counterpart of the run's own directory, so relative paths stay as they are.
    """
    for arg in args:
        option, equals, value = ("", "", arg) if arg.startswith("/") else arg.partition("=")
        path, colons, test = value.partition("::")
        yield f"{option}{equals}{place.of(Path(path))}{colons}{test}" if path.startswith("/") else arg
