"""A run on a Ray cluster: the tests are measured on its nodes, and reported here as if they had run here in order.

A group of tests is a task of Ray, and a shard of the run: pytest measures it on a node, with the engine and the options
of this run, and sends back its reports and its JSON. Both sides of a pair are on one node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import itertools
import json
import logging
import math
import os
import re
import signal
import socket
import sys
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TextIO

import pytest

from pytest_rlperf import units
from pytest_rlperf.baseline.store import BaselineError
from pytest_rlperf.errors import SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.model import Outcome, Project, Shard
from pytest_rlperf.model.notes import TextNote
from pytest_rlperf.model.progress import RunProgress
from pytest_rlperf.options import ANCHOR
from pytest_rlperf.report.merge import MergeError, merge_runs
from pytest_rlperf.report.printable import shown, shown_lines
from pytest_rlperf.report.run_json import ReadingError, RunFile, decoded, read_document
from pytest_rlperf.run.forwarding import ReportForwarder
from pytest_rlperf.run.loop import Budget, make_project, show_count
from pytest_rlperf.run.outcomes import RunState
from pytest_rlperf.run.ray_node import HISTORY, SHALLOW, TREE, Order, entries_in, task
from pytest_rlperf.scratch import temporary_directory
from pytest_rlperf.sides.git import Repository, repository_around
from pytest_rlperf.sides.packages import Package, built_files, in_tree, packages_under_test
from pytest_rlperf.sides.sources import Today, check_size
from pytest_rlperf.sides.spec import GitSpec, parse_spec
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.channel import UnreadableError

OPTION = "--rlperf-ray"
_AT_MOST = 16  # tests in one task that need not be together
_TASKS_A_CPU = 4  # of tests that need not be together, so that all CPUs end at about the same time
_CONNECT_S = 5.0
_POLL_S = 0.2
_CANCEL_S = 30.0  # for the teardowns of tasks that are cancelled
_CHECK_S = 300.0  # for the imports of all packages on a node
_NAMED_MOST = 3
_TAIL = 15  # lines of a node's output
_KINDS = ("report", "warning")
_RAYS_THREAD = "ray_listen_error_messages"  # prints the messages of the cluster, at any time


@dataclass(frozen=True)
class Node:
    """A node of the cluster with CPUs for tasks: Ray's id of it, and its name in reports."""

    id: str
    name: str
    cpus: int
    gpus: float


@dataclass(frozen=True)
class Events:
    """What a node sent about one test: its reports and warnings, in order, each a kind and JSON.

    ``outcome`` is None without figures. ``fault`` is why there are no reports, empty where there are.
    """

    events: tuple[tuple[str, str], ...] = ()
    outcome: Outcome | None = None
    fault: str = ""


@dataclass(frozen=True)
class Answer:
    """A node's answer on a group of tests: the events of each by its place in the run, and the run as it judged it."""

    node: str
    tests: dict[int, Events]
    run: RunFile | None


@dataclass(frozen=True)
class Job:
    """A group of tests by their places in the run; ``node`` has them to itself. ``tries`` were lost with a node."""

    places: tuple[int, ...]
    node: Node | None = None
    tries: int = 0


class AnswerError(ValueError):
    """An answer is none to its order; the text names the first fault."""


class UnfinishedError(AnswerError):
    """A node's pytest was killed or interrupted, as on a node that dies before Ray knows it."""


# --------------------------------------------------------------------------- parts without Ray


def group_tests(files: Sequence[object], shared: Sequence[bool], cpus: int) -> list[tuple[int, ...]]:
    """Return groups of places: tests in a row, of one file each; those that share fixtures stay together.

    ``files`` and ``shared`` have each test's file, and whether it has fixtures of its module or class, in order. Others
    are in groups of so few that every CPU has several.
    """
    most = min(_AT_MOST, max(1, math.ceil(len(files) / (_TASKS_A_CPU * max(1, cpus)))))
    groups: list[list[int]] = []
    for place, (file, shares) in enumerate(zip(files, shared, strict=True)):
        last = groups[-1] if groups else None
        joins = last is not None and files[last[-1]] == file and shared[last[-1]] == shares
        if last is not None and joins and (shares or len(last) < most):
            last.append(place)
        else:
            groups.append([place])
    return [tuple(group) for group in groups]


def read_answer(data: object, order: Order, places: Mapping[str, int], keys: Mapping[str, str]) -> Answer:
    """Return a node's answer; AnswerError where it is none to this order, whatever it is.

    ``places`` has each test's place in the run by its node id, ``keys`` its key.
    """
    if not (isinstance(data, tuple) and len(data) == 3 and isinstance(data[0], str) and _are_bytes(data[1:])):
        raise AnswerError("the task returned something else than bytes")
    node, answer, log = shown(data[0]), data[1], _tail(data[2])
    if not answer:
        raise UnfinishedError(f"pytest ended there without an answer{log}")
    try:
        document = decoded(answer)
        events, text, status = document["events"], document["run"], document["status"]
        if document["error"]:
            raise pytest.UsageError(f"{node}: {shown_lines(str(document['error']))}")
        run = None if text is None else read_document(decoded(text.encode()), tests_most=len(order.nodeids))
        found: dict[str, list[tuple[str, str]]] = {nodeid: [] for nodeid in order.nodeids}
        for nodeid, kind, event in events:
            if nodeid not in found or kind not in _KINDS or not isinstance(event, str):
                raise AnswerError(f"it has an event of {shown(str(nodeid))[:100]}, which it was not to measure")
            found[nodeid].append((kind, event))
    except ReadingError as error:
        raise AnswerError(f"its JSON cannot be read: {error}") from None
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, AnswerError):
            raise
        raise AnswerError(f"its answer has other fields: {type(error).__name__}") from None
    if run is not None and not (isinstance(run, RunFile) and _is_of(run, order, keys)):
        raise AnswerError("its JSON is of other tests")
    if status == pytest.ExitCode.INTERRUPTED and not all(found.values()):
        raise UnfinishedError(f"pytest was interrupted there{log}")
    ended = f"pytest ended there (exit status {status!r:.20}) without a report of this test{log}"
    tests = {}
    for nodeid, own in found.items():
        outcome = None if run is None else run.tests.get(keys[nodeid])
        tests[places[nodeid]] = Events(tuple(own), outcome, "" if own else ended)
    return Answer(node, tests, run)


def _is_of(run: RunFile, order: Order, keys: Mapping[str, str]) -> bool:
    """Whether a run is of an order's tests."""
    return run.shard == Shard(**order.shard) and run.tests.keys() <= {keys[nodeid] for nodeid in order.nodeids}


def _are_bytes(values: Iterable[object]) -> bool:
    return all(isinstance(value, bytes) for value in values)


def _tail(log: bytes) -> str:
    """Return the end of a node's output, as a text to append."""
    lines = [shown(line) for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f"\n  {line}" for line in lines[-_TAIL:])


def wants_node(outcome: Outcome | None) -> bool:
    """Whether more than one CPU does the work of a test: it was on no one CPU where there was one to place it on."""
    return outcome is not None and outcome.live is not None and any(pair.placed is None for pair in outcome.live.pairs)


def imported_in(modules: Mapping[str, object], top: Path) -> set[str]:
    """Return the top-level packages that loaded modules of the tree have imported from outside it."""
    own = {name: module for name, module in modules.items() if _lies_in(module, top)}
    found: set[str] = set()
    for module in own.values():
        for value in list(vars(module).values()):
            if issubclass(type(value), ModuleType):
                found.add(str(ModuleType.__getattribute__(value, "__name__")))
            elif issubclass(type(value), type):
                found.add(str(type.__getattribute__(value, "__module__")))
            elif type(value) is FunctionType:
                found.add(str(value.__module__))
    tops = {name.partition(".")[0] for name in found}
    ours = {name.partition(".")[0] for name in own}
    return {name for name in tops - ours - sys.stdlib_module_names if name in modules and name != "__main__"}


def _lies_in(module: object, top: Path) -> bool:
    file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    return isinstance(file, str) and in_tree(Path(file), top)


def lacking(nodes: Sequence[tuple[str, object]], modules: Iterable[str], version: str) -> list[str]:
    """Return what nodes lack to measure there, by the name and the answer of each; empty where they have it all.

    ``version`` is the one that pytest-rlperf has here.
    """
    faults = []
    for node, found in nodes:
        known = found if isinstance(found, dict) else {}
        errors = {name: str(known.get(name, "no answer")) for name in ("git", "pytest_rlperf", *modules)}
        broken = [
            shown(f"{name} ({text})" if "No module named" not in text else name)
            for name, text in errors.items()
            if text
        ]
        there = known.get("version")
        if broken:
            faults.append(f"{node} lacks {_some(broken)}")
        elif there != version:
            faults.append(f"{node} has pytest-rlperf {shown(str(there))}, and this machine has {version}")
    return faults


def _some(texts: Sequence[str]) -> str:
    more = [f"{len(texts) - _NAMED_MOST} more"] if len(texts) > _NAMED_MOST else []
    return ", ".join([*texts[:_NAMED_MOST], *more])


# --------------------------------------------------------------------------- files that travel


@dataclass(frozen=True)
class Parcel:
    """The tree as it travels to the nodes."""

    project: Project
    top: Path
    repository: Repository | None
    packages: tuple[Package, ...]
    path: tuple[str, ...]

    @classmethod
    def of(cls, project: Project, places: Sequence[Path]) -> Parcel:
        """Return the tree that has the tests in ``places``; UsageError where it cannot travel."""
        repository = repository_around(project.rootdir)
        top = (project.rootdir if repository is None else repository.top).resolve()
        outside = [path for path in places if not path.resolve().is_relative_to(top)]
        if outside:
            raise pytest.UsageError(f"{OPTION}: {outside[0]} lies outside the tree {top}, which is all that travels")
        if repository is not None and repository.submodules():
            raise pytest.UsageError(f"{OPTION}: {top} has submodules, which do not travel to nodes")
        packages = packages_under_test(project, top)
        for package in packages:
            if package.how in ("hook", "installed"):
                raise pytest.UsageError(
                    f"{OPTION}: {package.name} is not imported from the files of {top}, which are all that travels: "
                    "install it editable (pip install -e .)"
                )
        entries = [str(package.entry) for package in packages]
        path = tuple(entries_in([*project.path, *entries], project.directory, top))
        return cls(project, top, repository, packages, path)

    def pack(self, directory: Path, against: str | None, commits: Iterable[str]) -> None:
        """Write the files that travel: the tree as it is now, and the history that sides are made from."""
        today = Today(self.top, self.repository)
        built = (path for _, path in built_files(self.packages, self.top))
        names = [*today.files(), *self._baselines(), *map(self._name, built)]
        check_size(self.top, names)
        with tarfile.open(directory / TREE, "w") as archive:
            for name in dict.fromkeys(names):
                archive.add(self.top / name, name, recursive=False)
        if self.repository is None:
            return
        refs = []
        spec = None if against in (None, ANCHOR) else parse_spec(against)
        if isinstance(spec, GitSpec):
            commits = [*commits, self.repository.resolve(spec.ref).sha]
            refs = [spec.ref, f"origin/{spec.ref}"]
        known = [sha for sha in commits if self.repository.has_commit(sha)]
        self.repository.pack_history(refs, known, directory / HISTORY, directory / SHALLOW)

    def _baselines(self) -> Iterator[str]:
        """Yield the names of baselines, which git may ignore."""
        place = self.project.baseline_dir.resolve()
        if place.is_dir() and place.is_relative_to(self.top):
            yield from (self._name(path) for path in sorted(place.rglob("*.json")) if path.is_file())

    def _name(self, path: Path) -> str:
        return path.resolve().relative_to(self.top).as_posix()


# --------------------------------------------------------------------------- the cluster


class Cluster:
    """A connection to a Ray cluster, and its nodes that have CPUs."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._measure = ray.remote(max_retries=0)(task)
        self._turns = itertools.count()
        self.nodes = self._nodes()

    def _nodes(self) -> list[Node]:
        alive = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        hosts = [shown(str(node["NodeManagerHostname"])) for node in alive]
        return [
            Node(
                node["NodeID"],
                host if hosts.count(host) == 1 else f"{host} ({node['NodeID'][:6]})",
                int(node["Resources"]["CPU"]),
                node["Resources"].get("GPU", 0),
            )
            for node, host in zip(alive, hosts, strict=True)
        ]

    def check(self, modules: Sequence[str]) -> None:
        """Raise UsageError where a node lacks a package, or has another pytest-rlperf."""
        if not self.nodes:
            raise pytest.UsageError(f"{OPTION}: no node of the cluster has a CPU for tasks")
        look = self._ray.remote(num_cpus=0, max_retries=1)(_looker())
        asked = [look.options(**self._on(node)).remote(list(modules)) for node in self.nodes]
        found: list[tuple[str, object]] = []
        for node, ref in zip(self.nodes, asked, strict=True):
            try:
                found.append((node.name, self._ray.get(ref, timeout=_CHECK_S)))
            except Exception as error:  # of Ray, or whatever a task raises
                raise pytest.UsageError(f"{OPTION}: {node.name} cannot be used: {_first_sentence(error)}") from None
        faults = lacking(found, modules, importlib.metadata.version("pytest-rlperf"))
        if faults:
            hint = "install on every node what this machine has"
            raise pytest.UsageError(f"{OPTION}: {'; '.join(faults[:_NAMED_MOST])}: {hint}")

    def _on(self, node: Node) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node.id, soft=False)}

    def next_node(self, *, over: int) -> Node | None:
        """Return a node that lives and has more than ``over`` CPUs, each in turn; None where there is none."""
        self.nodes = self._nodes()
        able = [node for node in self.nodes if node.cpus > over]
        return able[next(self._turns) % len(able)] if able else None

    def submit(self, job: Job, order: Order) -> Any:
        """Start a task; return Ray's reference to its result."""
        data = json.dumps(dataclasses.asdict(order)).encode()
        if job.node is None:
            return self._measure.options(num_cpus=1).remote(data)
        resources = {"num_cpus": job.node.cpus, "num_gpus": job.node.gpus}
        return self._measure.options(**resources, **self._on(job.node)).remote(data)

    def wait(self, running: Sequence[Any]) -> list[Any]:
        """Return the tasks that have ended, after a moment none."""
        done, _ = self._ray.wait(list(running), num_returns=1, timeout=_POLL_S)
        return list(done)

    def result(self, ref: Any) -> object:
        """Return a task's result: the name of its node, its answer and its output; whatever Ray raises."""
        found = self._ray.get(ref)
        if isinstance(found, tuple) and len(found) == 3:
            names = {node.id: node.name for node in self.nodes}
            return (names.get(found[0], str(found[0])), *found[1:])
        return found

    def is_lost(self, error: Exception) -> bool:
        """Whether a task was lost with its node or its process, not by an error of its own."""
        errors = self._ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(
            error, (errors.RayTaskError, errors.TaskCancelledError)
        )

    def cancel(self, running: Sequence[Any]) -> None:
        """End tasks, with the teardowns of their tests."""
        for ref in running:
            with contextlib.suppress(Exception):
                self._ray.cancel(ref, force=False)
        if running:
            with contextlib.suppress(Exception):
                self._ray.wait(list(running), num_returns=len(running), timeout=_CANCEL_S)


def _looker() -> Any:
    """Return the check of a node's packages; Ray sends a nested function by its code, which needs no package there."""

    def look(modules: list[str]) -> dict[str, str]:
        import json
        import shutil
        import subprocess
        import sys

        code = """
import importlib, importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found[name] = ""
    except BaseException as error:
        found[name] = str(error).partition("\\n")[0] or type(error).__name__
try:
    found["version"] = importlib.metadata.version("pytest-rlperf")
except importlib.metadata.PackageNotFoundError:
    found["version"] = ""
print(json.dumps(found))
"""
        names = ["pytest_rlperf", *modules]
        done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
        git = "" if shutil.which("git") else "No module named git"
        try:
            return {"git": git, **json.loads(done.stdout.splitlines()[-1])}
        except (IndexError, ValueError):
            return {"git": git, **dict.fromkeys(names, f"Python ended with exit code {done.returncode}")}

    return look


@contextlib.contextmanager
def connected(address: str, parcel: Path) -> Iterator[Cluster]:
    """Connect to a cluster, whose tasks have the files of ``parcel``; UsageError where there is none."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError as error:
        raise pytest.UsageError(f"{OPTION} needs Ray ({error}): pip install 'pytest-rlperf[ray]'") from None
    _check_listens(address)
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with _ray_silenced():
            ray.init(
                address=address,
                runtime_env={"working_dir": str(parcel)},
                log_to_driver=False,
                logging_level=logging.ERROR,
                **options,
            )
    except Exception as error:  # whatever Ray raises where it cannot connect
        raise pytest.UsageError(f"{OPTION}={address}: no Ray cluster to connect to: {_first_sentence(error)}") from None
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)
    with contextlib.redirect_stdout(_WithoutRay(sys.stdout)):
        try:
            yield Cluster(ray)
        finally:
            # It prints the messages that it has held back as repetitions.
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                ray.shutdown()


class _WithoutRay:
    """An output without the messages of Ray's own thread, such as the log of a node that died."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write a text of any other thread."""
        return len(text) if threading.current_thread().name == _RAYS_THREAD else self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_listens(address: str) -> None:
    """Raise UsageError where nothing listens at HOST:PORT, for which Ray itself would wait long."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise pytest.UsageError(f"{OPTION}={address}: no Ray cluster to connect to: {error}") from None


@contextlib.contextmanager
def _ray_silenced() -> Iterator[None]:
    """Keep Ray's own messages off the terminal while it connects."""
    logger = logging.getLogger("ray")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error of Ray's, without the colours and the traceback of its text."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    is_trace = len(lines) > 1 and ("Traceback" in text or "File " in text)
    return shown(lines[-1] if is_trace else lines[0].partition(". ")[0])[:300]


# --------------------------------------------------------------------------- the run


@dataclass
class ClusterLoop:
    """Runs measured tests on a cluster, and reports them as if they had run here in order.

    ``path`` is sys.path as this process started.
    """

    config: pytest.Config
    run_state: RunState
    path: list[str]
    progress: RunProgress
    _running: dict[Any, tuple[Job, Order]] = field(default_factory=dict)
    _answered: dict[int, tuple[Answer, Events]] = field(default_factory=dict)

    def run(self, session: pytest.Session) -> None:
        """Run the session's tests, all of which are measured."""
        self._items = session.items
        self._keys = {item.nodeid: result_key(item) for item in session.items}
        self._places = {item.nodeid: place for place, item in enumerate(session.items)}
        address = self.run_state.settings.ray
        assert address is not None
        try:
            project = make_project(session, self.path, self.run_state.settings)
            self._parcel = Parcel.of(project, [*project.files, project.rootdir, project.directory])
            with temporary_directory() as directory:
                self._parcel.pack(directory, self.run_state.settings.against, self._commits())
                self.progress.begin("ray")
                self.progress.show("connecting")
                with connected(address, directory) as self._cluster:
                    self._measure(session)
        except (SideError, BaselineError) as error:
            raise pytest.UsageError(f"{OPTION}: {error}") from None
        finally:
            self.progress.clear()

    def _commits(self) -> Iterator[str]:
        """Yield the commits that tests may be compared with."""
        baselines, settings = self.run_state.baselines, self.run_state.settings
        if settings.against == ANCHOR and baselines.anchor is not None:
            yield baselines.anchor.commit
        for item in self._items:
            commit = baselines.commit_of(result_key(item))
            if commit is not None:
                yield commit

    def _measure(self, session: pytest.Session) -> None:
        """Measure and report all tests."""
        self.progress.show("checking the nodes' packages")
        top = self._parcel.top
        modules = sorted(imported_in(dict(sys.modules), top) - {"pytest_rlperf"})
        self._cluster.check(modules)
        cpus = sum(node.cpus for node in self._cluster.nodes)
        files = [item.path for item in self._items]
        groups = group_tests(files, [_shares_fixtures(item, top) for item in self._items], cpus)
        whole = self.run_state.settings.lanes == 1
        at_once = len(self._cluster.nodes) if whole else cpus
        self._share_s = Budget(self.run_state.settings, len(self._items), at_once).next_s()
        try:
            for group in groups:
                self._submit(Job(group, self._cluster.next_node(over=0) if whole else None))
            for place, item in enumerate(self._items):
                show_count(self.progress, self.run_state, place, len(self._items))
                while place not in self._answered:
                    self._collect()
                self._report(item, self._answered[place][1])
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            self._cluster.cancel(list(self._running))
            self._merge()

    def _submit(self, job: Job) -> None:
        order = self._order(job)
        self._running[self._cluster.submit(job, order)] = job, order

    def _order(self, job: Job) -> Order:
        project, parcel = self._parcel.project, self._parcel
        nodeids = [self._items[place].nodeid for place in job.places]
        shard = Shard(
            number=1 + job.places[0],
            count=len(self._items),
            collected=len(self._items),
            gated=self.run_state.gated,
            places={self._keys[nodeid]: place for nodeid, place in zip(nodeids, job.places, strict=True)},
            division="ray",
        )
        return Order(
            top=str(parcel.top),
            rootdir=str(project.rootdir.resolve()),
            directory=str(project.directory.resolve()),
            inipath=None if project.inipath is None else str(project.inipath.resolve()),
            baseline_dir=str(project.baseline_dir),
            args=list(project.args),
            addopts=os.environ.get("PYTEST_ADDOPTS", ""),
            path=list(parcel.path),
            nodeids=nodeids,
            budget_s=self._share_s * len(nodeids),
            head=None if parcel.repository is None else parcel.repository.head,
            cpus=1 if job.node is None else job.node.cpus,
            shard=dataclasses.asdict(shard),
        )

    def _collect(self) -> None:
        """Wait a moment for tasks, and keep the answers of those that have ended."""
        done = len(self._answered)
        tests = units.counted(len(self._items), "test")
        self.progress.show(f"{done} of {tests} measured on {units.counted(len(self._cluster.nodes), 'node')}")
        for ref in self._cluster.wait(list(self._running)):
            job, order = self._running.pop(ref)
            try:
                answer = read_answer(self._cluster.result(ref), order, self._places, self._keys)
            except UnfinishedError as error:
                self._heed_loss(job, str(error))
            except AnswerError as error:
                self._give_up(job, f"a node's answer cannot be used: {error}")
            except pytest.UsageError:
                raise
            except Exception as error:  # of Ray, or whatever a task raises
                if self._cluster.is_lost(error):
                    self._heed_loss(job, _first_sentence(error))
                else:
                    self._give_up(job, f"the task ended with an error: {_first_sentence(error)}")
            else:
                self._keep(job, answer)

    def _heed_loss(self, job: Job, reason: str) -> None:
        """Have a job whose node was lost done elsewhere, once."""
        if job.tries:
            self._give_up(job, f"a second node was lost while it measured this: {reason}")
        else:
            tests = units.counted(len(job.places), "test")
            names = _some([self._items[place].name for place in job.places])
            first = reason.partition("\n")[0]
            self.run_state.note(TextNote(f"a node was lost, and {tests} measured elsewhere ({names}): {first}"))
            node = None if job.node is None else self._cluster.next_node(over=0)
            self._submit(replace(job, node=node, tries=job.tries + 1))

    def _give_up(self, job: Job, text: str) -> None:
        answer = Answer("", {place: Events(fault=text) for place in job.places}, None)
        self._answered |= {place: (answer, events) for place, events in answer.tests.items()}

    def _keep(self, job: Job, answer: Answer) -> None:
        """Keep the answers of tests, less those whose work needs more CPUs than it had: they get a node."""
        for place, events in answer.tests.items():
            node = self._cluster.next_node(over=1) if job.node is None and wants_node(events.outcome) else None
            if node is None:
                self._answered[place] = answer, events
            else:
                self._submit(Job((place,), node, job.tries))

    def _report(self, item: pytest.Item, found: Events) -> None:
        """Report one test as if it ran here."""
        if found.outcome is not None:
            self.run_state.outcomes.add(found.outcome)
        reports = ReportForwarder(self.config, self.progress.clear)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports.begin(item)
        for kind, event in found.events:
            try:
                reports.forward(m.Reported(event) if kind == "report" else _warned(event, item.nodeid))
            except UnreadableError as error:
                reports.fabricate(f"a node sent a report that cannot be read: {error}")
        if found.fault:
            reports.fabricate(found.fault)
        reports.finish([])
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _merge(self) -> None:
        """Make one run of the nodes' parts, less the tests that were not reported."""
        reported = self.run_state.outcomes.tests
        parts: dict[str, dict[str, RunFile]] = {}
        for answer in {id(answer): answer for answer, _ in self._answered.values()}.values():
            if answer.run is not None:
                kept = {key: outcome for key, outcome in answer.run.tests.items() if reported.get(key) is outcome}
                own = parts.setdefault(answer.node, {})
                own[f"task {len(own) + 1}"] = replace(answer.run, tests=kept, shard=None)
        places = {self._keys[nodeid]: place for nodeid, place in self._places.items()}
        try:
            nodes = {node: merge_runs(runs, places) for node, runs in parts.items()}
            self.run_state.merged = merge_runs(nodes, places) if nodes else None
        except MergeError as error:
            self.run_state.note(TextNote(str(error)))
        if self.run_state.merged is not None:
            self.run_state.note(*map(TextNote, self.run_state.merged.notes))


def _warned(event: str, nodeid: str) -> m.Warned:
    """Return a warning from its JSON; UnreadableError where it is none."""
    try:
        data = json.loads(event)
        location = None if data["location"] is None else (str(data["location"][0]), int(data["location"][1]), "")
        return m.Warned(
            text=str(data["text"]),
            category=str(data["category"]),
            filename=str(data["filename"]),
            line=int(data["line"]),
            when="runtest",
            nodeid=nodeid,
            location=location,
        )
    except (ValueError, LookupError, TypeError) as error:
        raise UnreadableError(f"a warning is not readable: {type(error).__name__}") from None


def _shares_fixtures(item: pytest.Item, top: Path) -> bool:
    """Whether a test has fixtures of its module or class, which the tree defines."""
    known = getattr(item, "_fixtureinfo", None)
    definitions = [own[-1] for own in getattr(known, "name2fixturedefs", {}).values() if own]
    return any(
        definition.scope in ("class", "module") and in_tree(Path(definition.func.__code__.co_filename), top)
        for definition in definitions
        if hasattr(definition.func, "__code__")
    )
