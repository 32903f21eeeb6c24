"""One test: its evidence is measured, live where there is code to run against, else by itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_rlperf import wire
from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.verdict import Evidence
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.measured import Result, Start
from pytest_rlperf.model.notes import MeasuredInDoubt, Note, NotWatched, TextNote
from pytest_rlperf.run.base_sides import BaseSides
from pytest_rlperf.run.baselines import WORKERS
from pytest_rlperf.run.conclusion import Measured, conclude, essence
from pytest_rlperf.run.counting import count_order, learn
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import Driver, StoppedError
from pytest_rlperf.run.live import LiveComparison, UnpairedError
from pytest_rlperf.run.observation import observe
from pytest_rlperf.run.on_test import SEED, Observation, OnTest
from pytest_rlperf.run.results import SideMeasurement, make_result
from pytest_rlperf.run.schedule import Held, Steps
from pytest_rlperf.run.state import RunState
from pytest_rlperf.sides.installs import not_installed
from pytest_rlperf.sides.reads import ElsewhereError, MisreadError, NothingLoadedError, digests
from pytest_rlperf.writing import TRACE_OPTION, OutputError, file_stem, write_file

_ANSWER_S = 1e-5  # no worker answers an order sooner


@dataclass(frozen=True)
class OneTest:
    """Measures and judges one test.

    ``against`` is the base side that the user named, if any; otherwise the baseline's commit becomes one where it can.
    ``solo`` has the workers that measure a test by itself.
    """

    test: OnTest
    solo: Drivers
    base_sides: BaseSides
    against: Drivers | None
    run: RunState

    def observe(self) -> Steps[tuple[Outcome, tuple[Note, ...]] | None]:
        """Have processes show what the test runs; return its outcome where it need not be measured, else None.

        Whatever goes wrong goes wrong again where the test is measured.
        """
        drivers, commit = self.against, self.run.baselines.commit_of(self.test.key)
        if drivers is None and commit is not None:
            drivers, _ = yield from self._find(commit)
        if drivers is None:
            return None
        try:
            observed = yield from self._observed(drivers)
        except ElsewhereError:
            raise
        except (SideError, UnpairedError, StoppedError):
            return None
        if observed.reason is None or self._needs_figures(observed.reason):
            self.test.abandon()
            self.test.forget_reporter()
            return None
        return (yield from self.measure())

    def measure(self) -> Steps[tuple[Outcome, tuple[Note, ...]]]:
        """Measure and judge the test; return its outcome, and notes on what could not be compared."""
        started_s = time.monotonic()
        commit = self.run.baselines.commit_of(self.test.key)
        before = yield from self._own_files()
        if self.against is not None:
            measured = yield from self._measure_against(self.against)
        elif commit is not None:
            measured = yield from self._settle(commit)
        else:
            result = yield from self._measure_by_itself()
            measured = Measured(result, Evidence(result))
        evidence = replace(measured.evidence, edited=_first_edited(before))
        seconds = time.monotonic() - started_s
        return conclude(self.run, self.test.settings, replace(measured, evidence=evidence), seconds)

    def _own_files(self) -> Steps[dict[str, str]]:
        """Return the digests of the files that the test's module loads of the user's own tree, where it runs there."""
        drivers = self.test.of(self.against or self.solo)
        if drivers.sides.head.tree is not None:
            return {}
        driver = yield from drivers.lease(width=0 if self.against else self._width)
        drivers.give_back(driver)
        return digests(driver.collected[-1].loaded.values())

    def _measure_against(self, drivers: Drivers) -> Steps[Measured]:
        """Measure for a comparison with the side that the user named."""
        try:
            return (yield from self._measure_live(drivers))
        except StoppedError as stopped:
            if stopped.stop.done is None or not stopped.is_due_to_base:
                raise
            unpaired = _not_on_base(drivers.sides.base.label, stopped.stop.done)
            result = yield from self._measure_by_itself()
            return Measured(result, Evidence(result, unpaired=unpaired))

    def _settle(self, commit: str) -> Steps[Measured]:
        """Have live pairs with the baseline's commit decide; where that does not run, the stored numbers do."""
        drivers, obstacle = yield from self._find(commit)
        if drivers is not None:
            try:
                return (yield from self._measure_live(drivers))
            except ElsewhereError:
                raise
            except SideError as error:
                is_of_one = isinstance(error, MisreadError) and not error.concerns_all
                if not is_of_one and not isinstance(error, NothingLoadedError):
                    self.base_sides.give_up(commit, error)
                obstacle = str(error)
            except StoppedError as stopped:
                if not stopped.is_due_to_base:
                    raise
                obstacle = f"on {drivers.sides.base.label}: {essence(str(stopped))}"
        result = yield from self._measure_by_itself()
        unsettled = reasons.NotSettledLive(reasons.NoCode.NOT_RUNNING, obstacle)
        return Measured(result, Evidence(result, unsettled=unsettled), commit)

    def _measure_live(self, drivers: Drivers) -> Steps[Measured]:
        """Compare live, unless it is the same code; then measure by itself what is to be stored."""
        test, saves, named = self.test, self.test.settings.save, self.against is not None
        unpaired: reasons.Unpaired | None
        try:
            observed = yield from self._observed(drivers)
            unpaired = observed.reason
            if unpaired is None:
                stored = self.run.baselines.stored(test.key)
                comparison = LiveComparison(test, drivers, None if stored is None else stored.pairs)
                head, live, timed = yield from comparison.compare()
                parts = () if observed.reached is None else observed.reached.executes
                touched = drivers.change.touched(parts, *comparison.functions())
                saved = (yield from self._measure_by_itself()) if saves else None
                evidence = Evidence(head, live=live, timed=timed, by_itself=None if named else saved)
                return Measured(saved or head, evidence, drivers.sides.commit, touched)
        except UnpairedError as error:
            unpaired = error.reason
        except NothingLoadedError as error:
            if not named:
                raise
            unpaired = reasons.NothingLoaded(str(error))
        if not self._needs_figures(unpaired):
            result = yield from self._unmeasured()
            return Measured(result, Evidence(result, unpaired=unpaired))
        result = yield from self._measure_by_itself()
        return Measured(result, Evidence(result, unpaired=unpaired, by_itself=None if named else result))

    def _observed(self, drivers: Drivers) -> Steps[Observation]:
        """Return what observers show of the test, which do so once."""
        test, coverage = self.test, self.run.coverage
        if test.observed is None:
            test.observed = found = yield from observe(test, test.of(drivers))
            test.needs_machine = found.is_many
            if not drivers.is_same_code and drivers.sides.changed is not None:
                coverage.add(test.key, (*drivers.change.functions, *drivers.change.bodies), found.reached)
                coverage.untouched |= {test.key} if found.untouched else set()
                if found.doubt is not None and test.settings.spares:
                    self.run.note(MeasuredInDoubt(test.key, found.doubt))
            if found.unwatched:
                self.run.note(NotWatched(found.unwatched))
        return test.observed

    def _needs_figures(self, unpaired: reasons.Unpaired) -> bool:
        """Whether a test that is not compared is measured by itself.

        Where nothing differs but, perhaps, what the code runs on, figures by themselves can show that.
        """
        if self.test.settings.save:
            return True
        if isinstance(unpaired, reasons.Unreached):
            return self.against is None and bool(self.run.baselines.versions_since(self.test.key))
        return self.against is None

    def _unmeasured(self) -> Steps[Result]:
        """Return a result without figures of a component that has run once, as it does without --rlperf."""
        test = self.test
        if test.reporter is None:
            held: Held = yield test.lane()
            with held:
                driver, _ = yield from self._open_solo(1)
                yield from test.ask(driver, wire.CheckAll())
        called = test.called
        assert called is not None
        return Result(test.key, called.component, called.unit, called.items, (), (), 0.0, ())

    def _find(self, commit: str) -> Steps[tuple[Drivers | None, str]]:
        """Return the drivers of a commit and today's code, or why its code cannot be had."""
        try:
            drivers = self.base_sides.of_commit(commit, self.test.show)
            if not drivers.is_same_code:
                yield from drivers.check_collected([self.test.key])
        except SideError as error:
            return None, str(error)
        except StoppedError as lost:
            return None, essence(str(lost))
        return drivers, ""

    @property
    def _width(self) -> int:
        """How many workers measure a test: one where its checked call takes all of its time, however short it is."""
        return WORKERS if self.test.settings.max_time_s > _ANSWER_S else 1

    def _measure_by_itself(self) -> Steps[Result]:
        """Measure the test by itself, with the machine to itself."""
        test = self.test
        held: Held = yield test.lane(whole=True)
        test.keep(held)
        test.show("starting workers")
        driver, called = yield from self._open_solo(self._width)
        max_time_s, long = test.settings.max_time_s, self.run.baselines.uses_mean(test.key)
        order = wire.MeasureAlone(max_time_s, long, count_order(test.settings))
        alone: wire.Alone = yield from test.ask(driver, order, max_time_s + WORKERS * test.patience_s)
        result = make_result(test.key, called, SideMeasurement.alone(alone))
        return replace(result, counting=learn(alone.tallies), start=Start.FORKED if driver.forks else Start.FRESH)

    def _open_solo(self, width: int) -> Steps[tuple[Driver, wire.Called]]:
        """Return a driver of head's, with the test at its call in so many workers, and what it has called there."""
        drivers = self.test.of(self.solo)
        driver = yield from drivers.lease(width=width)
        called = yield from self.test.open(driver, drivers, [SEED + number // 2 for number in range(width)])
        return driver, called[-1]


def _first_edited(before: Mapping[str, str]) -> str:
    """Return the first of the files whose digests are no longer those, empty where all are as they were."""
    now = digests(before)
    return next((file for file in before if now[file] != before[file]), "")


def _not_on_base(base_label: str, done: wire.Done) -> reasons.NotOnBase:
    error = essence(done.text) if done.text.strip() else ""
    lacks = not_installed(done.text)
    return reasons.NotOnBase(base_label, done.outcome, error, is_new=done.name_missing and not lacks, lacks=lacks)


def explain(test: OnTest, outcome: Outcome) -> Steps[Outcome]:
    """Return the outcome with where a call's time goes, as one worker of head's sees it."""
    test.show("looking where the time goes")
    assert test.measures is not None
    found: wire.Explained = yield from test.ask(test.measures, wire.Relay(wire.Explain()))
    notes = (*outcome.result.notes, *found.notes)
    return replace(outcome, result=replace(outcome.result, shares=found.shares, notes=notes))


def write_traces(test: OnTest, directory: Path) -> Steps[list[TextNote]]:
    """Write the trace of one call of each side whose workers have the test open; return notes on what failed."""
    notes = []
    assert test.measures is not None
    for side in ("head", "base") if test.measures.has_base else ("head",):
        test.show("recording a trace")
        order = wire.Relay(wire.Trace(title=f"{test.key} ({side})"), side == "base")
        text = yield from test.ask(test.measures, order)
        try:
            write_file(TRACE_OPTION, directory / f"{file_stem(test.key)}.{side}.json", str(text))
        except OutputError as error:
            notes.append(TextNote(str(error)))
    return notes
