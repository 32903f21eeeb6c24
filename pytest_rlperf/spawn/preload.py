"""The program of a preload server: a process that imports what both sides load alike, and from then on only forks.

For each pair it forks a driver, which stirs its heap and forks the pair's two templates. So both sides of a pair share
their memory's layout, and different pairs do not. Nothing that was imported is ever called here: a thread pool or a
device that had begun to work would not survive the forks.

``python -c`` runs this file's text, so that this process's ``__main__``, which tests' processes would import, is not a
file. The text imports only the standard library, and belongs to neither side.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.machinery
import json
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from socket import recv_fds, socket, socketpair
from typing import Any

KEY = "PYTEST_RLPERF_SERVER"  # holds the number of the connection's descriptor
OUTPUT = "PYTEST_RLPERF_SERVER_OUTPUT"  # holds the path of the file for what imports print
_SESSION, _DRIVER = "pytest_rlperf.worker.session", "pytest_rlperf.pair.driver"
GUARDIAN = "PYTEST_RLPERF_GUARDIAN"  # holds the number of the descriptor on which the run's guardian listens
_pipe: int  # to the guardian
_connection: Connection  # with the run
_usual_threshold: tuple[int, int, int]  # of the garbage collector
_terminal: tuple[int, int]  # the descriptors of the run's own output, for the template that writes there

# CPython takes objects of up to _SMALL_MOST bytes from pools of _POOL bytes, each for objects of one size.
_SMALL_MOST, _POOL = 512, 16384
_LARGE, _LARGE_MOST = 32, 32768  # larger objects that vary_heap makes; the C library takes them from the heap


def vary_heap() -> list[object]:
    """Return objects for a process to keep, so that its later objects lie elsewhere in memory than another's.

    Small objects share pools by their sizes: a random number of each size moves the next ones within their pools. Large
    objects that are freed leave holes of random sizes. Otherwise the places of objects within a page would be the same
    in all pairs: one layout for all of them is a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong
    data without doing anything obviously wrong!", ASPLOS 2009)
    """
    draw = random.SystemRandom().randrange
    shortest: dict[int, type] = {16: object, 32: complex}  # no bytes object takes as little; one byte is shared
    kept: list[object] = []
    for size in range(16, _SMALL_MOST + 1, 16):
        make = shortest.get(size, functools.partial(bytes, size - sys.getsizeof(b"")))
        kept += [make() for _ in range(draw(_POOL // size))]
    large = [bytes(draw(_SMALL_MOST, _LARGE_MOST)) for _ in range(_LARGE)]
    return [*kept, *large[::2]]


class Refusal:
    """A finder that refuses the modules that each side has for itself, and notes which were wanted.

    These modules belong to ``packages``, or their files lie below ``top`` and not in a place ``outside_tree``.
    """

    def __init__(self, packages: Iterable[str], top: str, outside_tree: Iterable[str]) -> None:
        self.packages = set(packages)
        self.wanted: set[str] = set()
        self._top = top.rstrip(os.sep) + os.sep
        self._outside_tree = tuple(place.rstrip(os.sep) + os.sep for place in outside_tree)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """Return where the other finders find a module; ModuleNotFoundError if each side has to load its own."""
        spec = None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                break
        if name.partition(".")[0] in self.packages or name in self.packages or self._is_of_a_side(spec):
            self.wanted.add(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec

    def _is_of_a_side(self, spec: Any) -> bool:
        """Whether a module's file, or a directory of its package, lies in the tree, even through a link."""
        if spec is None:
            return False
        places = [spec.origin] if spec.has_location else []
        reals = [os.path.realpath(place) + os.sep for place in (*places, *(spec.submodule_search_locations or ()))]
        return any(real.startswith(self._top) and not real.startswith(self._outside_tree) for real in reals)


def settings() -> list[object]:
    """Return what a module's import may begin or set for the process, but must not in a preload server.

    Copies lack its threads. When pytest imports, the log has handlers, and ``logging.basicConfig`` does nothing.
    """
    return [threading.active_count(), *map(id, logging.root.handlers), logging.root.level]


def load(names: Iterable[str], packages: Iterable[str], top: str, outside_tree: Iterable[str]) -> dict[str, Any]:
    """Import modules, and return the results: if any module is ``dirty``, this process is of no use.

    A dirty module wants what :class:`Refusal` refuses, or sets what only the side's own process should set. All dirty
    modules are found, so that the next process can do without them.
    """
    dirty: list[str] = []
    refusal = Refusal(packages, top, outside_tree)
    sys.meta_path.insert(0, refusal)
    before = dict(os.environ)
    try:
        with warnings.catch_warnings():  # as when pytest imports test files: modules' filters are not kept
            for name in names:
                found = settings()
                with contextlib.suppress(Exception, SystemExit):  # from modules that this process does not need
                    importlib.import_module(name)
                if refusal.wanted or settings() != found:
                    dirty.append(name)
                    refusal.wanted.clear()
    finally:
        sys.meta_path.remove(refusal)
    if dirty:
        return {"dirty": dirty}
    after = dict(os.environ)
    changes = {name: after.get(name) for name in {*before, *after} if before.get(name) != after.get(name)}
    for stream in (sys.stdout, sys.stderr):  # or each copy would write the buffer, too
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    sys.path_importer_cache.clear()  # or each copy would clear it, and copy the memory that it frees
    gc.freeze()
    return {"dirty": [], "changes": changes}


def fork_driver(settings: dict[str, Any], descriptor: int) -> None:
    """Fork a driver: it stirs its heap, forks its templates, and then has their workers take turns.

    The templates come first: they must not have loaded parts of this package that the side may have for itself.
    """
    if fork():
        os.close(descriptor)
        return
    _connection.close()
    alike = frozenset(sys.modules) if settings["alike"] else frozenset()
    _kept = vary_heap()
    begun: list[tuple[int, socket]] = []
    for own in settings["templates"]:
        here, there = socketpair()
        pid = fork()
        if not pid:
            for other in (here, *(end for _, end in begun)):
                other.close()
            os.close(descriptor)
            if _pipe >= 0:
                os.close(_pipe)
            _kept += vary_heap() if settings["own_heap"] else []
            become_side(own)
            importlib.import_module(_SESSION).main({"shared": settings["shared"], "own": own}, there.detach(), alike)
        there.close()
        begun.append((pid, here))
    os.setsid()
    gc.set_threshold(*_usual_threshold)
    importlib.import_module(_DRIVER).main(settings, descriptor, begun, _pipe)


@contextlib.contextmanager
def socket_of(connection: Connection) -> Iterator[socket]:
    """Yield a connection's socket, without a default time limit that a test has set for sockets."""
    with socket(fileno=os.dup(connection.fileno())) as found:
        found.setblocking(True)
        yield found


def receive_descriptor(connection: Connection) -> int:
    """Return a descriptor that another process has sent; EOFError if that process is gone."""
    with socket_of(connection) as found:
        _, descriptors, _, _ = recv_fds(found, 1, 1)
    if not descriptors:
        raise EOFError
    return descriptors[0]


def fork() -> int:
    """Fork this process, and return the copy's number, 0 in the copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, from Python 3.12 on: this process has libraries' idle ones
        pid = os.fork()
    if not pid:
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # as multiprocessing's children do
    return pid


def become_side(own: dict[str, Any]) -> None:
    """Make this copy of the server like a process that the side's own interpreter has started."""
    os.setsid()
    log = _open_log(own["output"])
    out, err = _terminal
    os.dup2(err if own["share_terminal"] else log, 2)
    os.dup2(out if own["reports"] else log, 1)
    for descriptor in (log, out, err):
        os.close(descriptor)
    gc.set_threshold(*_usual_threshold)
    os.chdir(own["directory"])
    os.environ.clear()
    os.environ.update(own["environment"])
    _tell_jax()
    sys.executable = own["python"]
    sys.prefix, sys.exec_prefix = own["prefix"], own["prefix"]
    _run_site_lines(own["sites"])
    sys.path[:] = own["path"]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()


def _tell_jax() -> None:
    """Set the side's own cache of compiled programs: JAX read its variable when the server imported JAX."""
    cache, jax = os.environ.get("JAX_COMPILATION_CACHE_DIR"), sys.modules.get("jax")
    if cache and jax is not None:
        jax.config.update("jax_compilation_cache_dir", cache)


def _open_log(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def print_to(path: str) -> tuple[int, int]:
    """Redirect this process's output to a file, as the run's own imports have printed it; return the old output."""
    old = os.dup(1), os.dup(2)
    log = _open_log(path)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    return old


def _run_site_lines(sites: Iterable[str]) -> None:
    """Run the import lines of the side's ``.pth`` files, instead of those that this process ran at its start.

    The lines install the finders of editable installs, which lead to one side's code.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("_frozen")]
    for sitedir in sites:
        for name in sorted(os.listdir(sitedir)):  # noqa: PTH208 - without pathlib's import, as in a new interpreter
            if name.endswith(".pth") and not name.startswith("."):
                with open(os.path.join(sitedir, name), encoding="utf-8-sig", errors="surrogateescape") as file:  # noqa: PTH118, PTH123
                    lines = [line for line in file.read().splitlines() if line.startswith(("import ", "import\t"))]
                for line in lines:
                    try:
                        exec(line, {"sitedir": sitedir})  # noqa: S102 - as Python does at its start
                    except Exception as error:  # Python's own start goes on, too
                        print(f"{name}: {line}: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201


def serve() -> None:
    """Carry out the run's orders until it is gone."""
    while True:
        try:
            order = json.loads(_connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if "settings" in order:
            fork_driver(order["settings"], receive_descriptor(_connection))
        else:
            answer = load(order["modules"], order["packages"], order["top"], order["outside_tree"])
            _connection.send_bytes(json.dumps({"type": "Imported", **answer}).encode())


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry]
    _connection = Connection(int(os.environ.pop(KEY)))
    _pipe = int(os.environ.pop(GUARDIAN, "-1"))
    _terminal = print_to(os.environ.pop(OUTPUT))
    _usual_threshold = gc.get_threshold()
    gc.set_threshold(0)  # each collection would walk all that was imported, which is hardly garbage
    serve()
