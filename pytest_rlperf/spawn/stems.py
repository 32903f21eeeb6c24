"""The processes of a run: the stems of each comparison by the numbers of its pairs, and the workers of a test.

What both sides load alike is chosen here, too: a loader imports it once for all of their processes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from pytest_rlperf import wire as m
from pytest_rlperf.errors import MeasurementError, SideError, see
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.probes.torch import arm_ranges
from pytest_rlperf.sides.installs import not_installed
from pytest_rlperf.sides.observed import Reads, belongs_to, check_loaded, compare_reads, loaded_files
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.spawn.contract import wait_all
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.preload import LIBRARY_VARIABLES, differing_variables, library_variables
from pytest_rlperf.spawn.process import Forward, Loader, Process, Stem, Worker, WorkerLostError, padded
from pytest_rlperf.timers import VARIABLE

PAIR_NAMES = ("base worker", "head worker")
OBSERVERS = -1  # the number of the stems whose workers observe what a test reads
QUIT_LIMIT_S = 10.0
TERMINATING_LIMIT_S = 2.0
INTERRUPTED_LIMIT_S = 4.0  # SIGTERM is followed by SIGKILL, some seconds later, and the files are yet to be written
KEPT_MOST = 6  # pairs of stems that are kept from test to test
LONG_SETUP_S = 0.5  # of fixtures that tests share: from here on a worker is kept for the tests that follow
_OF_THE_RUN = ("COV_CORE_", "COVERAGE_PROCESS_", "PYTEST_CURRENT_TEST", "PYTHONHASHSEED")  # variables' beginnings
_ASKED_FOR = "new interpreters are asked for"
_LOADS_MOST = 5  # of loaders, each of which begins without what made the one before of no use


class DoubtfulError(Exception):
    """A forked worker may not be as a new process is: new interpreters are to measure the test."""


@dataclass
class Processes:
    """All processes of a run, and what they start with. Any thread may use any method.

    ``variables`` are those that the run's process began with, and ``ours`` the modules that the run has loaded for
    itself; ``readers`` are packages from elsewhere that have read the tree while they were imported. ``fixtures`` are
    those of its tests. ``forks`` is whether processes may be forked from a loader. ``top`` is
    the top of today's tree, ``markup`` and ``share_terminal`` are the terminal's. A process may take ``start_limit_s``
    to import and collect.
    """

    variables: Mapping[str, str]
    ours: Collection[str]
    readers: Collection[str]
    fixtures: Collection[str]
    forks: bool
    top: Path
    markup: bool
    share_terminal: bool
    start_limit_s: float
    guardian: Guardian = field(default_factory=Guardian)
    _stems: list[Stems] = field(default_factory=list)
    _is_cancelled: bool = False

    def stems(self, sides: Sides, *names: str, fresh: str = "") -> Stems:
        """Return stems of ``sides``, which end with the run; base's workers and head's, or head's alone, have names."""
        stems = Stems(self, sides, names, fresh)
        self._stems.append(stems)
        return stems

    def check_running(self) -> None:
        """Raise MeasurementError where the run has been stopped."""
        if self._is_cancelled:
            raise MeasurementError("the run was stopped")

    def not_forked(self) -> list[str]:
        """Return why processes were not forked that were to be."""
        reasons = (stems.fresh for stems in self._stems if self.forks)
        return [reason for reason in dict.fromkeys(reasons) if reason and reason != _ASKED_FOR]

    def cancel(self) -> None:
        """Have whoever waits for a process raise WorkerLostError at once, and start no other."""
        self._is_cancelled = True
        for stems in self._stems:
            for process in stems.all():
                process.cancel()

    def close(self, limit_s: float = QUIT_LIMIT_S) -> bool:
        """End every process, and what else they have started, and remove their files; False where no guardian did."""
        self.cancel()  # a second Ctrl-C may have come before: a thread that goes on would start processes again
        end_all([process for stems in self._stems for process in stems.all()], limit_s)
        return self.guardian.close()


def end_all(processes: Sequence[Process], limit_s: float) -> None:
    """End processes, letting fixtures tear down; workers come before the stems that they are copies of."""
    quitting = [process for process in processes if process.alive and isinstance(process, Stem | Worker)]
    for process in quitting:
        process.start_quitting()
    for process in quitting:
        if process.alive:
            process.interrupt_call(limit_s)
    for each in processes:
        each.end(limit_s + TERMINATING_LIMIT_S if each in quitting else 0)


class Stems:
    """The stems of a comparison: for each number one of base and one of head, or of head alone where there is no base.

    Those of a number are forked from one child of a loader, or are new interpreters where ``fresh`` has why they are.
    The pairs that confirm a change are of a second loader. Several tests may use a number at once where each has a copy
    of the stems; elsewhere a test has numbers of its own: :meth:`claim` and :meth:`give_back`.
    """

    def __init__(
        self,
        processes: Processes,
        sides: Sides,
        names: Sequence[str],
        fresh: str = "",
    ) -> None:
        self.sides = sides
        self.fresh = fresh or ("" if processes.forks else _ASKED_FOR)
        self._twin: Stems | None = None
        self._processes = processes
        self._names = names  # of base's workers, where there are any, and of head's
        self._stems: dict[tuple[int, int], list[Stem]] = {}
        self._living: list[Process] = []
        self._loaders: dict[int, Loader] = {}
        self._modules: list[str] | None = None
        self._left_out: set[str] = set()
        self._claims: Counter[int] = Counter()
        self._keeps = False
        self._lock = threading.Lock()
        self._locks: dict[tuple[int, int], threading.Lock] = {}
        self._loading = threading.Lock()
        self._differing = sorted({*sides.packages, *processes.readers})
        self._top = sides.top or processes.top
        self._places = list(dict.fromkeys((*sides.base.homes, *sides.head.homes, self._top)))
        self._observing = threading.Lock()

    @property
    def compares(self) -> bool:
        """Whether tests are compared, so that both sides' files are observed first."""
        return len(self._names) > 1 and bool(self.sides.changed)

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def check_collected(self, keys: Collection[str]) -> None:
        """Raise SideError, with base's own message, where base has collected none of ``keys``."""
        first = self.ready(OBSERVERS)[0].collected
        if {*keys}.isdisjoint(first.keys):
            lacks = ", ".join(not_installed(first.errors))
            hint = f" (it needs {lacks}, which is not installed here: install it, then run this again)" if lacks else ""
            raise SideError(
                f"none of the {len(keys)} measured tests can be collected on {self.sides.base.label}, so there is "
                f"nothing to compare with{hint}:\n{first.errors or 'no test of the same name is there'}"
                f"{see('comparing.md#live-comparisons')}"
            )

    def check_places(self, base: Worker, head: Worker) -> None:
        """Raise SideError where a worker of a pair has loaded a module of another place than its own side's."""
        check_loaded(self.sides, base.loaded, head.loaded)

    def reads(self, base: Worker, head: Worker, limit_s: float) -> Reads | None:
        """Return what both sides' observers have read in their test; None where that is not known.

        SideError where one has read another side's file.
        """
        self.check_places(base, head)
        for worker in (base, head):
            worker.start_observe(limit_s)
        read = wait_all([base, head], lambda worker: worker.wait_observed())
        found = compare_reads(self.sides, *read)
        return None if base.has_children or head.has_children else found

    @contextlib.contextmanager
    def observers(self, seed: int) -> Iterator[list[Worker]]:
        """Yield workers of base and head that observe one test, and let them go at the end."""
        with contextlib.ExitStack() as at_end:
            is_fresh = not all(stem.forks for stem in self.ready(OBSERVERS))
            if is_fresh:
                at_end.enter_context(self._observing)  # one test at a time has new interpreters
            workers = self.workers(OBSERVERS)
            if not is_fresh and self.fresh:  # what was to be forked no longer is
                raise DoubtfulError(self.fresh)
            for worker in workers:
                worker.seed = seed
                at_end.callback(self.let_go, worker)
            yield workers

    def new_interpreters(self) -> Stems:
        """Return the stems of the same comparison that are new interpreters."""
        if self.fresh:
            return self
        with self._lock:
            if self._twin is None:
                self._twin = self._processes.stems(self.sides, *self._names, fresh=_ASKED_FOR)
        return self._twin

    # ------------------------------------------------------------------ numbers

    def claim(self, index: int, avoid: Collection[int] = ()) -> int:
        """Return the number for a test's pair, which is the caller's until :meth:`give_back`; none of ``avoid``."""
        with self._lock:
            number = index
            if self.fresh or self._keeps:
                number = next(n for n in itertools.count() if not self._claims[n] and n not in avoid)
            self._claims[number] += 1
        return number

    def give_back(self, number: int) -> None:
        """Let other tests use a claimed number."""
        with self._lock:
            self._claims[number] -= 1

    def renew(self, number: int) -> None:
        """End the stems of a claimed number, so that the next ones are new processes."""
        with self._lock:
            old = self._stems.pop((number, 0), [])
        end_all(old, QUIT_LIMIT_S)

    # ------------------------------------------------------------------ stems

    def ready(self, number: int, loader: int = 0) -> list[Stem]:
        """Return the stems of a number once they have collected: base's and head's, or head's alone."""
        key = (number, 0 if self.fresh else loader)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            stems = self._stems.get(key, [])
            is_old = any(stem.forks and self.fresh for stem in stems)
            if not stems or is_old or not all(stem.alive for stem in stems):
                self._retire(stems)
                stems = self._stems[key] = self._started(*key)
        return stems

    def _started(self, number: int, loader: int) -> list[Stem]:
        """Start the stems of a number; new interpreters where copies of a loader cannot be had."""
        stems = [] if self.fresh else self._forked(number, loader)
        if not stems:
            stems = self._begun(number, None)
            for stem in stems:
                stem.wait_ready()
        return stems

    def _forked(self, number: int, loader: int) -> list[Stem]:
        """Return stems forked from a loader, none where copies of them cannot work as new processes do."""
        stems: list[Stem] = []
        try:
            found = self._loader(loader)
            if found is not None:
                stems = self._begun(number, found)
                for stem in stems:
                    stem.wait_ready()
            fault = next((stem.collected.fault for stem in stems if stem.collected.fault), "") or self._unequal(stems)
        except WorkerLostError as lost:
            self._processes.check_running()
            if lost.worker.is_blocked:  # as a new interpreter would be
                raise
            fault = str(lost).partition("\n")[0].rstrip(".")
        if fault:
            self._be_fresh(fault)
        if self.fresh:
            end_all(stems, 0)
            return []
        return stems

    def _begun(self, number: int, loader: Loader | None) -> list[Stem]:
        """Return the stems of a number, which do not yet answer: copies of a loader, else new interpreters."""
        guardian, limit_s = self._processes.guardian, self._processes.start_limit_s
        starts: dict[str, m.Start] = {}
        sides = (self.sides.base, self.sides.head)[-len(self._names) :]
        for name, side in zip(self._names, sides, strict=True):
            reports = number == 0 and name == self._names[-1]  # the user sees the tests of head's first worker
            title = f"{name} {number}" if number != OBSERVERS else name.replace("worker", "observer")
            starts[title] = self._start(number, side, loader, reports=reports)
        connections: dict[str, Connection] = {}
        if loader is not None:
            order = [*starts] if number % 2 else [*starts][::-1]  # neither side is always the first to be forked
            connections = dict(zip(order, loader.fork([starts[name] for name in order]), strict=True))
        stems = [
            Stem(name, start, guardian, limit_s, connections.get(name), is_base=len(starts) > 1 and index == 0)
            for index, (name, start) in enumerate(starts.items())
        ]
        self._end_with_run(stems)
        return stems

    def _unequal(self, stems: Sequence[Stem]) -> str:
        """Return the variable that collecting leaves otherwise than the loader began with: libraries read it before."""
        sides = (self.sides.base, self.sides.head)[-len(stems) :] if stems else ()
        for stem, side in zip(stems, sides, strict=True):
            own = {name: value for name, value in side.environment.items() if name.startswith(LIBRARY_VARIABLES)}
            expected = {name: value for name, value in {**library_variables(), **own}.items() if value is not None}
            differing = differing_variables(expected, stem.collected.variables)
            if differing:
                return f"{differing[0]} is set while tests are collected in {stem.name}, after libraries have read it"
        return ""

    def _be_fresh(self, reason: str) -> None:
        """Start new interpreters from now on, and say why; the first of several reasons counts."""
        with self._lock:
            if self.fresh:  # the stems that are there by now may be new interpreters at work
                return
            self.fresh = reason
            loaders, self._loaders = list(self._loaders.values()), {}
            old, self._stems = list(self._stems.values()), {}
        for stems in old:
            self._retire(stems)
        end_all(loaders, 0)

    def _retire(self, stems: Sequence[Stem]) -> None:
        """Have stems end that no new test needs; copies at work go on."""
        for stem in stems:
            stem.start_quitting()

    def _start(self, number: int, side: Side, loader: Loader | None, *, reports: bool) -> m.Start:
        """Return the settings of a side's stem."""
        forks, changes = (False, {}) if loader is None else (True, loader.changes)
        processes = self._processes
        scratch = processes.guardian.new_directory()
        prefix, sites = sites_of(side.python) if forks else ("", [])
        environment = self._environment({**side.environment, **changes})
        return m.Start(
            number=number,
            path=list(side.path),
            args=list(side.args),
            files=[str(path) for path in side.files],
            scratch=str(scratch),
            markup=processes.markup,
            reports=reports,
            watched=[str(place) for place in self._places],
            packages=list(self.sides.packages),
            output=str(scratch / "output"),
            share_terminal=processes.share_terminal and reports,
            directory=str(side.directory),
            environment=environment if forks else padded(environment),
            python=side.python,
            prefix=prefix,
            sites=sites,
            forks=forks,
            # The first of a comparison shows whether copies of stems can work.
            probe=forks and number == (OBSERVERS if self.compares else 0),
            observes=number == OBSERVERS,
            tree="" if side.tree is None else str(side.tree),
            top=str(self._top),
        )

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Return the variables that a process starts with: those of the run's own start with changes made to them.

        Collecting the tests may have changed this process's variables since, for one side alone.
        """
        changed = {**self._processes.variables, **changes}
        environment = {
            name: value for name, value in changed.items() if value is not None and not name.startswith(_OF_THE_RUN)
        }
        # Before any scope is bound; traced slices switch both on: a library's ranges, and our scopes.
        arm_ranges(environment)
        environment[VARIABLE] = "standby"
        return environment | self._processes.guardian.variables()

    # ------------------------------------------------------------------ loaders

    def _customized(self) -> str:
        """Return the module of the tree that Python runs when it starts, as no copy of a loader can; else empty."""
        entries = self._processes.variables.get("PYTHONPATH", "").split(os.pathsep)
        places = [Path(entry).resolve() for entry in entries if entry]
        found = [place / f"{name}.py" for place in places for name in ("sitecustomize", "usercustomize")]
        return next((str(path) for path in found if path.is_relative_to(self._top) and path.is_file()), "")

    def _loader(self, number: int) -> Loader | None:
        """Return a loader that has imported what both sides load alike; None where that cannot be had."""
        with self._loading:
            if not self.fresh and (file := self._customized()):
                self._be_fresh(f"{file} is run when Python starts")
            if self.fresh:  # another pair may have found out while this one waited
                return None
            if number not in self._loaders:
                self._processes.check_running()
                self._loaders[number] = self._loaded()
            return self._loaders[number]

    def _loaded(self) -> Loader:
        """Start a loader, again without what each side must import for itself; WorkerLostError where it cannot be had.

        Variables of native libraries that the tests' own code sets while it is collected are there before it imports
        any; those that the imported modules set themselves are among its changes.
        """
        processes, guardian = self._processes, self._processes.guardian
        if self._modules is None:
            self._modules = modules_alike(self._top, self._differing, processes.ours, processes.fixtures)
        # Modules that ask whether there is a GPU ask its driver's library, and leave CUDA itself alone.
        before: dict[str, str | None] = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
        for _ in range(_LOADS_MOST):
            environment = padded(self._environment(before))
            loader = Loader(sys.executable, environment, guardian.new_directory(), guardian)
            self._end_with_run([loader])
            wanted = [name for name in self._modules if not _is_within(name, self._left_out)]
            dirty = loader.load(wanted, self._differing, str(self._top), apart_from(self._top))
            found = {**environment, **loader.changes}
            own = {name: value for name, value in library_variables().items() if found.get(name) != value}
            if dirty is not None:
                self._left_out.add(dirty)
            elif not own:
                return loader
            else:
                before.update(own)
                loader.end(0)
        needed = ", ".join([*self._differing, "code of the tree, a thread or a log of its own"])
        raise loader.lost(f"what the tests import needs {needed}, which each side has to load for itself")

    # ------------------------------------------------------------------ workers

    def workers(self, number: int, loader: int = 0) -> list[Worker]:
        """Return workers of a number for one test: base's and head's, or head's alone.

        DoubtfulError where several tests have the number of new interpreters, of which forked ones were expected.
        """
        stems = self.ready(number, loader)
        with self._lock:
            if self._claims[number] > 1 and not stems[0].forks:
                raise DoubtfulError(self.fresh)
        order = stems if number % 2 else stems[::-1]  # neither side is always the first to be forked
        made = {stem: stem.worker() for stem in order}
        workers = [made[stem] for stem in stems]
        self._end_with_run(workers)
        return workers

    def _end_with_run(self, processes: Sequence[Process]) -> None:
        """Have processes end with the run, whatever comes of them; MeasurementError where that has been stopped."""
        with self._lock:
            self._living = [process for process in dict.fromkeys([*self._living, *processes]) if process.alive]
        self._processes.check_running()

    def let_go(self, worker: Worker) -> None:
        """End a worker that has left its test, unless it has set up at length what the next test can use."""
        stem = worker.stem
        if not worker.alive or not stem.forks:
            return
        is_dear = worker.shared_setup_s > LONG_SETUP_S and not self.fresh
        with self._lock:
            if is_dear and not worker.running and stem.kept in (None, worker):
                stem.kept, self._keeps = worker, True
                return
        worker.start_quitting()
        worker.end(QUIT_LIMIT_S)
        worker.remove_files()

    def trim(self) -> None:
        """End stems of high numbers, which no test has claimed and few tests need: each takes its memory."""
        with self._lock:
            for key in [key for key in self._stems if key[0] >= KEPT_MOST and not self._claims[key[0]]]:
                self._retire(self._stems.pop(key))

    def all(self) -> list[Process]:
        """Return every process that may be alive: workers before stems, and those before loaders."""
        with self._lock:
            return sorted(self._living, key=lambda process: (Worker, Stem, Loader).index(type(process)))


def _is_within(name: str, packages: Collection[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@dataclass
class WorkerGroup:
    """The workers that have one test open, of whichever side; the first one reports it, to ``forward``.

    Each worker may take ``patience_s`` for any answer once its test has called an rlperf fixture, and ``setup_s`` to
    get there and to leave it. The stack ``at_end`` is closed when the test is over in its workers; where the test has
    the machine to itself until then, it ``has_machine``.
    """

    key: str
    next_key: str | None
    forward: Forward
    setup_s: float
    patience_s: float
    has_machine: bool = False
    workers: list[Worker] = field(default_factory=list)
    reporter: Worker | None = None
    at_end: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def called(self) -> m.Called:
        """The component that the reporter's test gave its fixture."""
        assert self.reporter is not None
        assert self.reporter.called is not None
        return self.reporter.called

    def open(self, workers: Sequence[Worker]) -> None:
        """Have the test at its call in all of ``workers``, which set up at the same time."""
        for worker in workers:
            self.reports_by(worker)
            with self._lock:
                self.workers.append(worker)
            forward = self.forward if worker is self.reporter else None
            worker.start_run(self.key, self.next_key, setup_s=self.setup_s, patience_s=self.patience_s, forward=forward)
        try:
            for worker in workers:
                worker.wait_called()
        except WorkerLostError as lost:
            for worker in workers:  # one that hangs on its way to the call is enough; a cancelled one is alive
                if not lost.worker.alive and worker.running and worker.called is None:
                    worker.end(0)
            raise

    def reports_by(self, worker: Worker) -> None:
        """Have a worker report the test, unless another one does."""
        with self._lock:
            self.reporter = self.reporter or worker

    def leave(self, worker: Worker) -> None:
        """Let one worker leave the test, in which it has done its part."""
        worker.leave()
        with self._lock:
            self.workers.remove(worker)

    def conclude(self, order: m.Leave) -> m.Done | None:
        """Let every worker leave the test, the reporter last and with its result."""
        assert self.reporter is not None
        self._release()
        return self.reporter.leave(order)

    def release(self) -> None:
        """Let every worker but the reporter leave the test, if it still can."""
        with contextlib.suppress(WorkerLostError):  # the test has its error
            self._release()

    def _release(self) -> None:
        """Let every worker but the reporter leave the test; WorkerLostError of the first that cannot."""
        others = [worker for worker in self.workers if worker is not self.reporter and worker.alive]
        self.workers = [worker for worker in self.workers if worker is self.reporter]
        for step in (Worker.start_leaving, Worker.leave):  # all of them leave in the time of one
            wait_all(others, step)


@dataclass
class BaseSides:
    """The base sides of a run, by the commit of a baseline."""

    preparation: Preparation
    processes: Processes
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, Stems | SideError] = field(default_factory=dict)

    def of_commit(self, sha: str, show: Callable[[str], None]) -> Stems:
        """Return the stems of ``sha`` and today's code; SideError, every time, where that code cannot be had."""
        with self._lock:
            if sha not in self._known:
                try:
                    with self.processes.guardian.guarding_commands():
                        show("preparing the baseline's commit")
                        sides = self.preparation.commit(sha)
                    self._known[sha] = self.processes.stems(sides, *PAIR_NAMES)
                except SideError as error:
                    self._known[sha] = error
            found = self._known[sha]
        if isinstance(found, SideError):
            raise found
        return found

    def give_up(self, sha: str, error: SideError) -> None:
        """Answer with ``error`` from now on where ``sha`` is wanted."""
        self._known[sha] = error


# --------------------------------------------------------------------------- what both sides load alike


NEVER = frozenset(
    {
        "grpc",  # threads, and handlers at forks that deadlock: grpc#22624, #38020
        "ray",  # processes, threads and gRPC: ray#33572, imitation#160
        "wandb",  # finalizers that wait for a thread which a copy lacks: wandb#12079
        "sentry_sdk",  # a lock that another thread holds at the fork: sentry-python#6148, #6149
        "tensorflow",  # thread pools from its import on: tensorflow#2448, #51832
        "tensorboard",  # gRPC and TensorFlow: grpc#14055
        "tensorboardX",
        "torch.utils.tensorboard",
        "pygame",  # SDL has threads and devices once it is started
        "glfw",  # it opens a display
        "OpenGL",  # chooses its platform when it is loaded
        "mujoco",  # reads MUJOCO_GL when it is loaded: mjlab#1036
        "warp",  # opens the device, and CUDA that is in use does not outlive a fork: pycuda#137
        "numba",  # reads variables when it is loaded; kills a copy's parallel kernel: PteraSoftware#229, numba#3202
    }
)
"""Packages that do not outlive a fork, or that settle at their import what a test may want otherwise."""

_IMPORT = re.compile(r"^[ \t]*(?:import[ \t]|from[ \t]+[^. \t]).*", re.MULTILINE)  # of another package, perhaps

_USING_TORCH = frozenset({"rlperf_sac_update", "rlperf_ppo_collect", "rlperf_ppo_update", "rlperf_train"})
"""Fixtures whose components load PyTorch, also where test files do not."""

# The modules of a session that works on orders, beside pytest's own.
_SESSION = ("pytest", "pytest_rlperf.plugin", "pytest_rlperf.worker.session")


def apart_from(top: Path) -> list[str]:
    """Return the places below a tree that are no part of it: the running environment, where it lies there."""
    from pytest_rlperf.sides.environment import parent_sites

    places = {os.path.realpath(place) for place in (sys.prefix, *map(str, parent_sites()))}
    return sorted(place for place in places if place.startswith(f"{top}{os.sep}"))


def modules_alike(
    top: Path, differing: Collection[str], ours: Collection[str], fixtures: Iterable[str] = ()
) -> list[str]:
    """Return the modules that this process has loaded to collect the tests, less those that may differ on a side.

    Added is what components need that ``fixtures`` measure. Left out is what lies in the tree at ``top``, belongs to
    ``differing`` packages, and ``ours``, which the run has loaded for itself; plugins of pytest, too, for it
    rewrites their asserts as it loads them.
    """
    left_out = {*NEVER, *differing, *_plugins(), "pytest_rlperf"}
    apart = tuple(f"{place}{os.sep}" for place in apart_from(top))
    below = {name for name, file in loaded_files([str(top)], ()).items() if not file.startswith(apart)}
    names = [
        name
        for name, module in list(sys.modules.items())
        if getattr(module, "__spec__", None) is not None
        and name not in ours
        and name not in below
        and not belongs_to(name, left_out)
        and name.partition(".")[0] not in {"__main__", "__mp_main__", "sitecustomize", "usercustomize"}
    ]
    own = [] if "pytest_rlperf" in {*below, *differing} else list(_SESSION)
    # The first step of any optimizer imports the second, which takes a second.
    uses_torch = "torch" in names or not _USING_TORCH.isdisjoint(fixtures)
    used = ("torch", "torch._dynamo") if uses_torch and not belongs_to("torch", left_out) else ()
    return [*names, *own, *used]


def imports_more(base: Mapping[str, str], head: Mapping[str, str]) -> bool:
    """Whether head's files, by their modules, have lines that import what no line of base's files does."""
    return not _import_lines(head.values()) <= _import_lines(base.values())


def _import_lines(files: Iterable[str]) -> set[str]:
    lines: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError):  # what cannot be read imports nothing that is known
            text = Path(file).read_text(encoding="utf-8", errors="replace") if file.endswith(".py") else ""
            lines |= {found.strip() for found in _IMPORT.findall(text)}
    return lines


def _plugins() -> set[str]:
    """Return the top-level modules of the distributions that have plugins of pytest.

    Pytest warns, which may be an error, where any of them is loaded before it.
    """
    entries = importlib.metadata.entry_points(group="pytest11")
    found = {entry.value.partition(":")[0].partition(".")[0] for entry in entries}
    for entry in entries:
        files = (entry.dist.files if entry.dist is not None else None) or ()
        found |= {file.parts[0].removesuffix(".py") for file in files if file.suffix == ".py"}
    return found - {"pytest_rlperf"}


def sites_of(python: str) -> tuple[str, list[str]]:
    """Return the prefix of an interpreter, and the directories of its packages, where its ``.pth`` files lie."""
    from pytest_rlperf.sides.environment import parent_sites, site_packages

    if python == sys.executable:
        return sys.prefix, [str(place) for place in parent_sites()]
    environment = Path(os.path.abspath(python)).parent.parent  # noqa: PTH100 - its link leads to another interpreter
    return str(environment), [str(site_packages(environment))]
