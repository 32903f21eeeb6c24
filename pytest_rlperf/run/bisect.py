"""The search for the first slower commit or release: probes by live pairs with the good one, until it is named."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from pytest_rlperf import units
from pytest_rlperf.errors import SideError
from pytest_rlperf.fixtures import result_key
from pytest_rlperf.judge.bisection import PAIRS_MOST, SURE, Bisection, is_partial, next_probe
from pytest_rlperf.judge.live import PairLimits, slower_least
from pytest_rlperf.judge.policy import LIVE_TOLERANCE
from pytest_rlperf.model import Outcome, Sides, Status
from pytest_rlperf.model.bisection import BisectionReport, FirstSlower, Skipped
from pytest_rlperf.model.notes import AddedPackages, TextNote
from pytest_rlperf.options import Config
from pytest_rlperf.report.bisection import render_bisection
from pytest_rlperf.report.wording import note_lines
from pytest_rlperf.run.hooks import MeasuredRun
from pytest_rlperf.run.lanes import LanesOfTest
from pytest_rlperf.run.live_comparison import COUNTED_PAIRS, LiveComparison, OtherWorkError
from pytest_rlperf.run.loop import LEAST_PAIR_S, Fabricated, Finished, TestInLane, TestLoop, make_project
from pytest_rlperf.run.one_test import Measured, conclude, counting_pass, essence
from pytest_rlperf.sides.cache import open_cache
from pytest_rlperf.sides.history import find_history
from pytest_rlperf.workers import messages as m
from pytest_rlperf.workers.pool import QUIT_LIMIT_S, BaseSide, WorkerPools
from pytest_rlperf.workers.process import LeftEarlyError, WorkerLostError
from pytest_rlperf.writing import write_whole

CONTINUE = "continue"
PROBE_PAIRS = 3
_REFRESH_S = 0.1
_STATE = "bisection.json"
_BUDGET_SPENT = "the budget is spent"


@dataclass
class State:
    """The search as it is kept between runs: by test and commit the log ratios of pairs, and what cannot be run."""

    spec: str
    tests: list[str]
    bad: str = ""
    log_ratios: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    placed: dict[str, bool] = field(default_factory=dict)
    untestable: dict[str, dict[str, str]] = field(default_factory=dict)  # by test: the reasons by commit
    probes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Compared:
    """The comparison of two candidates, by test: its outcome, or why it could not be made."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    on_good: dict[str, str] = field(default_factory=dict)


class BisectRun(MeasuredRun):
    """The hooks of a run with --rlperf-bisect."""

    def __init__(self, config: pytest.Config, settings: Config, path: list[str]) -> None:
        super().__init__(config, settings, path)
        self._place = open_cache(config.rootpath).directory / _STATE
        self._state = _read(self._place) if settings.bisect == CONTINUE else None
        self._search: Search | None = None

    def pytest_report_header(self) -> list[str]:
        """Show the range of the search."""
        assert self._settings.bisect is not None
        spec = self._settings.bisect if self._state is None else f"{self._state.spec}, continued"
        return [f"rlperf: the first slower one in {spec}", *note_lines(self._run.notes, verbose=False)]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the measured tests; of a search that is continued, its own."""
        super().pytest_collection_modifyitems(config, items)
        if self._state is not None:
            items[:] = [item for item in items if result_key(item) in self._state.tests]

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> str:
        """Show how many tests are searched."""
        return f"rlperf: searching by {units.counted(len(items), 'test')}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Search."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if not session.items:
            raise pytest.UsageError("--rlperf-bisect: no test that was chosen uses an rlperf fixture")
        self._run.gated = len(session.items)
        assert self._settings.bisect is not None
        state = self._state or State(self._settings.bisect, [result_key(item) for item in session.items])
        loop = BisectLoop(session.config, self._run, self._path, self._make_lanes(), self._live_line())
        self._search = Search(loop, session, state, self._place)
        try:
            self._search.run()
        except SideError as error:
            raise pytest.UsageError(f"--rlperf-bisect={self._settings.bisect}: {error}") from None
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Store nothing."""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the commits found, or the ranges that are left."""
        if self._search is None or self._search.report is None:
            return
        terminalreporter.section("rlperf bisect")
        notes = note_lines(self._run.notes, verbose=False)
        width, color = terminalreporter._tw.fullwidth, terminalreporter.hasmarkup
        terminalreporter.write(render_bisection(self._search.report, notes, width=width, color=color))


class BisectLoop(TestLoop):
    """Compares two candidates by any tests at once, each pair of candidates in workers of its own."""

    def compare(
        self,
        sides: Sides,
        pools: WorkerPools,
        items: Sequence[pytest.Item],
        limits: PairLimits,
        limit_s: float,
        used: int,
        title: str,
    ) -> Compared:
        """Compare by tests; pairs begin with processes of other layouts than those of the first ``used`` pairs.

        A test takes ``limit_s`` at the most, or the time of the fewest pairs that can be SLOWER.
        """
        base, head = (pools.add(f"{side.label} worker", side, sides) for side in (sides.base, sides.head))
        try:
            base_side = BaseSide(sides, base, head)
            for _ in range(used):
                head.claim()
            return self._compare_all(base_side, pools, items, limits, limit_s, title)
        finally:
            for pool in (base, head):
                pool.close(QUIT_LIMIT_S)

    def _compare_all(
        self,
        base_side: BaseSide,
        pools: WorkerPools,
        items: Sequence[pytest.Item],
        limits: PairLimits,
        limit_s: float,
        title: str,
    ) -> Compared:
        compared = Compared()
        tests: list[TestInLane] = []
        for order, item in enumerate(items):
            lanes = LanesOfTest(self._lanes, order, tests[-1].lanes if tests else None)
            tests.append(TestInLane(item, None, lanes, self._run, math.inf))
        with ThreadPoolExecutor(self._lanes.count) as threads:
            try:
                left = {
                    threads.submit(test.run, lambda test: self._one(base_side, test, limits, limit_s, compared), None)
                    for test in tests
                }
                while left:
                    _, left = wait(left, _REFRESH_S)
                    steps = [test.progress.step for test in tests if test.progress.step is not None]
                    self._progress.begin(title)
                    self._progress.show(steps[0] if steps else "starting workers")
            except BaseException:
                self._lanes.close()
                pools.cancel()
                threads.shutdown(cancel_futures=True)
                raise
        for test in tests:
            _add_reason(test, compared)
        return compared

    def _one(
        self, base_side: BaseSide, test: TestInLane, limits: PairLimits, limit_s: float, compared: Compared
    ) -> m.Conclude:
        """Compare by one test."""
        started_s, key, settings = time.monotonic(), test.group.key, test.settings
        counting = counting_pass(settings, 2 * COUNTED_PAIRS)
        policy = self._run.policy(settings)
        max_time_s = settings.max_time_s * max(1.0, limits.most / settings.pairs[1])
        max_time_s = min(max_time_s, max(limit_s, LEAST_PAIR_S * max(limits.least, slower_least(policy))))
        comparison = LiveComparison(
            test.group, base_side, policy, limits, test.lanes, counting, test.progress, max_time_s
        )
        try:
            head, live = comparison.compare()
        except OtherWorkError:
            compared.reasons[key] = "a call is other work there"
            return m.Conclude(None, m.Failure(compared.reasons[key], regression=False))
        except (LeftEarlyError, WorkerLostError) as stopped:
            place = compared.on_good if base_side.owns(stopped.worker) else compared.reasons
            place[key] = essence(str(stopped))
            raise
        conclusion = conclude(self._run, settings, Measured(head, head, live=live), time.monotonic() - started_s)
        compared.outcomes[key] = conclusion.outcome
        return m.Conclude(head, None)


def _add_reason(test: TestInLane, compared: Compared) -> None:
    """Keep why a test has no outcome, where nothing else is known of it."""
    key, text = test.group.key, ""
    while not test.events.empty():
        event = test.events.get()
        if isinstance(event, Fabricated):
            text = event.text
        elif isinstance(event, Finished) and event.error is not None:
            if not isinstance(event.error, pytest.UsageError):
                raise event.error
            text = str(event.error)
    if key not in compared.outcomes and key not in compared.on_good:
        compared.reasons.setdefault(key, essence(text))


class Search:
    """The search by all tests of a session; ``report`` has its result, also where it was stopped."""

    def __init__(self, loop: BisectLoop, session: pytest.Session, state: State, place: Path) -> None:
        self.report: BisectionReport | None = None
        self._loop = loop
        self._session = session
        self._state = state
        self._place = place
        self._items = {result_key(item): item for item in session.items}
        self._run = loop._run
        self._searches: dict[str, Bisection] = {}
        self._wholes: dict[str, Outcome] = {}
        self._steps: dict[str, Outcome] = {}
        self._started_s = time.monotonic()
        self._before_s = state.seconds

    def run(self) -> None:
        """Search until every test has its commit or its range; SideError where the range is none to search."""
        loop, settings = self._loop, self._run.settings
        project = make_project(self._session, loop._path, settings)
        pools = loop._worker_pools(project)
        stopped = ""
        try:
            loop._progress.begin(self._state.spec)
            self._history = find_history(self._state.spec, project, loop._progress.show)
            self._pools = pools
            try:
                self._begin()
                stopped = self._probe_all() or self._compare_steps()
            except KeyboardInterrupt:
                stopped = "interrupted"
                raise
            finally:
                if self._searches or stopped:
                    self.report = self._make_report(stopped)
        finally:
            loop._progress.clear()
            pools.close()

    def _begin(self) -> None:
        """Compare the last candidate with the good one, unless that is known; SideError where it is not slower."""
        history, state = self._history, self._state
        last = history[len(history.candidates)]
        state.bad = last.key
        # As names of commits may move until the search is continued.
        state.spec = history.spec(0, len(history.candidates))
        absent = [key for key in state.tests if key not in self._items]
        if absent:
            tests = units.counted(len(absent), "test")
            self._run.note(TextNote(f"left out {tests} of this search, not collected here: {', '.join(absent[:3])}"))
        missing = [key for key in self._items if state.bad not in state.log_ratios.get(key, {})]
        if missing:
            self._save()  # in place of an earlier search's, for one that is interrupted here
            compared = self._compare(0, len(history.candidates), missing, self._most_pairs(), "the whole range")
            errors = {}
            for key in missing:
                try:
                    self._take_whole(key, compared)
                except SideError as error:
                    errors[key] = error
            if errors.keys() == self._items.keys():
                raise next(iter(errors.values()))
            state.tests = [key for key in state.tests if key not in errors]
            self._run.note(*(TextNote(f"left out: {error}") for error in errors.values()))
            self._save()
        self._searches = {key: self._search_of(key) for key in state.tests if key in self._items}

    def _take_whole(self, key: str, compared: Compared) -> None:
        history = self._history
        good, bad = history.good.title, history[len(history.candidates)].title
        if key in compared.on_good:
            raise SideError(f"{key} does not run on {good}: {compared.on_good[key]}")
        if key in compared.reasons:
            raise SideError(f"{key} does not run on {bad}: {compared.reasons[key]}")
        outcome = compared.outcomes[key]
        estimate, live = outcome.verdict.estimate, outcome.live
        if outcome.verdict.status is not Status.SLOWER or estimate is None or live is None:
            change = ""
            if estimate is not None:
                low, high = (units.change(bound, estimate.ratio) for bound in (estimate.low, estimate.high))
                change = f": {units.change(estimate.ratio)} [{low}, {high}]"
            advice = "name another range, or a smaller --rlperf-tolerance"
            if outcome.verdict.status is Status.UNDECIDED:
                advice = "search on a quieter machine, or allow more --rlperf-pairs"
                if outcome.verdict.was_cut_short:
                    advice = "allow more --rlperf-max-time"
                    advice += "" if self._run.settings.budget_s is None else " and --rlperf-budget"
            if any(history.suspects):
                files = ", ".join(dict.fromkeys(file for suspect in history.suspects for file in suspect.files))
                advice += f"; packages stay as installed here, and {files} changed (--rlperf-bisect=pip:NAME==GOOD)"
            pairs = "" if live is None else f" after {units.counted(len(live.pairs), 'pair')}"
            raise SideError(f"{key} is {outcome.verdict.status.value} on {bad} against {good}{pairs}{change}: {advice}")
        self._wholes[key] = outcome
        self._state.log_ratios.setdefault(key, {})[self._state.bad] = list(live.log_ratios)
        self._state.placed[key] = all(pair.placed is not None for pair in live.pairs)

    def _search_of(self, key: str) -> Bisection:
        """Return the search by one test, with all that is known."""
        history, state = self._history, self._state
        numbers = {candidate.key: number for number, candidate in enumerate(history.candidates, 1)}
        settings = self._run.settings.for_test(self._items[key])
        known = {numbers[commit]: tuple(pairs) for commit, pairs in state.log_ratios[key].items() if commit in numbers}
        untestable = frozenset(numbers[commit] for commit in state.untestable.get(key, {}) if commit in numbers)
        return Bisection(
            len(numbers), settings.tolerance or LIVE_TOLERANCE, known, untestable, placed=state.placed[key]
        )

    def _probe_all(self) -> str:
        """Probe until no search is left; return why it ended before, or nothing."""
        longest_s = 0.0
        while (number := next_probe(list(self._searches.values()))) is not None:
            begun_s = time.monotonic()
            if self._left_s() < longest_s:
                return _BUDGET_SPENT
            keys = [key for key, search in self._searches.items() if not search.is_over and search.gain(number)]
            limits = PairLimits(PROBE_PAIRS, PROBE_PAIRS)
            candidate = self._history[number]
            compared = self._compare(0, number, keys, limits, candidate.title)
            for key in keys:
                self._take_probe(key, number, compared)
            self._save()
            longest_s = max(longest_s, time.monotonic() - begun_s)
        return ""

    def _take_probe(self, key: str, number: int, compared: Compared) -> None:
        state, commit, search = self._state, self._history[number].key, self._searches[key]
        state.probes[key] = state.probes.get(key, 0) + 1
        if key in compared.on_good:
            raise SideError(f"{key} does not run on {self._history.good.title}: {compared.on_good[key]}")
        outcome = compared.outcomes.get(key)
        if outcome is None or outcome.live is None:
            state.untestable.setdefault(key, {})[commit] = compared.reasons.get(key, "")
            self._searches[key] = search.without(number)
            return
        state.log_ratios[key].setdefault(commit, []).extend(outcome.live.log_ratios)
        self._searches[key] = search.after(number, outcome.live.log_ratios)

    def _compare_steps(self) -> str:
        """Compare every commit that is named with the last one before it that runs; return why not, or nothing."""
        named: dict[tuple[int, int], list[str]] = {}
        for key, search in self._searches.items():
            best = search.likeliest()
            if best.chance >= SURE:
                named.setdefault((best.first - 1, best.last), []).append(key)
        for (before, after), keys in named.items():
            if (before, after) == (0, len(self._history.candidates)) and all(key in self._wholes for key in keys):
                self._steps |= {key: self._wholes[key] for key in keys}
                continue
            if self._left_s() <= 0:
                return _BUDGET_SPENT
            title = f"{self._history[after].title} with the one before"
            self._steps |= self._compare(before, after, keys, self._most_pairs(), title).outcomes
        return ""

    def _left_s(self) -> float:
        """Return what is left of the time for the whole search."""
        budget_s = self._run.settings.budget_s
        return math.inf if budget_s is None else budget_s - (time.monotonic() - self._started_s)

    def _most_pairs(self) -> PairLimits:
        """Return the limits of the first and the last comparison, on which a search rests: a gate's pairs, or more."""
        least, most = self._run.settings.pairs
        return PairLimits(least, max(most, PAIRS_MOST))

    def _compare(self, base: int, head: int, keys: Sequence[str], limits: PairLimits, title: str) -> Compared:
        """Compare two candidates; where the good one cannot be had, that is the search's SideError."""
        loop, history = self._loop, self._history
        if base == 0:
            history.sides(0, 0)
        try:
            sides = history.sides(base, head)
        except SideError as error:
            return Compared(reasons=dict.fromkeys(keys, str(error).splitlines()[0]))
        for found in history.additions():
            assert found.additions is not None
            self._run.note(AddedPackages(found.base.label, found.additions))
        commit = history[head].key
        used = max((len(self._state.log_ratios.get(key, {}).get(commit, ())) for key in keys), default=0)
        items = [self._items[key] for key in keys]
        limit_s = self._left_s() * min(loop._lanes.count, len(items)) / len(items)
        return loop.compare(sides, self._pools, items, limits, limit_s, 0 if base else used, title)

    def _save(self) -> None:
        self._state.seconds = self._before_s + time.monotonic() - self._started_s
        write_whole(self._place, json.dumps(asdict(self._state)).encode())

    def _make_report(self, stopped: str) -> BisectionReport:
        state, history = self._state, self._history
        reasons = {commit: reason for by_commit in state.untestable.values() for commit, reason in by_commit.items()}
        return BisectionReport(
            count=len(history.candidates),
            seconds=self._before_s + time.monotonic() - self._started_s,
            found=tuple(self._found(key, search) for key, search in self._searches.items()),
            skipped=tuple(Skipped(each, reasons[each.key]) for each in history.candidates if each.key in reasons),
            suspects=history.suspects,
            stopped=stopped,
            command=f"pytest --rlperf-bisect={CONTINUE} {shlex.join(self._paths())}".rstrip() if stopped else "",
        )

    def _found(self, key: str, search: Bisection) -> FirstSlower:
        history, best, estimate = self._history, search.likeliest(), search.whole()
        is_named = best.chance >= SURE
        left = best if is_named else search.range_left()
        step = self._steps.get(key)
        spec = history.spec(left.first - 1, left.last, digits=12)
        return FirstSlower(
            test=key,
            candidates=history.candidates[left.first - 1 : left.last],
            chance=left.chance,
            is_named=is_named,
            probes=self._state.probes.get(key, 0),
            pairs=sum(map(len, search.pairs.values())),
            whole=(estimate.ratio, estimate.low, estimate.high),
            step=step,
            is_partial=step is not None and is_partial(step.verdict.estimate, estimate),
            command=f"pytest --rlperf-bisect={shlex.quote(spec)} {shlex.quote(key)}",
        )

    def _paths(self) -> list[str]:
        config = self._session.config
        found: list[str] = config._parser.parse_known_args(list(map(str, config.invocation_params.args))).file_or_dir
        return found


def _read(place: Path) -> State:
    """Return the search that was kept; UsageError where there is none."""
    try:
        return State(**json.loads(place.read_bytes()))
    except FileNotFoundError:
        raise pytest.UsageError(f"--rlperf-bisect={CONTINUE}: no search was begun here; give GOOD[..BAD]") from None
    except (OSError, ValueError, TypeError) as error:
        raise pytest.UsageError(f"--rlperf-bisect={CONTINUE}: {place} cannot be read: {error}") from None
