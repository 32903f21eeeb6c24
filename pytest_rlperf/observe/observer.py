"""What a process of a side has read: the files that an audit hook notes, and the files of its modules.

Only the processes that observe a test have the hook, not those that measure: an audit hook cannot be removed, and makes
every ``id()`` six times slower, and so ``copy.deepcopy`` twice as slow.

Every process of a side imports this, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Container, Iterable, Iterator, Sequence
from types import ModuleType

from pytest_rlperf.observe.watch import Watch

# The events by which another process begins, or by which the tree's code in other languages may run.
_STARTS = frozenset(
    {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "os.exec", "pty.spawn"}
)

# The events by which functions run that neither a profiler nor a monitor sees.
_HOOKS = frozenset({"sys.addaudithook", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"})
# These search directories for modules, for metadata, and for tests. importlib gives its finder's module another name.
_LISTS = ("importlib._bootstrap", "importlib.metadata", "_frozen_importlib", "_pytest.")
# Modules that open a module to import it, or to show its lines.
_IMPORTERS = ("importlib", "_frozen_importlib", "zipimport", "_pytest.", "traceback", "warnings", "coverage.")
_OPENERS = {"pathlib", "tokenize", "linecache", "inspect", "io", "codecs", "_pyio"}  # for whoever called them
_LISTERS = {"glob", "os", "pathlib"}  # for whoever called them
_DEEPEST = 12  # frames of openers
_RECORDER = "pytest_rlperf.observe."
# By which it records in new threads, until Python has monitors.
_OF_THREADS = ("threading", "sys.setprofile") if sys.version_info < (3, 12) else ()
_OF_BENCHMARK = ("pytest_benchmark.session", "pytest_benchmark.utils", "pytest_benchmark.plugin")
"""The modules of pytest-benchmark that start a program when pytest starts, to learn about the interpreter."""


class Observer:
    """Notes which files this process and its imports open, execute or load from the start on, below ``watched`` places.

    A missing file counts too, as another side may have it. It also notes which ``changed`` files others open: libraries
    in other languages, and other processes.
    """

    def __init__(self, watched: Sequence[str], changed: Sequence[str] = ()) -> None:
        self.below = tuple(f"{os.path.realpath(home)}{os.sep}" for home in watched)
        self.changed = frozenset(changed)
        self._watch = Watch(changed)
        self._paths: set[str] = set()
        self._data: set[str] = set()
        self._children: list[str] = []
        self._hooks: list[str] = []
        _note_into(self._paths, self._data, self._children, self._hooks)

    @property
    def has_children(self) -> bool:
        """Whether this process, or the one it was copied from, has started another, which may have read anything."""
        return bool(self._children)

    @property
    def has_hooks(self) -> bool:
        """Whether something has made the interpreter call its own functions, which nothing notes."""
        return bool(self._hooks)

    @contextlib.contextmanager
    def own_fork(self) -> Iterator[None]:
        """Ignore the process that the body forks: it is not the test's child."""
        known = len(self._children)
        yield
        del self._children[known:]

    def rest(self) -> None:
        """Stop noting what others open, before the process is copied: its copies' tests open files, too."""
        self._watch.rest()

    def go_on(self) -> None:
        """Go on in a copy of a process that rests."""
        self._watch.go_on()

    @property
    def count(self) -> int:
        """How many paths have been noted by now, wherever they lie."""
        return len(self._paths)

    def files(self) -> list[str]:
        """Return the files that have been read by now."""
        return self._watched({_source_of(path) for path in (*tuple(self._paths), *_mapped_files())})

    def data(self) -> list[str]:
        """Return the modules that something other than their import has read, and may do anything with."""
        return self._watched(tuple(self._data))

    def opened(self) -> list[str]:
        """Return the changed files that have been opened by now, except by code that an event reports."""
        opened = self._watch.opened()
        known = set(map(os.path.realpath, self.files())) if opened else set()
        return sorted(file for file in opened if os.path.realpath(file) not in known)

    @property
    def unwatched(self) -> str:
        """Why it is unknown what others open, "" if it is known."""
        return self._watch.fault

    def _watched(self, files: Iterable[str]) -> list[str]:
        return sorted({place for file in files if is_below(file, self.below) for place in paths_of(file)})


def _note_into(paths: set[str], data: set[str], children: list[str], hooks: list[str]) -> None:
    """Note what the process reads from now on, and how it starts children, by an audit hook of PEP 578."""
    # Tests may replace any of these.
    add, current, decode, join, add_data = paths.add, os.getcwd, os.fsdecode, os.path.join, data.add
    text, binary, path_like, started, starts = str, bytes, os.PathLike, children.append, _STARTS

    def note(event: str, arguments: tuple[object, ...]) -> None:
        try:
            if event in ("open", "ctypes.dlopen"):
                name = arguments[0]
            elif event in ("import", "compile"):
                name = arguments[1]
            elif event in ("os.listdir", "os.scandir", "sqlite3.connect"):
                name = decode(arguments[0] or ".")  # type: ignore[arg-type]  # bytes on Python 3.10
                if event != "sqlite3.connect" and _lister().startswith(_LISTS):
                    return
                if isinstance(name, text) and name[:5] == "file:":  # a database's address
                    name = "/" + name[5:].partition("?")[0].lstrip("/")
            elif event == "exec":
                name = arguments[0].co_filename  # type: ignore[attr-defined]
            else:
                if event in _HOOKS and not _is_recorders(event):
                    hooks.append(event)
                elif event in starts and not any(_caller(depth).startswith(_OF_BENCHMARK) for depth in range(2, 16)):
                    started(event)
                return
            if isinstance(name, path_like):
                name = name.__fspath__()
            if isinstance(name, binary):
                name = decode(name)
            if isinstance(name, text) and name and name[0] != "<":
                path = name if name[0] == "/" else join(current(), name)
                add(path)
                if event == "open" and path.endswith(".py") and not _is_shown_or_imported():
                    add_data(path)
        except Exception:  # noqa: S110 - from strange paths; a raising audit hook would break what it watches
            pass

    sys.addaudithook(note)


def _caller(depth: int) -> str:
    """Return the name of the module whose frame is ``depth`` levels above, "" if there is none."""
    try:
        return str(sys._getframe(depth).f_globals.get("__name__", ""))
    except ValueError:
        return ""


def _is_recorders(event: str) -> bool:
    """Whether the recorder has set a hook, in a new thread too."""
    caller = _caller(3)
    return caller.startswith(_RECORDER) or (caller, event) == _OF_THREADS


def _lister() -> str:
    """Return the name of the module that lists a directory, whatever of Python's it does that by."""
    for depth in range(3, _DEEPEST):
        name = _caller(depth)
        if name.partition(".")[0] not in _LISTERS:
            return name
    return ""


def _is_shown_or_imported() -> bool:
    """Whether a module is opened to import it, or to show its lines; loaders also read for others."""
    for depth in range(3, _DEEPEST):
        name = _caller(depth)
        if name.startswith(("importlib", "_frozen_importlib")):
            if sys._getframe(depth - 1).f_code.co_name == "get_code":
                return True
        elif name.partition(".")[0] not in _OPENERS:
            return name.startswith(_IMPORTERS)
    return False


def _mapped_files() -> list[str]:
    """Return the files that are mapped into this process, including libraries that other libraries have loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:  # noqa: PTH123
            return sorted({line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line})
    except OSError:  # not on this system
        return []


def _source_of(path: str) -> str:
    """Return the module's file if ``path`` is that of its bytecode, else ``path``."""
    if path.startswith("/proc/self/"):  # another process for whoever reads it later
        path = os.path.realpath(path)
    directory, _, name = path.rpartition("/")
    above, _, last = directory.rpartition("/")
    return f"{above}/{name.partition('.')[0]}.py" if last == "__pycache__" else path


class LoadedFiles:
    """The files of modules that were loaded from below ``watched`` or belong to ``packages``, by the modules' names.

    Shared libraries whose file names are in ``packages`` are included, by their files. Links in the paths of
    directories are resolved. ``alike`` are modules that are known to lie elsewhere. In a copy of a process, looking at
    a module copies its memory, so each is looked at once.
    """

    def __init__(self, watched: Sequence[str], packages: Sequence[str], alike: frozenset[str] = frozenset()) -> None:
        self._homes = tuple(os.path.realpath(home) for home in watched)
        self._below = tuple(home + os.sep for home in self._homes)
        self._packages = frozenset(packages)
        self._known = frozenset(name for name in alike if not belongs_to(name, self._packages))
        self._loaded: dict[str, str] = {}
        self._has_libraries = any(".so" in name for name in packages)

    def now(self) -> dict[str, str]:
        """Return the files that are loaded by now."""
        new = _newer_than(self._known)
        if new is None:
            self._known, self._loaded, new = frozenset(), {}, list(sys.modules)
        for name, file in files_of(new):
            path = resolved(file)
            if path.startswith(self._below) or path in self._homes or belongs_to(name, self._packages):
                self._loaded[name] = path
        self._known = self._known.union(new)
        libraries = (file for file in _mapped_files() if os.path.basename(file) in self._packages)  # noqa: PTH119
        return {**self._loaded, **({file: file for file in libraries} if self._has_libraries else {})}


def _newer_than(known: frozenset[str]) -> list[str] | None:
    """Return the modules that came after ``known`` ones; None if a known one has gone.

    A known module that was put in place again is included.
    """
    new: list[str] = []
    count, others = 0, len(sys.modules) - len(known)
    for name in reversed(sys.modules):
        if name in known and count >= others:
            break
        new.append(name)
        count += name not in known
    return new[::-1] if count == others else None


def is_below(file: str, places: tuple[str, ...]) -> bool:
    """Whether a file lies below one of ``places``, or is one, by its name or without links to directories."""
    return f"{file}{os.sep}".startswith(places) or f"{resolved(file)}{os.sep}".startswith(places)


def resolved(file: str) -> str:
    """Return a file's path without links to directories, as they were at the first request."""
    directory, base = os.path.split(file)
    return os.path.join(_resolved_directory(directory), base)  # noqa: PTH118 - thousands of modules


def paths_of(file: str) -> set[str]:
    """Return a file's path without links to directories, and that of the file that it leads to if it is a link."""
    place = resolved(file)
    return {place, os.path.realpath(place)} if os.path.islink(place) else {place}  # noqa: PTH114 - thousands of files


@functools.cache
def _resolved_directory(directory: str) -> str:
    return os.path.realpath(directory)


def files_of(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the modules that have a file, without loading those that load lazily."""
    for name in names:
        module = sys.modules.get(name)
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name != "__main__":
            yield name, file


def belongs_to(name: str, packages: Container[str]) -> bool:
    """Whether a module is one of ``packages`` or lies in one."""
    while name not in packages:
        name = name.rpartition(".")[0]
        if not name:
            return False
    return True
