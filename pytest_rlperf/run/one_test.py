"""One test: its evidence is measured, live where there is code to run against, else by itself; its verdict."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from pytest_rlperf import wire as m
from pytest_rlperf.errors import SideError
from pytest_rlperf.judge.counters import uncounted
from pytest_rlperf.judge.stored import creep
from pytest_rlperf.judge.verdict import Counts, Evidence, judge
from pytest_rlperf.model import reasons
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Outcome, Selfcheck, Status, Trial, Verdict
from pytest_rlperf.model.measured import Result, Start, test_name
from pytest_rlperf.model.notes import (
    GatesNotCounted,
    Note,
    NothingCounted,
    Obstacle,
    Progress,
    TextNote,
    UncomparedCounts,
)
from pytest_rlperf.options import ANCHOR, Config
from pytest_rlperf.pair.counting import CountingPass, counted_by
from pytest_rlperf.pair.one_side import WORKERS, measure_one_side, workers_needed
from pytest_rlperf.report.summary import failure_text
from pytest_rlperf.run.live_comparison import (
    COUNTED_PAIRS,
    Lanes,
    LiveComparison,
    LivePairs,
    Measuring,
    UnpairedError,
    WorkerPair,
    make_result,
)
from pytest_rlperf.run.observation import same_code
from pytest_rlperf.run.state import RunState, live_counts
from pytest_rlperf.sides.installs import not_installed
from pytest_rlperf.sides.observed import NothingLoadedError, digests
from pytest_rlperf.spawn.contract import check
from pytest_rlperf.spawn.cpus import usable_cpus
from pytest_rlperf.spawn.process import LeftEarlyError, Worker, WorkerLostError
from pytest_rlperf.spawn.stems import BaseSides, Stems, WorkerGroup
from pytest_rlperf.writing import TRACE_OPTION, OutputError, file_stem, write_file


class Measured(NamedTuple):
    """The measurements of a test: what its outcome keeps, and what the verdict rests on, yet without stored figures.

    ``base_commit`` is the full SHA since which commits may accept a slowdown.
    """

    result: Result
    evidence: Evidence
    base_commit: str | None = None


@dataclass(frozen=True)
class OneTest:
    """Measures and judges one test.

    ``against`` is the base side that the user named, if any; otherwise the baseline's commit becomes one where it can.
    ``solo`` has the workers that measure a test by itself.
    """

    test: Measuring
    solo: Stems
    base_sides: BaseSides
    against: Stems | None
    run: RunState

    def measure(self) -> tuple[Outcome, tuple[Note, ...]]:
        """Measure and judge the test; return its outcome, and notes on what could not be compared."""
        started_s = time.monotonic()
        commit, before = self.run.baselines.commit_of(self.test.group.key), self._own_files()
        if self.against is not None:
            measured = self._measure_against(self.against)
        elif commit is not None:
            measured = self._settle(commit)
        else:
            result = self._measure_by_itself()
            measured = Measured(result, Evidence(result))
        evidence = replace(measured.evidence, edited=_first_edited(before))
        measured = measured._replace(evidence=evidence)
        return conclude(self.run, self.test.settings, measured, time.monotonic() - started_s)

    def _own_files(self) -> dict[str, str]:
        """Return the digests of the files that the test's module loads of the user's own tree, where it runs there."""
        stems = self.test.stems(self.against or self.solo)
        if stems.sides.head.tree is not None:
            return {}
        return digests(stems.ready(0)[-1].collected.loaded.values())

    def _measure_against(self, stems: Stems) -> Measured:
        """Measure for a comparison with the side that the user named."""
        try:
            return self._measure_live(stems)
        except LeftEarlyError as early:
            if not _is_due_to_base(early):
                raise
            result = self._measure_by_itself()
            return Measured(result, Evidence(result, unpaired=_not_on_base(stems.sides.base.label, early.done)))

    def _settle(self, commit: str) -> Measured:
        """Have live pairs with the baseline's commit decide; where that does not run, the stored numbers do."""
        stems, obstacle = self._find(commit)
        if stems is not None:
            try:
                return self._measure_live(stems)
            except NothingLoadedError as error:
                obstacle = str(error)
            except SideError as error:
                self.base_sides.give_up(commit, error)
                obstacle = str(error)
            except (LeftEarlyError, WorkerLostError) as stopped:
                if not _is_due_to_base(stopped):
                    raise
                obstacle = f"on {stems.sides.base.label}: {essence(str(stopped))}"
        result = self._measure_by_itself()
        unsettled = reasons.NotSettledLive(reasons.NoCode.NOT_RUNNING, obstacle)
        return Measured(result, Evidence(result, unsettled=unsettled), commit)

    def _measure_live(self, stems: Stems) -> Measured:
        """Compare live, unless it is the same code; then measure by itself what is to be stored."""
        saves, named = self.test.settings.save, self.against is not None
        unpaired: reasons.Unpaired | None
        try:
            unpaired = same_code(self.test, self.test.stems(stems))
            if unpaired is None:
                head, live = self._comparison(stems).compare()
                saved = self._measure_by_itself() if saves else None
                evidence = Evidence(head, live=live, by_itself=None if named else saved)
                return Measured(saved or head, evidence, stems.sides.commit)
        except UnpairedError as error:
            unpaired = error.reason
        except NothingLoadedError as error:
            if not named:
                raise
            unpaired = reasons.NothingLoaded(str(error))
        # Nothing differs but, perhaps, what the code runs on, which figures by themselves can show.
        result = self._measure_by_itself() if saves or not named else self._unmeasured()
        return Measured(result, Evidence(result, unpaired=unpaired, by_itself=None if named else result))

    def _comparison(self, stems: Stems) -> LiveComparison:
        stored = self.run.baselines.stored(self.test.group.key)
        counting = counting_pass(self.test.settings, 2 * COUNTED_PAIRS)
        return LiveComparison(self.test, stems, counting, None if stored is None else stored.pairs)

    def _unmeasured(self) -> Result:
        """Return a result without figures of a component that has run once, as it does without --rlperf."""
        if self.test.group.reporter is None:
            with self.test.lanes.lane(self.test.order):
                check(self._open_solo(1))
        called = self.test.group.called
        return Result(self.test.group.key, called.component, called.unit, called.items, (), (), 0.0, ())

    def _find(self, commit: str) -> tuple[Stems | None, str]:
        """Return the stems of a commit and today's code, or why its code cannot be had."""
        try:
            stems = self.base_sides.of_commit(commit, self.test.progress.show)
            if not stems.is_same_code:
                stems.check_collected([self.test.group.key])
        except SideError as error:
            return None, str(error)
        except WorkerLostError as lost:
            return None, essence(str(lost))
        return stems, ""

    def _measure_by_itself(self) -> Result:
        """Measure the test by itself, with the machine to itself."""
        group = self.test.group
        group.at_end.enter_context(self.test.lanes.lane(self.test.order, all_of_them=True))
        group.has_machine = True
        self.test.progress.show("starting workers")
        max_time_s = self.test.settings.max_time_s
        workers = self._open_solo(workers_needed(max_time_s))
        measured = measure_one_side(
            workers,
            max_time_s,
            self.test.progress,
            long=self.run.baselines.uses_mean(self.test.group.key),
            counting=counting_pass(self.test.settings, WORKERS),
        )
        start = Start.FORKED if all(worker.stem.forks for worker in workers) else Start.FRESH
        result = make_result(group.key, group.called, measured)
        return replace(result, counting=counted_by(workers), start=start)

    def _open_solo(self, count: int) -> list[Worker]:
        """Return workers of head's, with the test at its call."""
        group, solo = self.test.group, self.test.stems(self.solo)
        workers: list[Worker] = []
        numbers = [solo.claim(index) for index in range(count)]
        for number in numbers:
            group.at_end.callback(solo.give_back, number)
        with ThreadPoolExecutor(count) as threads:  # new interpreters start at the same time
            for (worker,) in threads.map(solo.workers, numbers):
                group.at_end.callback(solo.let_go, worker)
                workers.append(worker)
        group.open(workers)
        return workers


def _first_edited(before: Mapping[str, str]) -> str:
    """Return the first of the files whose digests are no longer those, empty where all are as they were."""
    now = digests(before)
    return next((file for file in before if now[file] != before[file]), "")


def _is_due_to_base(stopped: LeftEarlyError | WorkerLostError) -> bool:
    """Whether base's code cannot run a test, by the word of a process that counts."""
    if isinstance(stopped, LeftEarlyError) and (stopped.done.collision or stopped.done.name_missing):
        return stopped.worker.is_base and not stopped.done.collision
    return stopped.worker.is_base and not stopped.is_doubtful


def counting_pass(settings: Config, workers: int) -> CountingPass:
    """Return the counting pass of a test with these settings, for so many workers."""
    is_wanted, gates = settings.findings["counts"] != OFF, bool(settings.gating_counts)
    return CountingPass(settings.max_time_s, workers, is_wanted=is_wanted, gates=gates)


def _not_on_base(base_label: str, done: m.Done) -> reasons.NotOnBase:
    error = essence(done.text) if done.text.strip() else ""
    lacks = not_installed(done.text)
    return reasons.NotOnBase(base_label, done.outcome, error, is_new=done.name_missing and not lacks, lacks=lacks)


def essence(text: str) -> str:
    """Return the line of a failure that names it: the error of a traceback, else the first."""
    lines = [line.strip() for line in text.strip().splitlines()] or ["without a message"]
    errors = [line[1:].strip() for line in lines if line.startswith("E  ")]
    return errors[0] if errors else lines[0]


# ----------------------------------------------------------------------- from measurements to the outcome


def conclude(run: RunState, settings: Config, measured: Measured, seconds: float) -> tuple[Outcome, tuple[Note, ...]]:
    """Judge a test, and note what could not be compared."""
    (result, found, base), baselines = measured, run.baselines
    notes: list[Note] = []
    live, policy, key = found.live, run.policy(settings), found.head.nodeid
    evidence = replace(
        found,
        stored=baselines.stored(key),
        others=baselines.differences,
        versions=() if found.by_itself is None else baselines.versions_since(key),
        unsettled=found.unsettled or baselines.unsettled(key),
        counts=_counts(run, settings, measured, notes),
        law=run.series.add(result, live, policy),
        allowances=run.accepted.since(base),
    )
    verdict = judge(evidence, policy)
    # Where nothing is slower, only messages that can still be amended are of use: those of the change at hand.
    if base is not None and (verdict.status is Status.SLOWER or run.settings.against is not None):
        notes += run.accepted.heed(base)
    # A side that the user named is what there is to compare with, also where nothing was measured.
    stored = evidence.stored if live is not None or run.settings.against is None else None
    anchor = run.baselines.anchor if run.settings.against == ANCHOR else None
    change = None if live is None else creep(verdict.estimate, base, anchor)
    return Outcome(result, stored, live, verdict, seconds, change), tuple(notes)


def _counts(run: RunState, settings: Config, measured: Measured, notes: list[Note]) -> Counts | None:
    """Return the exact counts to compare, base's of live pairs or else stored ones; add ``notes`` on others."""
    result, live, now = measured.result, measured.evidence.live, measured.result.counting
    if now is None or measured.evidence.unpaired is not None:
        return None
    other = run.baselines.counts.find(result) if live is None else live_counts(live.base, run.settings.against)
    obstacle: Obstacle | None = other.obstacle if now.workers else NothingCounted(now.notes, on_base=False)
    gates = settings.gating_counts
    if obstacle is not None:
        notes.append(UncomparedCounts(result.nodeid, obstacle, bool(gates)))
        return None
    if other.counting is None:
        return None
    missing = uncounted(other.counting, now, gates, settings.counts)
    if missing:
        why = tuple(dict.fromkeys((*now.notes, *other.counting.notes)))
        notes.append(UncomparedCounts(result.nodeid, GatesNotCounted(missing, why), gates=True))
    return Counts(other.counting, now)


def explain(group: WorkerGroup, outcome: Outcome, progress: Progress) -> Outcome:
    """Return the outcome with where a call's time goes, as one worker of head's sees it."""
    for worker in group.workers:
        if worker.called is not None and worker.checked_s is not None and not worker.is_base:
            progress.show("looking where the time goes")
            found: m.Explained = worker.ask(m.Explain())
            notes = (*outcome.result.notes, *found.notes)
            return replace(outcome, result=replace(outcome.result, shares=found.shares, notes=notes))
    return outcome


def write_traces(group: WorkerGroup, directory: Path, progress: Progress) -> list[TextNote]:
    """Write the trace of one call of each side whose workers have the test open; return notes on what failed."""
    notes, done = [], set()
    for worker in group.workers:
        side = "base" if worker.is_base else "head"
        if worker.called is not None and worker.checked_s is not None and side not in done:
            done.add(side)
            progress.show("recording a trace")
            text: str = worker.ask(m.Trace(title=f"{group.key} ({side})"))
            try:
                write_file(TRACE_OPTION, directory / f"{file_stem(group.key)}.{side}.json", text)
            except OutputError as error:
                notes.append(TextNote(str(error)))
    return notes


def failure_of(outcome: Outcome, run: RunState) -> m.Failure | None:
    """Return why a test must fail, if it must."""
    # Storing is what NEW and INCOMPARABLE need; a strict run must be able to store its first baseline.
    cured = run.settings.save and outcome.verdict.status in (Status.NEW, Status.INCOMPARABLE)
    if cured or not outcome.verdict.fails(run.settings.strict):
        return None
    text = failure_text(outcome, run.baselines.origin(outcome), against=run.settings.against is not None)
    if outcome.verdict.status is Status.SLOWER:
        return m.Failure(text, regression=True)
    return m.Failure(f"{text}\n--rlperf-strict fails what is neither SAME nor FASTER", regression=False)


def error_of(key: str, failure: reasons.TestFailed, seconds: float, known: Outcome | None) -> Outcome:
    """Return the outcome of a test that failed, with the figures that are ``known`` from before it did."""
    estimate = None if known is None else known.verdict.estimate
    verdict = Verdict(Status.ERROR, failure, estimate, smallest_seen=None, suspect=False, gated=True, accepted=False)
    if known is not None:
        return replace(known, verdict=verdict)
    return Outcome(Result(key, "", "", 0.0, (), (), 0.0, ()), None, None, verdict, seconds)


# ----------------------------------------------------------------------- the self-check


OpenPairs: TypeAlias = dict[tuple[int, int], WorkerPair]
"""Pairs by their number and that of their loader."""

SLOWDOWNS: tuple[float, ...] = (0.02, 0.03, 0.05, 0.10)


class _SlowedPairs(LivePairs):
    """The pairs of one trial, which all trials of a test share: head's workers do extra work in every round."""

    def __init__(self, test: Measuring, stems: Stems, open_pairs: OpenPairs, slowdown: float) -> None:
        super().__init__(test)
        self._stems = stems
        self._open_pairs = open_pairs
        self._slowdown = slowdown
        self._steps: int | None = None if slowdown else 0

    def open(self, index: int, loader: int) -> WorkerPair:
        """Return the pair that an earlier trial has opened, or a new one."""
        key = index, loader
        if key not in self._open_pairs:
            base, head = self._stems.workers(*key)
            self._open_pairs[key] = base, head
            for worker in (base, head):
                self.test.group.at_end.callback(self._stems.let_go, worker)
            self.test.group.reports_by(head)
            self.test.group.open([base, head])
        return self._open_pairs[key]

    def adjust(self, pair: WorkerPair) -> None:
        """Slow head down, by as many steps in every pair: otherwise pairs would differ by the errors of sizing."""
        base, head = pair
        base.ask(m.Slow(0.0, 0))
        self._steps = head.ask(m.Slow(self._slowdown, self._steps))


def check_self(test: Measuring, stems: Stems) -> Selfcheck:
    """Compare one test with itself, unchanged and with known slowdowns.

    Both sides run the same code, each in workers of its own. The trials of a test share their pairs: a difference
    between two processes shows in all trials alike.
    """
    pairs: OpenPairs = {}
    test, stems = replace(test, lanes=Lanes(1, usable_cpus())), test.stems(stems)
    result: Result | None = None
    trials: list[Trial] = []
    for slowdown in (0.0, *SLOWDOWNS):
        started_s = time.monotonic()
        change = f"{100 * slowdown:g} % slower" if slowdown else "unchanged"
        test.progress.begin(f"{test_name(test.group.key)}, {change}")
        verdict, measured = _SlowedPairs(test, stems, pairs, slowdown).run()
        result = result or make_result(test.group.key, test.group.called, measured.head)
        trials.append(Trial(slowdown, verdict, measured.pairs, time.monotonic() - started_s))
    stems.trim()
    assert result is not None
    return Selfcheck(result, tuple(trials))
