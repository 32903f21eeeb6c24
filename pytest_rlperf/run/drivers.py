"""The run's drivers and preload servers: which test has which driver, and how they start and end."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError, see
from pytest_rlperf.model.sides import Side, Sides
from pytest_rlperf.observe.observer import belongs_to
from pytest_rlperf.probes.torch import arm_ranges
from pytest_rlperf.reach.reads import check_own
from pytest_rlperf.reach.touch import Change
from pytest_rlperf.run.endpoints import FORCE_S, PATIENCE_S, Answered, PairDriver, PreloadServer, StoppedError
from pytest_rlperf.run.schedule import AnyOf, Job, Reply, Spawn, Steps, all_done, if_broken_off
from pytest_rlperf.sides.environment import parent_sites
from pytest_rlperf.sides.installs import not_installed
from pytest_rlperf.spawn.connections import padded
from pytest_rlperf.spawn.guardian import Guardian
from pytest_rlperf.spawn.modules import NEVER, is_of_tree, modules_alike, outside_tree, packages_of, sites_of
from pytest_rlperf.spawn.variables import LIBRARY_VARIABLES, differing_variables, library_variables
from pytest_rlperf.timers import VARIABLE

PAIR_NAMES = ("base worker", "head worker")
INTERRUPTED_LIMIT_S = 4.0  # SIGTERM is followed by SIGKILL, some seconds later, and the files are yet to be written
KEPT_MOST = 6  # drivers of a comparison that are kept from test to test
_OF_THE_RUN = ("COV_CORE_", "COVERAGE_PROCESS_", "PYTEST_CURRENT_TEST", "PYTHONHASHSEED")  # variables' prefixes
_ASKED_FOR = "new interpreters were requested"
# Variables of all servers. Modules that ask whether there is a GPU ask its driver's library, and do not touch CUDA.
_OF_ALL = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
_LOADS_MOST = 5  # tries; each preload server skips the module that spoiled the one before


class Beginning(NamedTuple):
    """The start of the run's process: its sys.path, its variables, and the modules that the run loaded for itself.

    ``setters`` are the files of the code that has set variables since. ``readers`` are the packages from elsewhere that
    read files of the tree while they were imported.
    """

    path: list[str]
    variables: dict[str, str]
    ours: frozenset[str]
    setters: dict[str, set[str]]
    readers: Collection[str] = ()


@dataclass
class Loading:
    """Two preload servers that carry out one order: ``eager`` also has the variables ``since`` from its start on.

    These have been set in the run's process since it started. There is one server, under both names, if there are none,
    or if it is known that no imported module sets them.
    """

    order: wire.Load
    since: Mapping[str, str]
    plain: PreloadServer
    eager: PreloadServer

    @property
    def servers(self) -> list[PreloadServer]:
        """The servers, each of them once."""
        return list(dict.fromkeys((self.plain, self.eager)))

    def end(self) -> None:
        """End the servers."""
        for server in self.servers:
            server.end(0)


@dataclass
class Processes:
    """All processes of a run, and the settings that they start with.

    ``fixtures`` are those of the run's tests. ``forks`` is whether processes may be forked from a preload server.
    ``top`` is the top of today's tree, ``markup`` and ``share_terminal`` are the terminal's. A process may take
    ``start_limit_s`` to import and collect.
    """

    began: Beginning
    fixtures: Collection[str]
    forks: bool
    top: Path
    markup: bool
    share_terminal: bool
    start_limit_s: float
    guardian: Guardian = field(default_factory=Guardian)
    _pools: list[Drivers] = field(default_factory=list)
    _early: Loading | None = None
    _closing_s: float = 0.0

    def drivers(self, sides: Sides, *names: str, fresh: str = "") -> Drivers:
        """Return drivers of ``sides``, which end with the run; ``names`` are for their workers, the head's last."""
        pool = Drivers(self, sides, names, fresh)
        self._pools.append(pool)
        return pool

    def load(self, modules: list[str], differing: list[str], top: Path, variables: Mapping[str, str | None]) -> Loading:
        """Start servers with these ``variables``, and let them import modules, but none of ``differing`` packages.

        Library variables that are set by now are there from the start of a server if the tree's own code has set them.
        If others may have, a server without any shows which of them the imported modules set.
        """
        order = wire.Load(modules, differing, str(top), outside_tree(top))
        started = self.environment(variables)
        since = {name: value for name, value in library_variables().items() if started.get(name) != value}
        eager = self._new_server({**variables, **since})
        is_known = all(self._is_set_by_tree(name, order) for name in since)
        found = Loading(order, since, eager if is_known else self._new_server(variables), eager)
        try:
            for server in found.servers:
                server.start_loading(order)
        except StoppedError:
            found.end()
            raise
        return found

    def modules_alike(self, top: Path, differing: Collection[str]) -> list[str]:
        """Return the modules that both sides of a comparison load alike."""
        return modules_alike(top, differing, self.began.ours, self.fixtures)

    def load_early(self) -> None:
        """Begin to load, while the sides are prepared, what is alike if only packages of the tree differ."""
        if self.forks:
            differing = sorted({*self.began.readers, *packages_of(self.top)})
            modules = self.modules_alike(self.top, differing)
            with contextlib.suppress(StoppedError):  # who needs a server starts another one
                self._early = self.load(modules, differing, self.top, _OF_ALL)

    def take_early(self, modules: Collection[str], differing: Collection[str], top: Path) -> Loading | None:
        """Return what was begun early; end it if it includes other modules, or if other packages differ.

        Modules that the run has loaded for itself since are in no early order.
        """
        early, self._early = self._early, None
        if early is not None:
            is_alike = {*early.order.modules} <= {*modules} and {*differing} <= {*early.order.packages}
            if early.order.top != str(top) or not is_alike:
                early.end()
                return None
        return early

    def end_early(self) -> None:
        """End what was begun early, as nobody needs it any more."""
        if self._early is not None:
            self._early.end()
            self._early = None

    def _is_set_by_tree(self, name: str, order: wire.Load) -> bool:
        """Whether nobody else has set a variable, not even to the same value: imports may have come in between."""
        files = self.began.setters.get(name, ())
        return bool(files) and all(is_of_tree(file, order.top, order.outside_tree) for file in files)

    def _new_server(self, variables: Mapping[str, str | None]) -> PreloadServer:
        return PreloadServer(padded(self.environment(variables)), self.guardian.new_directory(), self.guardian)

    def awaited(self) -> Iterator[PairDriver | PreloadServer]:
        """Yield the processes that owe a reply."""
        return (each for pool in self._pools for each in pool.all() if each.alive and each.is_awaited)

    def not_forked(self) -> list[str]:
        """Return why processes that were to be forked were not."""
        reasons = (pool.fresh for pool in self._pools if self.forks)
        return [reason for reason in dict.fromkeys(reasons) if reason and reason != _ASKED_FOR]

    def start_closing(self, limit_s: float) -> None:
        """Begin to end every process; the teardowns of tests have ``limit_s`` to finish."""
        for driver in self._alive():
            if isinstance(driver, PairDriver):
                driver.start_ending(limit_s)
        self._closing_s = limit_s

    def close(self) -> bool:
        """End every process and its children, and remove their files; return False if the guardian did not answer."""
        for each in self._alive():
            each.end(self._closing_s + FORCE_S if isinstance(each, PairDriver) else 0)
        return self.guardian.close()

    def _alive(self) -> list[PairDriver | PreloadServer]:
        early = [] if self._early is None else self._early.servers
        return [each for each in (*(each for pool in self._pools for each in pool.all()), *early) if each.alive]

    def environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Return the variables that a process starts with: those of the run's own start, with ``changes``.

        Collecting the tests may have changed this process's variables since, for one side only.
        """
        changed = {**self.began.variables, **changes}
        environment = {
            name: value for name, value in changed.items() if value is not None and not name.startswith(_OF_THE_RUN)
        }
        # Before any scope is bound; traced slices switch both on: a library's ranges, and our scopes.
        arm_ranges(environment)
        environment[VARIABLE] = "standby"
        return environment | self.guardian.variables()


class Drivers:
    """The drivers of a comparison: each has a template of the base, if there is one, and of the head.

    A test has a driver for each of its pairs, and two of its pairs never share one: their workers would have the same
    memory layout. Drivers are forked from a preload server, or are new interpreters for the reason in ``fresh``. The
    pairs that confirm a change come from a second server.
    """

    def __init__(self, processes: Processes, sides: Sides, names: Sequence[str], fresh: str = "") -> None:
        self.sides = sides
        self.fresh = fresh or ("" if processes.forks else _ASKED_FOR)
        self._processes = processes
        self._names = names  # of the base's workers, if any, and of the head's
        self._has_base = len(names) > 1
        self._drivers: list[PairDriver] = []
        self._servers: list[PreloadServer] = []
        self._leases: list[Job[PairDriver]] = []  # of drivers that observe
        self._loading: dict[int, Job[PreloadServer]] = {}
        self._modules: list[str] | None = None
        self._set_by_tests: dict[str, str | None] = dict(_OF_ALL)
        self._left_out: set[str] = set()
        self._imported: list[dict[str, None]] = [{} for _ in names]  # by each side's workers, in their order
        self._twin: Drivers | None = None
        self._of_base: wire.Ready | None = None  # what a template of the base has collected
        # A module of these that the run has loaded may be another one than a side's own.
        named = [*sides.own, *(name for name in sides.modules if name in sys.modules)]
        self._differing = sorted({*processes.began.readers, *(name.partition(".")[0] for name in named)})
        self._top = sides.top or processes.top
        self._outside_tree = outside_tree(self._top)
        installed = parent_sites() if sides.packages and sides.changed is None else []
        self.change = Change(sides, installed)
        places = [home / name.replace(".", os.sep) for home in installed for name in sides.packages]
        todays = [place if place.is_dir() else place.with_name(f"{place.name}.py") for place in places]
        self._places = list(dict.fromkeys(map(str, (*sides.base.homes, *sides.head.homes, self._top, *todays))))

    @property
    def compares(self) -> bool:
        """Whether tests are compared, so that both sides' files are observed first."""
        return self._has_base and bool(self.sides.changed)

    @property
    def is_same_code(self) -> bool:
        """Whether both trees are equal."""
        return self.sides.changed is not None and not self.sides.changed

    def all(self) -> list[PairDriver | PreloadServer]:
        """Return every process that may be alive, drivers before preload servers."""
        self._drivers = [driver for driver in self._drivers if driver.alive]
        return [*self._drivers, *self._servers]

    def of(self, *, fresh: bool) -> Drivers:
        """Return these drivers, or if ``fresh`` the new interpreters of the same comparison."""
        return self.new_interpreters() if fresh else self

    def new_interpreters(self) -> Drivers:
        """Return the drivers of the same comparison that are new interpreters."""
        if self.fresh:
            return self
        self._twin = self._twin or self._processes.drivers(self.sides, *self._names, fresh=_ASKED_FOR)
        return self._twin

    def check_collected(self, keys: Collection[str]) -> Steps[None]:
        """Raise SideError, with the base's own message, if the base has collected none of ``keys``."""
        if self._of_base is None:  # every driver of these sides collects the same tests
            driver = yield from self.lease(observes=self.compares)
            driver.give_back()
            self._of_base = driver.collected[0]
        first = self._of_base
        if {*keys}.isdisjoint(first.keys):
            lacks = ", ".join(not_installed(first.errors))
            hint = f" (it needs {lacks}, which is not installed here: install it, then run this again)" if lacks else ""
            raise SideError(
                f"none of the {len(keys)} measured tests can be collected on {self.sides.base.label}, so there is "
                f"nothing to compare with{hint}:\n{first.errors or 'it has no test of the same name'}"
                f"{see('comparing.md#live-comparisons')}"
            )

    # ------------------------------------------------------------------ who has one

    def lease(
        self,
        avoid: Collection[PairDriver] = (),
        *,
        server: int = 0,
        width: int = 0,
        observes: bool = False,
        new: bool = False,
    ) -> Steps[PairDriver]:
        """Return a driver that has collected, not one of ``avoid``; one test has it until it is given back.

        It is forked from the preload server of number ``server``, and has ``width`` templates of one side. Its
        templates have imported the modules that workers of earlier tests did. A driver that ``observes`` notes what it
        reads, and so imports nothing more. StoppedError if none can be had.
        """
        width = width or len(self._names)
        while True:
            driver = None if new else self._free(avoid, server=server, width=width, observes=observes)
            if driver is None and not self.fresh:
                driver = yield from self._forked(server, width, observes=observes)
            if driver is None:
                driver = yield from self._started(None, width, observes=observes)
            with if_broken_off(driver.give_back):
                if observes or not driver.forks or (yield from self._has_imported(driver)):
                    return driver

    def lease_observers(self) -> Steps[PairDriver]:
        """Return a driver that observes, once none collects: files that collecting opens would look like a test's."""
        job = yield from Spawn(self.lease(observes=True))
        self._leases.append(job)
        with if_broken_off(self._drop, job):
            yield from all_done(self._leases)
        return job.outcome()

    def _drop(self, job: Job[PairDriver]) -> None:
        """Break off a lease; give back its driver if it has one."""
        if not job.is_done:
            job.close()
            return
        with contextlib.suppress(StoppedError):
            job.outcome().give_back()

    def learn(self, *checked: wire.Checked) -> None:
        """Learn which modules the workers of each side have imported for themselves."""
        for known, each in zip(self._imported, checked, strict=False):
            wanted = (name for name in each.imported if not belongs_to(name, (*NEVER, *self._differing)))
            known.update(dict.fromkeys(name for name in wanted if name not in self._left_out))

    def _has_imported(self, driver: PairDriver) -> Steps[bool]:
        """Import the workers' modules in a driver's templates; return False if an import left something behind."""
        sides = self._imported if driver.has_base else self._imported[-1:] * driver.width
        more = [
            [name for name in side if name not in known] for side, known in zip(sides, driver.imported, strict=True)
        ]
        if not any(more):
            return True
        for known, names in zip(driver.imported, more, strict=True):
            known.update(names)
        driver.is_worn = True  # until it is known whether the import was harmless
        try:
            answered: Answered = yield from driver.give(wire.ImportAll(more), self._processes.start_limit_s)
            dirty = answered.value
        except StoppedError:
            dirty = [name for names in more for name in names]
        driver.is_worn = bool(dirty or self.fresh)
        if not dirty:
            return True
        self._leave_out(dirty)
        driver.give_back()
        return False

    def _leave_out(self, dirty: Collection[str]) -> None:
        """Leave modules to the tests' own processes from now on: their imports leave more behind than themselves."""
        self._left_out.update(dirty)
        self._imported = [{name: None for name in side if name not in self._left_out} for side in self._imported]

    def _free(self, avoid: Collection[PairDriver], *, server: int, width: int, observes: bool) -> PairDriver | None:
        """Take the free driver of the lowest number that is as wanted, and return it; None if there is none."""
        for driver in sorted(self._drivers, key=lambda driver: driver.number):
            is_wanted = driver.observes == observes and driver.width >= width
            of_server = driver.preloaded == (None if self.fresh else server)
            if driver.is_free and is_wanted and of_server and driver not in avoid:
                driver.is_taken = True
                return driver
        return None

    def trim(self) -> None:
        """End the drivers of high numbers, which few tests need: each one takes memory."""
        for driver in self._drivers:
            driver.is_worn |= driver.number >= KEPT_MOST and not driver.is_taken
            driver.end_if_useless()

    # ------------------------------------------------------------------ starting one

    def _next_number(self, server: int | None, *, observes: bool) -> int:
        used = {
            driver.number
            for driver in self._drivers
            if driver.alive and not driver.is_worn and driver.preloaded == server and driver.observes == observes
        }
        return next(number for number in itertools.count() if number not in used)

    def _forked(self, server: int, width: int, *, observes: bool) -> Steps[PairDriver | None]:
        """Return a driver forked from a server; None if forked copies do not work as new processes do."""
        driver, fault = None, ""
        try:
            found = yield from self._server(server)
            if found is not None:
                driver = yield from self._started(found, width, server, observes=observes)
                fault = next((each.fault for each in driver.collected if each.fault), "")
                fault = fault or self._unequal(driver.collected) or self._strange(driver.collected)
        except StoppedError as lost:
            if not lost.stop.is_doubtful:  # as a new interpreter would be
                raise
            fault = str(lost).partition("\n")[0].rstrip(".")
        if fault:
            self._fall_back(fault)
        if self.fresh and driver is not None:
            driver.give_back()
        return None if self.fresh else driver

    def _started(
        self, found: PreloadServer | None, width: int, server: int = 0, *, observes: bool
    ) -> Steps[PairDriver]:
        """Start a driver, forked from a server if there is one, and wait until its templates have collected.

        If one cannot, the driver is ended. StoppedError says why.
        """
        preloaded = None if found is None else server
        number = self._next_number(preloaded, observes=observes)
        settings = self._driver_settings(found, number, width, observes=observes)
        connection = None if found is None else found.fork(settings)
        driver = PairDriver(settings, self._processes.guardian, number, connection, preloaded)
        self._drivers.append(driver)
        with if_broken_off(driver.give_back):
            try:
                yield from Reply(driver, self._processes.start_limit_s + PATIENCE_S)
            except StoppedError:
                if driver.alive:
                    driver.start_ending(0)
                raise
        return driver

    def _driver_settings(
        self, found: PreloadServer | None, number: int, width: int, *, observes: bool
    ) -> wire.DriverSettings:
        """Return the settings of a driver, and of its templates."""
        name = "the driver of one side"
        if self._has_base:
            name = "the observers' driver" if observes else "the pair's driver"
            names = [name.replace("worker", "observer") if observes else f"{name} {number}" for name in self._names]
            first, (base, head) = not observes and not number, names
            templates = [
                self._settings(number, base, self.sides.base, found, is_base=True, observes=observes),
                self._settings(number, head, self.sides.head, found, reports=first, observes=observes),
            ]
        else:
            templates = [
                self._settings(each, f"{self._names[0]} {each}", self.sides.head, found, reports=number + each == 0)
                for each in range(width)
            ]
        return wire.DriverSettings(
            f"{name} {number}",
            wire.SharedSettings(
                markup=self._processes.markup,
                watched=self._places,
                packages=[*self.sides.own, *self.sides.modules, *self.sides.libraries],
                top=str(self._top),
                forks=found is not None,
                observes=observes,
            ),
            # The sides alternate in being forked first.
            templates if number % 2 or not self._has_base else templates[::-1],
            own_heap=not self._has_base,
            scratch=str(self._processes.guardian.scratch),
            start_limit_s=self._processes.start_limit_s,
            run=os.getpid(),
            alike=not self._outside_tree,
        )

    def _settings(
        self,
        number: int,
        name: str,
        side: Side,
        server: PreloadServer | None,
        *,
        is_base: bool = False,
        observes: bool = False,
        reports: bool = False,
    ) -> wire.TemplateSettings:
        """Return the settings of a side's template."""
        processes, scratch = self._processes, self._processes.guardian.new_directory()
        prefix, sites = ("", []) if server is None else sites_of(side.python)
        if server is None:
            environment = padded(processes.environment(side.environment))
        else:
            environment = processes.environment({**side.environment, **server.changes})
        return wire.TemplateSettings(
            number=number,
            path=list(side.path),
            args=list(side.args),
            files=[str(path) for path in side.files],
            scratch=str(scratch),
            reports=reports,
            output=str(scratch / "output"),
            share_terminal=processes.share_terminal and reports,
            directory=str(side.directory),
            environment=environment,
            python=side.python,
            prefix=prefix,
            sites=sites,
            # The first driver shows whether copies can work.
            probe=server is not None and (observes if self.compares else number == 0),
            tree="" if side.tree is None else str(side.tree),
            name=name,
            is_base=is_base,
            changed=[places[not is_base] for places in self.change.places] if observes else [],
        )

    def _unequal(self, collected: Sequence[wire.Ready]) -> str:
        """Return a fault if collecting sets a library's variable after the library has read it; else empty."""
        sides = (self.sides.base, self.sides.head) if self._has_base else (self.sides.head,) * len(collected)
        names = self._names if self._has_base else (self._names[0],) * len(collected)
        for ready, side, name in zip(collected, sides, names, strict=False):
            own = {key: value for key, value in side.environment.items() if key.startswith(LIBRARY_VARIABLES)}
            expected = {key: value for key, value in {**library_variables(), **own}.items() if value is not None}
            differing = differing_variables(expected, ready.variables)
            if differing:
                return f"{differing[0]} is set while tests are collected in {name} 0, after libraries have read it"
        return ""

    def _strange(self, collected: Sequence[wire.Ready]) -> str:
        """Return the error if a copy of a server has a module from a place that is not its side's; else empty."""
        sides = (self.sides.base, self.sides.head) if self._has_base else ()
        for ready, side in zip(collected, sides, strict=False):
            try:
                check_own(self.sides, side, ready.loaded)
            except SideError as error:
                return str(error)
        return ""

    def _fall_back(self, reason: str) -> None:
        """Start new interpreters from now on, and keep the reason; the first of several reasons counts."""
        if not self.fresh:
            self.fresh = reason
            for driver in self._drivers:
                driver.is_worn |= driver.forks
                driver.end_if_useless()
            for server in self._servers:
                server.end(0)
            self._processes.end_early()

    # ------------------------------------------------------------------ preload servers

    def _customized(self) -> str:
        """Return the tree's module that Python runs when it starts, which a copy of a server cannot do; else empty."""
        entries = self._processes.began.variables.get("PYTHONPATH", "").split(os.pathsep)
        places = [Path(entry).resolve() for entry in entries if entry]
        found = [place / f"{name}.py" for place in places for name in ("sitecustomize", "usercustomize")]
        return next((str(path) for path in found if path.is_relative_to(self._top) and path.is_file()), "")

    def _server(self, number: int) -> Steps[PreloadServer | None]:
        """Return a server that has imported what both sides load alike; None if there cannot be one."""
        if not self.fresh and (file := self._customized()):
            self._fall_back(f"{file} is run when Python starts")
        if self.fresh:
            return None
        if number not in self._loading:
            self._loading[number] = yield from Spawn(self._loaded())
        job = self._loading[number]
        yield from AnyOf((job,))
        return None if self.fresh else job.outcome()  # another pair may have found out while this one waited

    def _loaded(self) -> Steps[PreloadServer]:
        """Start a server; retry without modules that each side must import for itself. StoppedError if all tries fail.

        The server has the variables of native libraries that the tests' own code sets during collection before it
        imports anything. Variables that the imported modules set themselves are among its changes.
        """
        processes = self._processes
        if self._modules is None:
            self._modules = processes.modules_alike(self._top, self._differing)
        for _ in range(_LOADS_MOST):
            wanted = [name for name in self._modules if not belongs_to(name, self._left_out)]
            loading = processes.take_early(wanted, self._differing, self._top)
            loading = loading or processes.load(wanted, self._differing, self._top, self._set_by_tests)
            plain, eager, since = loading.plain, loading.eager, loading.since
            self._servers += loading.servers
            loads: list[Job[list[str]]] = []
            for server in loading.servers:
                loads.append((yield from Spawn(server.finish_loading())))
            yield from all_done(loads)
            dirty, *_ = [load.outcome() for load in loads]
            self._leave_out(dirty)
            by_tests = {name: value for name, value in since.items() if plain.changes.get(name) != value}
            found = None
            if not dirty:
                self._set_by_tests.update(by_tests)
                # If the tests have set only some of them, neither is right.
                found = plain if not by_tests else eager if by_tests == since else None
            for server in {plain, eager} - {found}:
                server.end(0)
            if found is not None:
                return found
        needed = ", ".join([*self._differing, "code of the tree, a thread or a log of its own"])
        raise plain.lost(f"what the tests import needs {needed}, which each side has to load for itself")
