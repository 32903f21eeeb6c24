"""One test's live comparison: pairs are started, verified and measured until there is a verdict.

Each pair has a lane: one of the CPUs of this machine, on which one pair at a time measures.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

from pytest_rlperf import wire as m
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.judge.findings import OF_READINGS, first_call, growth
from pytest_rlperf.judge.findings.outputs import Seeded, compare
from pytest_rlperf.judge.live import UNPLACED_LEAST, carriers, contributions, judge_records, slower_least
from pytest_rlperf.model import reasons
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.live import Contribution, Live, StartUp, log_ratios
from pytest_rlperf.model.measured import Result, Tally, work_text
from pytest_rlperf.model.notes import Progress
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.model.stored import PairSpread
from pytest_rlperf.options import Config
from pytest_rlperf.pair.counting import CountingPass, learn
from pytest_rlperf.pair.figures import device_notes
from pytest_rlperf.pair.one_side import SideMeasurement
from pytest_rlperf.pair.turns import Pair, PairedMeasurement, PairsMeasured, WarmPair
from pytest_rlperf.spawn.contract import check
from pytest_rlperf.spawn.cpus import CGROUP, cgroup_limits, read_system_file, usable_cpus
from pytest_rlperf.spawn.process import Worker
from pytest_rlperf.spawn.stems import DoubtfulError, Stems, WorkerGroup, imports_more

COUNTED_PAIRS = 3
_PLACE_LEAST, _PLACE_SHARE = 8.0, 0.1  # bytes a call of a line that is worth naming, and the share of all growth
_LONGER_S = 3.0  # for both sides, where a pair is too short to tell growth

WorkerPair: TypeAlias = tuple[Worker, Worker]
"""Base's worker and head's."""

Part = TypeVar("Part")


class UnpairedError(Exception):
    """Pairs would compare nothing: a call is not the same work on both sides, or a side lacks a file of its own."""

    def __init__(self, reason: reasons.Incomparable | reasons.NotCopied | reasons.NotBuilt) -> None:
        super().__init__(reason)
        self.reason = reason


def in_turn(index: int, base: Part, head: Part) -> tuple[Part, Part]:
    """Return both sides' part of a pair in the order they begin: head first in even pairs, base in odd ones."""
    return (base, head) if index % 2 else (head, base)


@dataclass(frozen=True)
class Measuring:
    """One test that is measured: its workers, its settings, the rules that judge it, and its place in the run.

    ``fresh`` where all of its workers are to be new interpreters, ``is_short`` where the run has less time for it than
    the test may take.
    """

    group: WorkerGroup
    settings: Config
    policy: Policy
    lanes: Lanes
    progress: Progress
    order: int = 0
    fresh: bool = False
    is_short: bool = False

    def stems(self, stems: Stems) -> Stems:
        """Return the stems that its workers are to come from."""
        return stems.new_interpreters() if self.fresh else stems


class LivePairs:
    """The live pairs of one test, judged in their order after each, until there is a verdict.

    The first pair shows what the others need; then several are taken at once, each in a thread and a lane of its own.
    A subclass opens and closes the pairs.
    """

    def __init__(self, test: Measuring, history: PairSpread | None = None) -> None:
        self.test = test
        policy = test.policy
        self._history = history
        # The time is shared out so that a pair that confirms has its part.
        self._measurement = PairedMeasurement(
            test.progress,
            least=max((policy.pairs[0] if test.lanes.has_cpus else UNPLACED_LEAST) + 1, slower_least(policy)),
            least_unplaced=UNPLACED_LEAST + 1,
            max_time_s=test.settings.max_time_s,
            tolerance=policy.tolerance,
            reads=any(policy.findings[kind] != OFF for kind in OF_READINGS),
        )
        self._begun = 0
        self._is_over = False
        self._is_first_prepared = threading.Event()
        self._needs_machine = False

    def open(self, index: int, loader: int) -> WorkerPair:
        """Return base's and head's worker of a pair, of the loader of that number, with the test at its call."""
        raise NotImplementedError

    def prepare(self, index: int, pair: WorkerPair) -> None:
        """Do the part that comes before warming up."""

    def adjust(self, pair: WorkerPair) -> None:
        """Do the part that comes after warming up."""

    def close(self, index: int, pair: WorkerPair) -> None:
        """Let a pair that has been measured leave the test."""

    def run(self) -> tuple[Verdict, PairsMeasured]:
        """Take pairs until there is a verdict; return it with the figures of all of them."""
        running: dict[Future[None], int] = {}
        verdict: Verdict | None = None
        with ThreadPoolExecutor(max(self.test.policy.pairs[0], self.test.lanes.count)) as threads:
            try:
                while verdict is None:
                    for _ in range(self._missing(len(running))):
                        index, self._begun = self._begun, self._begun + 1
                        running[threads.submit(self._take, index)] = index
                        self._is_first_prepared.wait()
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    if any(future.exception() is not None for future in done):
                        break
                    for future in done:
                        del running[future]
                    verdict = self._judge(is_last=not running)
            finally:
                self._is_over = True
        # Those that are left failed, or were not needed. The first pair's worker reports the test: its error is shown.
        for future in sorted(running, key=running.__getitem__):
            future.result()
        assert verdict is not None
        measured = self._measurement.measured()
        if verdict.status is not Status.UNDECIDED:  # else other processes are of no interest to a report
            measured = replace(measured, pairs=tuple(replace(pair, other_work=None) for pair in measured.pairs))
        return verdict, measured

    def _missing(self, running: int) -> int:
        """Return how many pairs to begin: the least number at once, then one, or as many as lanes are idle."""
        least = self.test.policy.pairs[0] - self._begun
        if least > 0 or running:
            return max(0, least)
        return self._measurement.begin(max(1, self.test.lanes.free))

    def _loader(self) -> int:
        """Return the number of the loader for the next pair: a change is confirmed by the second one's."""
        ratios = log_ratios(self._measurement.records())
        return int(bool(ratios) and abs(statistics.median(ratios)) > self.test.policy.tolerance)

    def _judge(self, *, is_last: bool) -> Verdict | None:
        """Return the verdict by the pairs so far, of which ``is_last`` says that no other is under way."""
        records = self._measurement.records()
        if not records:
            return None
        verdict = judge_records(records, self.test.policy, final=False, history=self._history)
        if verdict is None and is_last and self._measurement.is_time_up:
            verdict = judge_records(records, self.test.policy, final=True, history=self._history)
        return verdict

    def _take(self, index: int) -> None:
        """Set up one pair in a lane and measure it there, or with the machine to itself where it needs that."""
        try:
            with self.test.lanes.lane(self.test.order, index) as cpu:
                if self._is_over:
                    return
                started_s = time.monotonic()
                loader = self._loader()
                pair = self.open(index, loader)
                warm = self._warm_up(index, pair, loader, started_s)
                self._needs_machine |= warm is not None and warm.needs_machine
                waits = warm is not None and self.test.lanes.count > 1 and self._needs_machine
                if warm is not None and not waits:
                    self._measure(warm, cpu)
                if not waits:
                    self.close(index, pair)
            if warm is not None and waits:
                waiting_s = time.monotonic()
                with self.test.lanes.lane(self.test.order, index, all_of_them=True) as cpu:
                    warm.waited_s = time.monotonic() - waiting_s
                    if not self._is_over:
                        self._measure(warm, cpu)
                self.close(index, pair)
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._is_first_prepared.set()

    def _warm_up(self, index: int, pair: WorkerPair, loader: int, started_s: float) -> WarmPair | None:
        """Have a pair checked, prepared and warm; None where it is not needed any more."""
        check_s = check(in_turn(index, *pair))
        self.prepare(index, pair)
        self._is_first_prepared.set()
        if self._is_over:
            return None
        forked = all(worker.stem.forks for worker in pair)
        setup_s = time.monotonic() - started_s
        made = Pair(index, *pair, check_s, setup_s, loader if forked else None, self._import_s(pair))
        warm = self._measurement.warm_up(made)
        self.adjust(pair)
        return warm

    def _import_s(self, pair: WorkerPair) -> tuple[float, float]:
        """Return what importing the tests took; zeros for later tests of a run, for which it is the same."""
        base_s, head_s = (worker.stem.collected.import_s for worker in pair)
        return (0.0, 0.0) if self.test.order else (base_s, head_s)

    def _measure(self, warm: WarmPair, cpu: int | None) -> None:
        if warm.is_single and cpu is not None:
            warm.place(cpu)
        self._measurement.take(warm)


class LiveComparison(LivePairs):
    """Compares one test's sides, by time and by the counts of the first pairs' workers, which come from ``stems``."""

    def __init__(
        self, test: Measuring, stems: Stems, counting: CountingPass, history: PairSpread | None = None
    ) -> None:
        super().__init__(test, history)
        self._stems = test.stems(stems)
        self._counting = counting
        self._numbers: dict[int, int] = {}  # of the stems, by pair: each pair has others
        self._open: dict[int, WorkerPair] = {}
        self._tallies: dict[int, tuple[Tally | None, Tally | None]] = {}
        self._outputs: dict[int, Seeded] = {}

    def compare(self) -> tuple[Result, Live]:
        """Return head's result, and the comparison with base.

        UnpairedError where there is nothing to measure, or it is not the same work on both sides,
        SideError where a side has the other's code, DoubtfulError where new interpreters should measure.
        """
        try:
            verdict, measured = self.run()
            result, live = self._found(measured, verdict)
            return result, self._with_start_ups(self._with_growth(live))
        except BaseException:
            self.test.group.release()
            raise
        finally:
            for index in self._open.keys() - {0}:
                self._let_go(index)
            self._stems.trim()

    def open(self, index: int, loader: int) -> WorkerPair:
        """Return the workers of a pair."""
        number = self._numbers[index] = self._stems.claim(index, avoid=list(self._numbers.values()))
        if index == 0:
            self.test.progress.show("starting pairs")
            self.test.group.at_end.callback(self._let_go, 0)
        base, head = self._stems.workers(number, loader)
        self._open[index] = base, head
        if index == 0:
            self.test.group.reports_by(head)
        self.test.group.open(in_turn(index, base, head))
        return base, head

    def prepare(self, index: int, pair: WorkerPair) -> None:
        """Check that a pair does the same work with code that may differ; have the first pairs count."""
        base, head = pair
        self._refuse_other_work(base.called, head.called)
        variables = [] if self._stems.fresh else sorted({*base.set_variables, *head.set_variables})
        if variables:
            raise DoubtfulError(f"a test sets {', '.join(variables)}, which libraries read when they are loaded")
        self._outputs[index] = base.seed, base.output, head.output
        self._stems.check_places(base, head)
        if index < COUNTED_PAIRS:
            self._counting.run(in_turn(index, base, head))
            self._tallies[index] = base.tally, head.tally

    def close(self, index: int, pair: WorkerPair) -> None:
        """Let a pair leave the test, but for the first, whose head worker reports it."""
        if index:
            for worker in pair:
                self.test.group.leave(worker)
            self._let_go(index)

    def _let_go(self, index: int) -> None:
        """Give back what a pair had, whose workers have left the test."""
        for worker in self._open.pop(index, ()):
            self._stems.let_go(worker)
        self._stems.give_back(self._numbers[index])

    def _found(self, measured: PairsMeasured, verdict: Verdict) -> tuple[Result, Live]:
        """Return the comparison, from the figures of all pairs and the verdict on their times."""
        sides = self._stems.sides
        tallies = [self._tallies[index] for index in sorted(self._tallies)]
        result, base = (
            replace(
                _at_pace(make_result(self.test.group.key, self.test.group.called, side)),
                counting=learn([tally for tally in counted if tally is not None]),
            )
            for side, counted in (
                (measured.head, [head for _, head in tallies]),
                (measured.base, [base for base, _ in tallies]),
            )
        )
        parts = _contributions(measured, base, verdict)
        labels, carrying = (sides.base.label, sides.head.label), carriers(parts)
        output = compare([self._outputs[index] for index in sorted(self._outputs)])
        live = Live(*labels, base, measured.pairs, parts, carrying, base_commit=sides.commit, output=output)
        return result, live

    def _with_growth(self, live: Live) -> Live:
        """Return the comparison with more calls of the first pair, where those so far only hint at growth.

        Where something grows, one of head's processes shows which lines allocate what it keeps.
        """
        if self.test.policy.findings["growth"] == OFF:
            return live
        if growth.hints(live):
            self.test.progress.show("looking whether memory grows")
            with self.test.lanes.lane(self.test.order, 0):
                live = replace(live, longer=self._measurement.go_on(_LONGER_S))
        found = growth.find(live, self.test.policy)
        if found is None:
            return live
        self.test.progress.show("looking which lines allocate")
        _, head = self._open[0]
        size = sum(found.figures.get(name, 0.0) for name in ("private_bytes", "waiting_bytes"))
        least_bytes = max(_PLACE_LEAST, _PLACE_SHARE * size)
        return replace(live, places=tuple(head.ask(m.FindAllocations(least_bytes))))

    def _with_start_ups(self, live: Live) -> Live:
        """Return the comparison with first calls of new interpreters, where copies of a loader hint at slow ones.

        What only head imports costs no copy anything; the import of the tests is the same for all tests of a run.
        """
        if self._stems.fresh or self.test.policy.findings["first_call"] == OFF:
            return live
        base, head = self._open[0]
        hides = not self.test.order and imports_more(base.loaded, head.loaded)
        if not hides and not first_call.hints(live.pairs[0]):
            return live
        self.test.progress.show("starting new interpreters")
        with self.test.lanes.lane(self.test.order, all_of_them=True):
            while len(live.start_ups) < first_call.START_UPS:
                found = self._start_up(len(live.start_ups))
                live = replace(live, start_ups=(*live.start_ups, found))
                if not first_call.hints(found, 1.0):
                    break
        return live

    def _start_up(self, index: int) -> StartUp:
        """Return what a pair of new interpreters takes to import the tests, and to call the component once."""
        stems = self._stems.new_interpreters()
        number = stems.claim(index, avoid=[0])  # which has the terminal
        try:
            stems.renew(number)
            base, head = stems.workers(number)
            pair = base, head
            self.test.group.open(in_turn(index, *pair))
            check(in_turn(index, *pair))
            stems.check_places(base, head)
            for worker in pair:
                self.test.group.leave(worker)
            return StartUp((base.checked_s or 0.0, head.checked_s or 0.0), self._import_s(pair))
        finally:
            stems.renew(number)
            stems.give_back(number)

    def _refuse_other_work(self, base: m.Called | None, head: m.Called | None) -> None:
        """Raise UnpairedError where a call is not the same work on both sides."""
        assert base is not None
        assert head is not None
        if _work(base) != _work(head):
            sides = self._stems.sides
            works = (work_text(*_work(base)), work_text(*_work(head)))
            raise UnpairedError(
                reasons.Incomparable(Code.WORK, "a call's work", *works, sides.base.label, stores=False)
            )


def make_result(key: str, called: m.Called, measured: SideMeasurement) -> Result:
    """Return the result of a test, made of its workers' figures."""
    return Result(
        nodeid=key,
        component=called.component,
        unit=called.unit,
        items=statistics.fmean(worker.items_per_call for worker in measured.workers),
        workers=measured.workers,
        phases=measured.phases,
        traced_call_s=measured.traced_call_s,
        notes=(*measured.notes, *growth.notes(measured.usages), *device_notes(measured.workers)),
    )


def _work(called: m.Called) -> tuple[str, str, float]:
    return called.component, called.unit, called.items


def _at_pace(result: Result) -> Result:
    """Return ``result`` with its phases as shares of the figure that is judged.

    Two processes on one CPU, on a machine that others use, are held up within slices; the figure leaves that out.
    """
    if not result.traced_call_s:
        return result
    pace = result.call_s / result.traced_call_s
    phases = tuple(replace(phase, total_s=pace * phase.total_s, self_s=pace * phase.self_s) for phase in result.phases)
    return replace(result, phases=phases, traced_call_s=result.call_s)


def _contributions(measured: PairsMeasured, base: Result, verdict: Verdict) -> tuple[Contribution, ...]:
    """Return the part of every phase in a change, where there is one."""
    if verdict.status not in (Status.SLOWER, Status.FASTER) or verdict.estimate is None:
        return ()
    ratio = verdict.estimate.ratio
    # The estimate is of the length of a call, traced slices are of the share of it that a phase has.
    blocks = [
        (base_shares, {path: ratio * share for path, share in head_shares.items()})
        for base_shares, head_shares in (block.shares() for block in measured.traced)
    ]
    return contributions(blocks, base.call_s, base.call_s * (ratio - 1))


# --------------------------------------------------------------------------- lanes


_CORES = Path("/sys/devices/system/cpu")


class LaneCount(NamedTuple):
    """How many lanes this machine has: its ``cpus``, one of each core; ``quota`` CPUs are fewer where that is set."""

    cpus: tuple[int, ...]
    quota: float | None

    @property
    def most(self) -> int:
        """The most lanes at once: one at least, also where the system does not list its CPUs."""
        cpus = max(1, len(self.cpus))
        return cpus if self.quota is None else max(1, min(cpus, int(self.quota)))


def count_lanes(cpus: Collection[int] | None = None, cores: Path = _CORES, cgroup: Path = CGROUP) -> LaneCount:
    """Return the lanes of the CPUs that this process may use.

    Hyper-threads of one core share its arithmetic units, so they are one lane.
    """
    usable = sorted(usable_cpus() if cpus is None else cpus)
    by_core: dict[str, int] = {}
    for cpu in usable:
        siblings = read_system_file(cores / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        by_core.setdefault(siblings, cpu)
    limits = (text.partition(" ")[::2] for text in cgroup_limits("cpu.max", cgroup))  # the tightest one counts
    quota = min((int(limit) / int(period) for limit, period in limits if (limit + period).isdigit()), default=None)
    return LaneCount(tuple(by_core.values()), quota)


class Lanes:
    """Hands out CPUs to threads that measure: ``count`` at once, or all of them to one thread.

    Earlier tests come first, and of one test the earlier pairs. ``cpus`` are those to choose from, none where the
    kernel places all work. Where there are more of them than lanes, they take turns: one may be slower for a while.
    """

    def __init__(self, count: int, cpus: Collection[int]) -> None:
        self.count = count
        self.has_cpus = len(cpus) >= count
        self._cpus: list[int | None] = list(cpus) if self.has_cpus else [None] * count
        self._used = 0
        self._queue: list[tuple[int, int, int]] = []
        self._arrivals = itertools.count()
        self._changed = threading.Condition()
        self._is_closed = False

    @property
    def free(self) -> int:
        """How many lanes nobody has or waits for."""
        with self._changed:
            return 0 if self._queue else self.count - self._used

    @contextmanager
    def lane(self, test: int, pair: int = 0, *, all_of_them: bool = False) -> Iterator[int | None]:
        """Wait for a lane, or for the whole machine, and yield its CPU: None where the kernel places all work.

        ``test`` and ``pair`` are its place in the run. MeasurementError where the run has stopped.
        """
        wanted = self.count if all_of_them else 1
        with self._changed:
            place = (test, pair, next(self._arrivals))
            self._queue.append(place)
            self._changed.wait_for(
                lambda: self._is_closed or (min(self._queue) == place and self._used + wanted <= self.count)
            )
            self._queue.remove(place)
            if self._is_closed:
                raise MeasurementError("the run was stopped")
            self._used += wanted
            cpu = self._cpus.pop(0)
            self._changed.notify_all()
        try:
            yield cpu
        finally:
            with self._changed:
                self._used -= wanted
                self._cpus.append(cpu)
                self._changed.notify_all()

    def close(self) -> None:
        """Have all who wait raise MeasurementError: the run has stopped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
