"""What the processes of a side have read: noted in them by an audit hook, compared in the run.

The hook is in the processes that observe a test, and in no process that measures one: an audit hook cannot be taken off
again, and makes every ``id()`` six times slower, and with it ``copy.deepcopy`` twice.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.sides.trees import SETTINGS, same

_OF_TOOLS = {".git", "__pycache__", ".pytest_cache", ".hypothesis", ".benchmarks"}
_COMPILED = re.compile(r"\.(so|pyd|dylib|dll)(\.\d+)*$")

# The events by which another process begins, or code of the tree that is no Python's may be run.
_STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn"}
)

_LISTS = ("importlib.", "_frozen_importlib", "_pytest.")  # what looks through directories for modules and for tests
_OF_BENCHMARK = ("pytest_benchmark.session", "pytest_benchmark.utils", "pytest_benchmark.plugin")
"""What pytest-benchmark does when pytest starts: it has a program look at the interpreter."""

# --------------------------------------------------------------------------- in a process of a side


class Observer:
    """Notes which files this process and its imports open, execute or load from the start on, below ``watched`` places.

    A file that is not there counts too, for another side may have it.
    """

    def __init__(self, watched: Sequence[str]) -> None:
        self._below = tuple(f"{os.path.realpath(home)}{os.sep}" for home in watched)
        self._paths: set[str] = set()
        self._children: list[str] = []
        _note_into(self._paths, self._children)

    @property
    def has_children(self) -> bool:
        """Whether this process, or one that it is a copy of, has started another one, which may have read anything."""
        return bool(self._children)

    @contextlib.contextmanager
    def own_fork(self) -> Iterator[None]:
        """Take no note of the process that the body forks: it is no child of the test's."""
        known = len(self._children)
        yield
        del self._children[known:]

    @property
    def count(self) -> int:
        """How many paths have been noted by now, wherever they lie."""
        return len(self._paths)

    def files(self) -> list[str]:
        """Return the files that have been read by now."""
        files = {_source_of(path) for path in (*tuple(self._paths), *_mapped_files())}
        return sorted(file for file in files if file.startswith(self._below) or resolved(file).startswith(self._below))


def _note_into(paths: set[str], children: list[str]) -> None:
    """Note what the process reads from now on, and how it starts children, by an audit hook of PEP 578."""
    # Tests may replace any of these.
    add, current, decode, join = paths.add, os.getcwd, os.fsdecode, os.path.join
    text, binary, path_like, started, starts = str, bytes, os.PathLike, children.append, _STARTS

    def note(event: str, arguments: tuple[object, ...]) -> None:
        try:
            if event in ("open", "ctypes.dlopen"):
                name = arguments[0]
            elif event in ("import", "compile"):
                name = arguments[1]
            elif event in ("os.listdir", "os.scandir", "sqlite3.connect"):
                name = arguments[0] or "."
                if event != "sqlite3.connect" and _caller(2).startswith(_LISTS):
                    return
            elif event == "exec":
                name = arguments[0].co_filename  # type: ignore[attr-defined]
            else:
                if event in starts and not any(_caller(depth).startswith(_OF_BENCHMARK) for depth in range(2, 16)):
                    started(event)
                return
            if isinstance(name, path_like):
                name = name.__fspath__()
            if isinstance(name, binary):
                name = decode(name)
            if isinstance(name, text) and name and name[0] != "<":
                add(name if name[0] == "/" else join(current(), name))
        except Exception:  # noqa: S110 - of strangers' paths; an audit hook that raises would break off what it looks at
            pass

    sys.addaudithook(note)


class ImportWatch:
    """Notes, in the run's own process, which packages from elsewhere read files of the tree while they are imported.

    Each side has to import these for itself: a process that imports them for both sides would read the user's tree.
    """

    def __init__(self, top: Path) -> None:
        self.packages: set[str] = set()
        self._below = f"{top}{os.sep}"
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str):
            return
        try:
            path = os.path.join(os.getcwd(), arguments[0])  # noqa: PTH109, PTH118 - at every file that is opened
            if not path.startswith(self._below) or not os.path.exists(path):  # noqa: PTH110
                return
            frame = sys._getframe(1)
            while frame.f_back is not None and frame.f_code.co_name != "<module>":
                frame = frame.f_back
            name = str(frame.f_globals.get("__name__", "__main__")).partition(".")[0]
            if name != "__main__" and not frame.f_code.co_filename.startswith(self._below):
                self.packages.add(name)
        except Exception:  # noqa: S110 - an audit hook that raises would break off what it looks at
            pass


def _caller(depth: int) -> str:
    """Return the name of the module that has called a function so many levels above, empty where there is none."""
    try:
        return str(sys._getframe(depth).f_globals.get("__name__", ""))
    except ValueError:
        return ""


def _mapped_files() -> list[str]:
    """Return the files that are mapped into this process: libraries that other libraries have loaded are among them."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
            return sorted({line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line})
    except OSError:  # not on this system
        return []


def _source_of(path: str) -> str:
    """Return the module's file where ``path`` is that of its bytecode, which follows from it."""
    if path.startswith("/proc/self/"):  # which is another process to whoever reads it later
        path = os.path.realpath(path)
    directory, _, name = path.rpartition("/")
    above, _, last = directory.rpartition("/")
    return f"{above}/{name.partition('.')[0]}.py" if last == "__pycache__" else path


def loaded_files(watched: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """Return the file of every module that was loaded from below ``watched`` or belongs to ``packages``, by name.

    Links in the paths of directories are resolved.
    """
    homes = tuple(os.path.realpath(home) for home in watched)
    below = tuple(home + os.sep for home in homes)
    loaded = {}
    for name, file in _modules():
        path = resolved(file)
        if path.startswith(below) or path in homes or belongs_to(name, packages):
            loaded[name] = path
    return loaded


def resolved(file: str) -> str:
    """Return a file's path without links to directories, as they were when first asked for."""
    directory, base = os.path.split(file)
    return os.path.join(_resolved_directory(directory), base)  # noqa: PTH118 - thousands of modules


@functools.cache
def _resolved_directory(directory: str) -> str:
    return os.path.realpath(directory)


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the modules that have a file, without loading those that load lazily."""
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name != "__main__":
            yield name, file


def belongs_to(name: str, packages: Iterable[str]) -> bool:
    """Whether a module is one of ``packages`` or lies in one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# --------------------------------------------------------------------------- in the run


def digests(files: Iterable[str]) -> dict[str, str]:
    """Return the digests of files' contents, empty for those that cannot be read."""
    found = {}
    for file in files:
        try:
            found[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            found[file] = ""
    return found


class NothingLoadedError(SideError):
    """A test has loaded nothing of the packages that differ, which is true of this test and says nothing of others."""


@dataclass(frozen=True)
class Reads:
    """The files of the sides' own places that a test's processes have read, and those of them that differ.

    ``compiled`` are equal ones that were compiled of sources which may differ, ``missing`` are those that the user's
    tree has and neither side.
    """

    files: frozenset[str] = frozenset()
    differing: frozenset[str] = frozenset()
    compiled: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    def __or__(self, other: Reads) -> Reads:
        """Return what either has read."""
        names = (field.name for field in fields(self))
        return Reads(*(getattr(self, name) | getattr(other, name) for name in names))


def check_loaded(sides: Sides, base: Mapping[str, str], head: Mapping[str, str]) -> None:
    """Check the files of the modules that both sides have loaded, by name; SideError where one is another side's.

    NothingLoadedError where base has loaded none of the packages that it has for itself.
    """
    for side, loaded in ((sides.base, base), (sides.head, head)):
        for name, path in loaded.items():
            _check_place(sides, side, path, f"{name} is {path}")
    if sides.packages and not any(_home_of(sides.base, path) == 0 for path in base.values()):
        raise NothingLoadedError(
            f"the test loads no module of {', '.join(sides.packages)} on {sides.base.label}: choose a test that "
            "imports what differs between the sides"
        )


def compare_reads(sides: Sides, base: Collection[str], head: Collection[str]) -> Reads:
    """Return what processes of both sides have read of their own files; SideError where one has read another's.

    A file is one of both sides by its name: whichever side has read it, its contents are compared.
    """
    found: dict[str, set[str]] = {field.name: set() for field in fields(Reads)}
    for side, named in ((sides.base, base), (sides.head, head)):
        # A link and the file that it leads to are both read.
        places_read = {os.path.realpath(path): path for path in sorted(named)} | {path: path for path in named}
        for path, found_as in places_read.items():
            home = _home_of(side, path)
            if home is None:
                _check_place(sides, side, path, found_as)
                continue
            name = path[len(str(side.homes[home])) + 1 :]
            places = [f"{each.homes[home]}{os.sep}{name}" for each in (sides.base, sides.head)]
            if any(map(os.path.lexists, places)):
                found["files"].add(name)
                if not _is_same(*places):
                    found["differing"].add(name)
                elif sides.compiled and _COMPILED.search(name):
                    found["compiled"].add(name)
            elif sides.top is not None and (sides.top / name).is_file():
                found["missing"].add(name)
    return Reads(**{kind: frozenset(names) for kind, names in found.items()})


def _check_place(sides: Sides, side: Side, path: str, found: str) -> None:
    """Raise SideError where a path that a side has read lies in the other side's places, or the user's own tree."""
    if _home_of(side, path) is not None:
        return
    real = resolved(path)
    if _home_of(side, real) is not None:
        return
    other = sides.head if side is sides.base else sides.base
    theirs = _home_of(other, real)
    if theirs is not None:
        found = found.replace(path, real[len(str(other.homes[theirs])) + 1 :])
        raise SideError(
            f"{side.label} has read a file of {other.label}: {found}; "
            "something puts that directory on the path or hooks imports after Python has started"
        )
    if sides.top is None or not real.startswith(f"{sides.top}{os.sep}"):
        return
    name = real[len(str(sides.top)) + 1 :]
    if any(side.tree is not None and os.path.lexists(side.tree / name) for side in (sides.base, sides.head)):
        raise SideError(
            f"{side.label} has read a file of your own tree in the place of its copy: {found}; something has the path "
            "of your tree in it, such as a file of settings or a cache: name the file by its place beside the code"
        )


def _home_of(side: Side, path: str) -> int | None:
    """Return which of a side's homes a path lies in, None where it is in none."""
    within = (f"{path}{os.sep}".startswith(f"{home}{os.sep}") for home in side.homes)
    return next((index for index, is_there in enumerate(within) if is_there), None)


@functools.cache
def _is_same(one: str, other: str) -> bool:
    """Whether two files are equal, once a run: for the copies do not change but by its processes."""
    if os.path.isdir(one) and os.path.isdir(other):  # noqa: PTH112
        return _listed(one) == _listed(other)
    return same(Path(one), Path(other))


def _listed(directory: str) -> set[str]:
    """Return the names in a directory, less those that runs and tools put there."""
    return {name for name in os.listdir(directory) if name not in _OF_TOOLS and not name.startswith(SETTINGS)}  # noqa: PTH208
