"""The measurement of a test: it is observed, compared live if there is code to run against, else measured by itself."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.errors import MeasurementError, SideError
from pytest_rlperf.judge.verdict import Evidence
from pytest_rlperf.model import reasons
from pytest_rlperf.model.judged import Outcome
from pytest_rlperf.model.measured import Result, Start
from pytest_rlperf.model.notes import MeasuredInDoubt, NotWatched, ShortOfTime, TextNote
from pytest_rlperf.reach.reads import ElsewhereError, MisreadError, NothingLoadedError, StrayError, digests
from pytest_rlperf.run.baselines import WORKERS
from pytest_rlperf.run.compare import LiveComparison
from pytest_rlperf.run.conclusion import Measured, conclude, error_line, failure_of
from pytest_rlperf.run.counting import count_order, learn
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import BrokenError, PairDriver, RetryFreshError, StoppedError
from pytest_rlperf.run.observation import observe
from pytest_rlperf.run.results import make_result
from pytest_rlperf.run.schedule import Steps
from pytest_rlperf.run.selfcheck import check_self
from pytest_rlperf.run.state import RunState
from pytest_rlperf.run.test import SEED, Failed, Judged, Observation, OpenTest, UnpairedError
from pytest_rlperf.sides.installs import not_installed
from pytest_rlperf.writing import TRACE_OPTION, OutputError, file_stem, write_file

_ANSWER_S = 1e-5  # no worker answers an order sooner


class Measurement(msgspec.Struct, frozen=True):
    """Measures and judges the tests of a run.

    ``against`` is the base side that the user named, if any; otherwise the baseline's commit becomes the base if it
    can: ``base_sides`` has the drivers by commits, or why there are none. ``solo`` has the workers that measure a test
    by itself, or against itself. It ``explains`` where the time of a call goes, which takes a second, if any output
    shows it.
    """

    run: RunState
    solo: Drivers
    base_sides: dict[str, Drivers | SideError]
    against: Drivers | None
    explains: bool

    def attempt(self, test: OpenTest, *, is_turn: bool = True) -> Steps[None]:
        """Measure a test, and let it end in its workers; if forked workers are in doubt, only note why.

        Before its turn, a test is only observed, and ends if it need not be measured. An error that stops this is the
        test's error.
        """
        with closing(test):
            try:
                if is_turn or (yield from self._is_spared(test)):
                    test.judged = yield from self._judged(test)
                    test.done = yield from test.conclude(test.judged.end)
            except Exception as error:
                doubt = "" if test.fresh else _doubt_of(error)
                test.doubt = test.doubt or doubt
                if not doubt:
                    yield from _give_up(test, error)

    def _judged(self, test: OpenTest) -> Steps[Judged]:
        """Return the results of a test."""
        if self.run.settings.selfcheck:
            checked = yield from check_self(test, self.solo)
            return Judged(wire.Leave(checked.result), selfcheck=checked)
        started_s = time.monotonic()
        before = yield from self._own_files(test)
        measured = yield from self._measured(test)
        measured = replace(measured, evidence=replace(measured.evidence, edited=_first_edited(before)))
        outcome, notes = conclude(self.run, test.settings, measured, time.monotonic() - started_s)
        if test.is_short and outcome.verdict.was_cut_short:
            notes = (*notes, ShortOfTime(test.key, test.settings.max_time_s))
        if outcome.result.measured and (self.explains or test.settings.trace is not None):
            assert test.measures is not None
            outcome, failed = yield from test.in_lane(test.measures, self._explained(test, outcome))
            notes = (*notes, *failed)
        return Judged(wire.Leave(outcome.result, failure_of(outcome, self.run)), outcome, notes=notes)

    def _is_spared(self, test: OpenTest) -> Steps[bool]:
        """Observe a test; return whether it need not be measured, so that one of its observers can report it.

        An error here occurs again when the test is measured.
        """
        drivers, _ = yield from self._base(test)
        if drivers is None:
            return False
        try:
            observed = yield from self._observed(test, drivers)
        except ElsewhereError:
            raise
        except (SideError, UnpairedError, StoppedError):
            return False
        if observed.reason is not None and not self._needs_figures(test, observed.reason):
            return True
        test.abandon()
        test.forget_reporter()
        return False

    def _measured(self, test: OpenTest) -> Steps[Measured]:
        """Return the figures of a test: of live pairs if there is code to run against, else of one side by itself.

        If a baseline's commit does not run, stored numbers decide.
        """
        is_named, unpaired = self.against is not None, None
        commit = None if is_named else self.run.baselines.commit_of(test.key)
        drivers, obstacle = yield from self._base(test)
        if drivers is not None:
            try:
                return (yield from self._compared(test, drivers))
            except ElsewhereError:
                raise
            except SideError as error:
                if commit is None:
                    raise
                is_of_one = isinstance(error, MisreadError) and not error.concerns_all
                if not is_of_one and not isinstance(error, NothingLoadedError):
                    self.base_sides[commit] = error
                obstacle = str(error)
            except StoppedError as stopped:
                done, label = stopped.stop.done, drivers.sides.base.label
                if not stopped.is_due_to_base or (is_named and done is None):
                    raise
                unpaired = _not_on_base(label, done) if is_named and done is not None else None
                obstacle = f"on {label}: {error_line(str(stopped))}"
        result = yield from self._by_itself(test)
        unsettled = None if commit is None else reasons.NotSettledLive(reasons.NoCode.NOT_RUNNING, obstacle)
        return Measured(result, Evidence(result, unpaired=unpaired, unsettled=unsettled), commit)

    def _compared(self, test: OpenTest, drivers: Drivers) -> Steps[Measured]:
        """Compare live, unless the code is the same; then measure by itself what is to be stored."""
        saves, named = test.settings.save, self.against is not None
        unpaired: reasons.Unpaired | None
        try:
            observed = yield from self._observed(test, drivers)
            unpaired = observed.reason
            if unpaired is None:
                stored = self.run.baselines.stored(test.key)
                history = None if stored is None else stored.pairs
                found = yield from LiveComparison(test, drivers).compare(history)
                parts = observed.named or drivers.change.in_packages(*found.functions)
                touched = drivers.change.touched(parts, *found.functions)
                saved = (yield from self._by_itself(test)) if saves else None
                by_itself = None if named else saved
                evidence = Evidence(found.head, live=found.live, timed=found.verdict, by_itself=by_itself)
                return Measured(saved or found.head, evidence, drivers.sides.commit, touched)
        except UnpairedError as error:
            unpaired = error.reason
        except NothingLoadedError as error:
            if not named:
                raise
            unpaired = reasons.NothingLoaded(str(error))
        if not self._needs_figures(test, unpaired):
            result = yield from self._unmeasured(test)
            return Measured(result, Evidence(result, unpaired=unpaired))
        result = yield from self._by_itself(test)
        return Measured(result, Evidence(result, unpaired=unpaired, by_itself=None if named else result))

    def _observed(self, test: OpenTest, drivers: Drivers) -> Steps[Observation]:
        """Return what observers show of the test; they run only once."""
        coverage = self.run.coverage
        if test.observed is None:
            test.observed = found = yield from observe(test, drivers.of(fresh=test.fresh))
            test.needs_machine = found.is_many
            if not drivers.is_same_code and drivers.sides.changed is not None:
                coverage.add(test.key, (*drivers.change.functions, *drivers.change.bodies), found.reached)
                coverage.untouched |= {test.key} if found.untouched else set()
                if found.doubt is not None and test.settings.reach:
                    self.run.note(MeasuredInDoubt(test.key, found.doubt))
            if found.unwatched:
                self.run.note(NotWatched(found.unwatched))
        return test.observed

    def _needs_figures(self, test: OpenTest, unpaired: reasons.Unpaired) -> bool:
        """Whether a test that is not compared is measured by itself.

        If nothing differs except, perhaps, the packages that the code runs on, figures by themselves can show it.
        """
        if test.settings.save:
            return True
        if isinstance(unpaired, reasons.Unreached):
            return self.against is None and bool(self.run.baselines.versions_since(test.key))
        return self.against is None

    def _unmeasured(self, test: OpenTest) -> Steps[Result]:
        """Return a result without figures, for a component that has run once, as it does without --rlperf."""
        if test.reporter is None:
            held = yield from test.lane()
            with held:
                driver, _ = yield from self._open_solo(test, 1)
                yield from test.ask(driver, wire.CheckAll())
        called = test.called
        assert called is not None
        return Result(test.key, called.component, called.unit, called.items, (), (), 0.0, ())

    def _by_itself(self, test: OpenTest) -> Steps[Result]:
        """Measure the test by itself, with the machine to itself."""
        test.machine = test.machine or (yield from test.lane(whole=True))
        test.show("starting workers")
        driver, called = yield from self._open_solo(test, _width(test))
        max_time_s, long = test.settings.max_time_s, self.run.baselines.uses_mean(test.key)
        order = wire.MeasureAlone(max_time_s, long, count_order(test.settings))
        alone = yield from test.ask(driver, order, max_time_s + WORKERS * test.patience_s)
        result = make_result(test.key, called, alone)
        return replace(result, counting=learn(alone.tallies), start=Start.FORKED if driver.forks else Start.FRESH)

    def _open_solo(self, test: OpenTest, width: int) -> Steps[tuple[PairDriver, wire.Called]]:
        """Return a driver of the head, with the test at its call in ``width`` workers, and the call it made there."""
        driver = yield from self.solo.of(fresh=test.fresh).lease(width=width)
        called = yield from test.open(driver, [SEED + number // 2 for number in range(width)])
        return driver, called[-1]

    def _base(self, test: OpenTest) -> Steps[tuple[Drivers | None, str]]:
        """Return the drivers for the base and today's code, or None, and why a baseline's commit cannot be had."""
        commit = self.run.baselines.commit_of(test.key)
        if self.against is not None or commit is None:
            return self.against, ""
        drivers = self.base_sides[commit]
        if isinstance(drivers, SideError):
            return None, str(drivers)
        try:
            if not drivers.is_same_code:
                yield from drivers.check_collected([test.key])
        except SideError as error:
            return None, str(error)
        except StoppedError as lost:
            return None, error_line(str(lost))
        return drivers, ""

    def _own_files(self, test: OpenTest) -> Steps[dict[str, str]]:
        """Return the digests of the files that the test's module loads from the user's own tree, if it runs there."""
        drivers = (self.against or self.solo).of(fresh=test.fresh)
        if drivers.sides.head.tree is not None:
            return {}
        driver = yield from drivers.lease(width=0 if self.against else _width(test))
        driver.give_back()
        return digests(driver.collected[-1].loaded.values())

    def _explained(self, test: OpenTest, outcome: Outcome) -> Steps[tuple[Outcome, list[TextNote]]]:
        """Return the outcome with the shares of a call's time, as one worker of the head sees them.

        Also return notes on traces that could not be written.
        """
        if self.explains:
            test.show("looking where the time goes")
            assert test.measures is not None
            found: wire.Explained = yield from test.ask(test.measures, wire.Relay(wire.Explain()))
            notes = (*outcome.result.notes, *found.notes)
            outcome = replace(outcome, result=replace(outcome.result, shares=found.shares, notes=notes))
        directory = test.settings.trace
        return outcome, [] if directory is None else (yield from _write_traces(test, directory))


def _width(test: OpenTest) -> int:
    """Return how many workers measure a test: one if any checked call, however short, takes all of its time."""
    return WORKERS if test.settings.max_time_s > _ANSWER_S else 1


def _first_edited(before: Mapping[str, str]) -> str:
    """Return the first file whose digest has changed; empty if all are as they were."""
    now = digests(before)
    return next((file for file in before if now[file] != before[file]), "")


def _not_on_base(base_label: str, done: wire.Done) -> reasons.NotOnBase:
    error = error_line(done.text) if done.text.strip() else ""
    lacks = not_installed(done.text)
    return reasons.NotOnBase(base_label, done.outcome, error, is_new=done.name_missing and not lacks, lacks=lacks)


def _write_traces(test: OpenTest, directory: Path) -> Steps[list[TextNote]]:
    """Write the trace of one call for each side whose workers have the test open; return notes on what failed."""
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


def _give_up(test: OpenTest, error: Exception) -> Steps[None]:
    """End a test that cannot be measured, as an error of that test."""
    reporter = test.reporter
    text = _failure_text(error, "" if reporter is None else reporter.head_name)
    if reporter is not None and not test.is_reporter_lost:
        try:
            yield from test.conclude(wire.Leave(failure=wire.Failure(text, regression=False)))
        except StoppedError as lost:
            text += f"\n{lost}"
    # A reporter that left on its own has reported why, unless it did not even have the test.
    is_unreported = reporter is None or test.is_reporter_lost or not test.reports
    test.failed = Failed(text, is_unreported, isinstance(error, StrayError))


def _doubt_of(error: Exception) -> str:
    """Return why new interpreters should measure a test again; empty if they need not."""
    if isinstance(error, StoppedError):
        failing = "" if error.stop.done is None else "in a forked process it failed: "
        return f"{failing}{error_line(str(error))}" if error.stop.is_doubtful else ""
    is_doubtful = isinstance(error, RetryFreshError | SideError) and not isinstance(error, ElsewhereError)
    return error_line(str(error)) if is_doubtful else ""


def _failure_text(error: Exception, reporter: str) -> str:
    """Return why a test cannot be measured; SideError if no other test can be measured either."""
    if isinstance(error, StoppedError) and error.stop.done is not None:
        return _how_it_left(error.stop.name, error.stop.done, reporter)
    if isinstance(error, StoppedError | MeasurementError):  # MeasurementError if a worker could not even be started
        return str(error)
    if isinstance(error, StrayError) and not error.concerns_all:
        return str(error)
    if isinstance(error, SideError):
        raise error
    if isinstance(error, BrokenError):
        return f"the measurement failed: {error}"
    # The other tests get their verdicts, whatever is wrong with this one.
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"the measurement failed: {type(error).__name__}: {error}\n{trace}"


def _how_it_left(name: str, done: wire.Done, reporter: str) -> str:
    """Return how a test ended in one worker while it went on in the worker that reports it."""
    if done.outcome == "passed":
        return (
            f"in {name} the test ended without calling its rlperf fixture, although it called it in {reporter}; "
            "a test must call its fixture in every process"
        )
    outcome = "was not collected" if done.outcome == "missing" else done.outcome
    if name == reporter:
        return f"in {name} the test {outcome}.\n{done.text}"
    return f"in {name} the test {outcome}, while it went on in {reporter}.\n{done.text}"
