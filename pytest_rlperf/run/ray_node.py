"""The part of a run on a Ray cluster that runs on its nodes: pytest, in a copy of the tree, on CPUs of its own.

A task of Ray starts this module as a process, whose standard input holds its order and stays open: when it ends, the
task is gone, and so are this process and its workers. Its standard output gets the answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_rlperf.model import Project

TREE, HISTORY, SHALLOW = "tree.tar", "history.bundle", "shallow"  # the files that travel to a node
_POLL_S = 0.2
_END_S = 20.0  # for the teardowns of a run that is to end
_LOG_MOST = 20_000  # bytes


@dataclass(frozen=True)
class Order:
    """The tests that a node is to measure, and how: as the run that sends it would, with ``cpus`` CPUs.

    Paths are those of the machine that sends it: ``top`` is its tree. ``path`` are the entries of sys.path in it,
    ``budget_s`` is the time for all the tests together, ``head`` the commit that is checked out, None outside git, and
    ``shard`` the fields of the :class:`~pytest_rlperf.model.Shard` that these tests are.
    """

    top: str
    rootdir: str
    directory: str
    inipath: str | None
    baseline_dir: str
    args: list[str]
    addopts: str
    path: list[str]
    nodeids: list[str]
    budget_s: float
    head: str | None
    cpus: int
    shard: dict[str, Any]


# --------------------------------------------------------------------------- in the task


def task(order: bytes) -> tuple[str, bytes, bytes]:
    """Measure an order's tests, and return Ray's id of this node, the answer and the end of the output."""
    import ray

    return (ray.get_runtime_context().get_node_id(), *measure(order))


def measure(order: bytes) -> tuple[bytes, bytes]:
    """Run the process that measures, and return its answer and the end of its output.

    The working directory holds the files that travel. Cancelling the task ends the process, with all its teardowns.
    """
    parcel = Path.cwd()
    with tempfile.TemporaryFile(dir=parcel) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=parcel,
            env=_environment(parcel),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        answer: list[bytes] = []
        assert process.stdin is not None
        assert process.stdout is not None
        reader = threading.Thread(target=lambda pipe: answer.append(pipe.read()), args=[process.stdout], daemon=True)
        reader.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(order + b"\n")
                process.stdin.flush()
            while reader.is_alive():
                reader.join(_POLL_S)  # in short steps: a task is cancelled between them
            process.wait()
        finally:
            _end(process)
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_MOST))
        return b"".join(answer), log.read()


def _environment(parcel: Path) -> dict[str, str]:
    """Return the variables of the node, less those by which Ray and a job of GitHub Actions would take part."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    entries = variables.pop("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in entries if entry and Path(entry) != parcel]
    return {**variables, **({"PYTHONPATH": os.pathsep.join(kept)} if kept else {})}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process, if it has not ended, with its teardowns."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --------------------------------------------------------------------------- in the process that measures


def main() -> None:
    """Measure the tests of the order on the standard input, and write the answer to the standard output."""
    orders, answers = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    order = Order(**json.loads(_first_line(orders.fileno())))
    threading.Thread(target=_end_with, args=[orders], daemon=True).start()
    tree = lay_out(Path.cwd(), order.head)
    answer = _run(order, tree)
    with answers:
        answers.write(json.dumps(answer).encode())


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(descriptor, 1 << 16)
        if not part:
            sys.exit("the task ended before it sent an order")
        line += part
    return line


def _end_with(orders: Any) -> None:
    """End this process, as an interrupt would, when the task that started it has ended."""
    orders.read()
    os.kill(os.getpid(), signal.SIGTERM)


def lay_out(parcel: Path, head: str | None) -> Path:
    """Return the tree that travelled, with its history; the first process on a node lays it out for all."""
    from pytest_rlperf.sides.git import restore_history

    tree, part = parcel / "tree", parcel / "part"
    with (parcel / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.exists():
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(parcel / TREE) as archive:
                archive.extractall(part)  # noqa: S202 - the run itself has packed it
            if head is not None:
                restore_history(part, head, parcel / HISTORY, parcel / SHALLOW)
            part.rename(tree)
    return tree


@contextlib.contextmanager
def own_cpus(count: int) -> Iterator[tuple[int, ...]]:
    """Keep this process and its children on CPUs that no other such process has; on fewer where there are no more.

    A CPU is held by a socket of its name, which the system closes whatever becomes of its holder. Where sockets or
    processes have no such names or places, as on macOS, the kernel places all work.
    """
    if not sys.platform.startswith("linux"):
        yield ()
        return
    from pytest_rlperf.run.lanes import count_lanes

    usable = sorted(os.sched_getaffinity(0))
    cores = count_lanes(usable).cpus
    held: dict[int, socket.socket] = {}
    for cpu in [*cores, *(cpu for cpu in usable if cpu not in cores)]:
        if len(held) == count:
            break
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            holder.bind(f"\0pytest-rlperf-cpu-{cpu}")
        except OSError:  # another process has it
            holder.close()
            continue
        held[cpu] = holder
    if held:
        os.sched_setaffinity(0, held)
    try:
        yield tuple(held)
    finally:
        os.sched_setaffinity(0, usable)
        for holder in held.values():
            holder.close()


def _run(order: Order, tree: Path) -> dict[str, Any]:
    """Measure the tests with pytest, and return its exit status, its reports and the text of its JSON."""
    from _pytest.config import _prepareconfig

    from pytest_rlperf.sides.environment import mapped, mapped_args, side_args

    project, mapping = _project(order), (Path(order.top), tree)
    directory = mapped(project.directory, mapping)
    directory.mkdir(parents=True, exist_ok=True)
    os.chdir(directory)
    sys.path[:] = _search_path(order, tree, sys.path)
    os.environ["PYTEST_ADDOPTS"] = shlex.join(mapped_args(shlex.split(order.addopts), project, mapping))
    recorder = Recorder(order)
    with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
        json_path = Path(scratch) / "run.json"
        status, error = int(pytest.ExitCode.USAGE_ERROR), ""
        try:
            config = _prepareconfig(list(side_args(project, mapping)), plugins=[recorder])
            _take_over(config, order, mapped(project.rootdir, mapping), json_path)
            try:
                status = int(config.hook.pytest_cmdline_main(config=config))
            finally:
                config._ensure_unconfigure()
        except pytest.UsageError as raised:
            error = "\n".join(map(str, raised.args))
        text = json_path.read_text(encoding="utf-8") if json_path.exists() else None
    return {"status": status, "error": error, "events": recorder.events, "run": text}


def _project(order: Order) -> Project:
    from pytest_rlperf.model import Project

    return Project(
        rootdir=Path(order.rootdir),
        directory=Path(order.directory),
        inipath=None if order.inipath is None else Path(order.inipath),
        args=tuple(order.args),
        path=(),
        files=(),
        conftests=(),
        test_patterns=(),
        packages=(),
        baseline_dir=Path(order.baseline_dir),
    )


def _search_path(order: Order, tree: Path, path: Sequence[str]) -> list[str]:
    """Return sys.path with the entries in the tree, and without those of its original, where this machine has it."""
    top, parcel = Path(order.top), tree.parent
    own = [str(tree / entry) for entry in order.path]
    others = [entry for entry in path if entry and not Path(entry).is_relative_to(parcel)]
    return [*own, *(entry for entry in others if not _is_part(Path(entry), top))]


def _is_part(entry: Path, top: Path) -> bool:
    """Whether an entry of sys.path is code of the tree at ``top``: an environment may lie there too."""
    from pytest_rlperf.sides.packages import in_tree

    return in_tree(entry, top)


def _take_over(config: pytest.Config, order: Order, rootdir: Path, json_path: Path) -> None:
    """Set the options of a run that is a part of another one."""
    from pytest_rlperf.model import Shard
    from pytest_rlperf.run.shards import SHARD

    config.stash[SHARD] = Shard(**order.shard)
    # Plugins look for this attribute to find out that their process reports to another.
    config.workerinput = {"workerid": "ray", "workercount": 1, "testrunuid": "rlperf", "mainargv": sys.argv}  # type: ignore[attr-defined]
    config.workeroutput = {}  # type: ignore[attr-defined]
    config.args = list(dict.fromkeys(str(rootdir / nodeid.partition("::")[0]) for nodeid in order.nodeids))
    overrides: dict[str, Any] = {
        **dict.fromkeys(("rlperf_ray", "rlperf_html", "basetemp", "numprocesses", "xmlpath"), None),
        **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip"), False),
        "rlperf_json": str(json_path),
        "rlperf_budget_s": str(order.budget_s),
        "rlperf_lanes": "1",
        "dist": "no",
        "tx": [],
        "maxfail": 0,
    }
    for name, value in overrides.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)


class Recorder:
    """The hooks of a node's pytest: it keeps the tests of the order, and records their reports and warnings."""

    def __init__(self, order: Order) -> None:
        self.events: list[tuple[str, str, str]] = []  # a test's id, report or warning, and JSON
        self._places = {nodeid: place for place, nodeid in enumerate(order.nodeids)}
        self._cpus = order.cpus

    def pytest_configure(self, config: pytest.Config) -> None:
        """Keep the configuration, by which reports are written as JSON."""
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the tests of the order, in its order."""
        wanted = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(wanted, key=lambda item: self._places[item.nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_finish(self) -> Iterator[None]:
        """Take CPUs, once the whole machine has been looked at and before lanes are counted."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(own_cpus(self._cpus))
            self._config.add_cleanup(stack.pop_all().close)
        yield

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._record(report.nodeid, "report", data)

    def pytest_warning_recorded(
        self, warning_message: Any, when: str, nodeid: str, location: tuple[str, int, str] | None
    ) -> None:
        """Record a test's warning; the run's own collection recorded the others."""
        if when != "runtest":
            return
        category = warning_message.category
        data = {
            "text": str(warning_message.message),
            "category": f"{category.__module__}.{category.__qualname__}",
            "filename": warning_message.filename,
            "line": warning_message.lineno,
            "location": location,
        }
        self._record(nodeid, "warning", data)

    def _record(self, nodeid: str, kind: str, data: dict[str, Any]) -> None:
        self.events.append((nodeid, kind, json.dumps(data, default=str, skipkeys=True)))


def entries_in(path: Iterable[str], directory: Path, top: Path) -> list[str]:
    """Return the entries of a search path that lie in the tree, relative to its ``top``; each once."""
    from pytest_rlperf.sides.packages import in_tree

    places = [(directory / entry).resolve() for entry in path]
    top = top.resolve()
    return list(dict.fromkeys(place.relative_to(top).as_posix() for place in places if in_tree(place, top)))


if __name__ == "__main__":
    main()
