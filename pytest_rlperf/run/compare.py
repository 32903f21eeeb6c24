"""One test's live comparison: by time, by counts, and by the findings that its pairs hint at."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf import units, wire
from pytest_rlperf.judge.findings import compiles, drift, first_call, growth
from pytest_rlperf.judge.findings.outputs import Seeded, compare
from pytest_rlperf.judge.live import TRACED_LEAST, carriers
from pytest_rlperf.model import reasons
from pytest_rlperf.model.findings import OFF
from pytest_rlperf.model.judged import Status, Verdict
from pytest_rlperf.model.live import Live, PairRecord, StartUp
from pytest_rlperf.model.measured import Compiled, FunctionCounts, Result, work_text
from pytest_rlperf.model.reasons import Code
from pytest_rlperf.model.stored import PairSpread
from pytest_rlperf.reach.reads import check_loaded
from pytest_rlperf.run.counting import CountingPairs
from pytest_rlperf.run.drivers import Drivers
from pytest_rlperf.run.endpoints import PairDriver, RetryFreshError
from pytest_rlperf.run.pairs import OpenPair, Pairs, PairsTaken
from pytest_rlperf.run.results import contributions_of, make_result, scaled_to_judged_time
from pytest_rlperf.run.schedule import Steps
from pytest_rlperf.run.test import OTHER_SEED, SEED, OpenTest, UnpairedError
from pytest_rlperf.sides.environment import CACHES
from pytest_rlperf.spawn.variables import differing_variables

_PLACE_LEAST, _PLACE_SHARE = 8.0, 0.1  # bytes per call of a line that is worth naming, and the share of all growth
_PLACES_MOST = 3
_PROGRAMS_MOST = 2
_LONGER_S = 3.0  # for both sides, if a pair is too short to show growth
_IMPORT = re.compile(r"^[ \t]*(?:import[ \t]|from[ \t]+[^. \t]).*", re.MULTILINE)  # of another package, perhaps


class Compared(NamedTuple):
    """The head's result, the comparison with the base, the verdict by time, and each side's counts by functions."""

    head: Result
    live: Live
    verdict: Verdict
    functions: tuple[Sequence[FunctionCounts], Sequence[FunctionCounts]]


class LiveComparison:
    """Compares one test's sides, by time and by the counts of the first pairs' workers, with pairs of ``drivers``."""

    def __init__(self, test: OpenTest, drivers: Drivers) -> None:
        self._test = test
        self._drivers = drivers.of(fresh=test.fresh)
        self._counting = CountingPairs(test.settings)
        self._used: list[PairDriver] = []
        self._outputs: dict[int, Seeded] = {}
        self._loaded: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})  # of the first pair

    def compare(self, history: PairSpread | None = None) -> Steps[Compared]:
        """Return the comparison.

        UnpairedError if there is nothing to measure, or if the work differs between the sides. SideError if a side has
        the other side's code. RetryFreshError if new interpreters should measure.
        """
        taken = yield from Pairs(self._test, self._open, history).take()
        taken = yield from self._with_traces(taken)
        head, live = self._found(taken)
        live = yield from self._with_more_calls(live, taken.first)
        live = yield from self._with_places(live, taken.first)
        live = yield from self._with_compiled(live, taken.first)
        live = yield from self._with_start_ups(live)
        self._drivers.trim()
        return Compared(head, live, taken.verdict, self._counting.functions())

    # ------------------------------------------------------------------ its pairs

    def _open(self, index: int, server: int) -> Steps[OpenPair]:
        """Return a pair at its call, whose code may differ and whose work is the same; the first pairs count.

        The first pair stays, as its head worker reports the test.
        """
        test, drivers = self._test, self._drivers
        if not index:
            test.show("starting pairs")
        driver = yield from drivers.lease(self._used, server=server)
        self._used.append(driver)
        head_first, order = not index % 2, self._counting.order()
        seed = OTHER_SEED if order is not None and index > 1 else SEED  # a count that depends on it is not exact
        with test.having(driver):
            called = yield from test.open(driver, [seed] * 2, last_first=head_first)
            checked = yield from self._checked(driver)
            self._refuse_other_work(*called)
            self._outputs[index] = seed, checked[0].output, checked[1].output
            if order is not None:
                tallies = yield from test.ask(driver, order)
                self._counting.add(tallies, head_first=head_first)
        has_counts = all(each is not None and each.workers > 1 for each in self._counting.learned())
        return OpenPair(driver, stays=not index, import_s=self._import_s(driver), has_counts=has_counts)

    def _checked(self, driver: PairDriver) -> Steps[list[wire.Checked]]:
        """Check a pair's components and return the results; the errors are those of :meth:`compare`."""
        checked = yield from self._test.ask(driver, wire.CheckAll())
        self._drivers.learn(*checked)
        base, head = driver.loaded(checked)
        if driver is self._test.reporter:
            self._loaded = base, head
        changed = {
            name
            for ready, each in zip(driver.collected, checked, strict=True)
            for name in differing_variables(ready.variables, each.variables)
            if name not in CACHES  # which this run has set
        }
        if changed and not self._drivers.fresh:
            names = ", ".join(sorted(changed))
            raise RetryFreshError(f"a test sets or removes {names}, which libraries read when they are loaded")
        check_loaded(self._drivers.sides, base, head, driver.collected[-1].loaded)
        return checked

    def _import_s(self, driver: PairDriver) -> tuple[float, float]:
        """Return the seconds to import the tests; zeros for later tests of a run, which share the import."""
        base, head = driver.collected
        return (0.0, 0.0) if self._test.order else (base.import_s, head.import_s)

    def _refuse_other_work(self, base: wire.Called, head: wire.Called) -> None:
        """Raise UnpairedError if a call is not the same work on both sides."""
        works = [(each.component, each.unit, each.items) for each in (base, head)]
        if works[0] != works[1]:
            texts = (work_text(*works[0]), work_text(*works[1]))
            label = self._drivers.sides.base.label
            raise UnpairedError(reasons.Incomparable(Code.WORK, "a call's work", *texts, label, stores=False))

    # ------------------------------------------------------------------ what they show

    def _with_traces(self, taken: PairsTaken) -> Steps[PairsTaken]:
        """Return the pairs, with more traced blocks of the first one if calls are so long that there are too few."""
        test, measured = self._test, taken.measured
        missing = TRACED_LEAST - len(measured.traced)
        if taken.verdict.status is not Status.SLOWER or missing <= 0:
            return taken
        test.show("looking where the time goes")
        more = test.ask(taken.first, wire.TraceMore(missing), test.settings.max_time_s + test.patience_s)
        traced = yield from test.in_lane(taken.first, more)
        return taken._replace(measured=replace(measured, traced=(*measured.traced, *traced)))

    def _found(self, taken: PairsTaken) -> tuple[Result, Live]:
        """Return the head's result and the comparison, from the figures of all pairs."""
        test, sides, measured = self._test, self._drivers.sides, taken.measured
        assert test.called is not None
        base, result = (
            replace(
                scaled_to_judged_time(make_result(test.key, test.called, measured.of_side(side))), counting=counting
            )
            for side, counting in zip(("base", "head"), self._counting.learned(), strict=True)
        )
        parts = contributions_of(measured, base, taken.verdict)
        labels, carrying = (sides.base.label, sides.head.label), carriers(parts)
        output = compare([self._outputs[index] for index in sorted(self._outputs)])
        live = Live(
            *labels,
            base,
            measured.pairs,
            parts,
            carrying,
            base_commit=sides.commit,
            output=output,
            rare_calls=taken.rare_calls,
        )
        return result, live

    def _with_more_calls(self, live: Live, first: PairDriver) -> Steps[Live]:
        """Return the comparison, with more calls of the first pair if those so far only hint at growth or drift.

        A head that is seen to leave files open would run out of them.
        """
        test, levels = self._test, self._test.policy.findings
        may_drift = levels["drift"] != OFF and growth.find(live, test.policy) is None and drift.hints(live)
        if not may_drift and (levels["growth"] == OFF or not growth.hints(live)):
            return live
        test.show("looking whether calls keep memory or get slower")
        more = test.ask(first, wire.GoOn(_LONGER_S), _LONGER_S + test.patience_s)
        longer = yield from test.in_lane(first, more)
        return replace(live, longer=tuple(longer))

    def _with_places(self, live: Live, first: PairDriver) -> Steps[Live]:
        """Return the comparison, with the lines that allocate the memory that calls of the head keep, if they do."""
        test = self._test
        found = None if test.policy.findings["growth"] == OFF else growth.find(live, test.policy)
        if found is None or growth.ALLOCATED.isdisjoint(found.figures):
            return live
        test.show("looking which lines allocate")
        kept = yield from test.in_lane(first, self._allocations(first, growth.period(live)))
        size = sum(found.figures.get(name, 0.0) for name in ("private_bytes", "waiting_bytes"))
        return replace(live, places=_places(*kept, max(_PLACE_LEAST, _PLACE_SHARE * size)))

    def _with_compiled(self, live: Live, first: PairDriver) -> Steps[Live]:
        """Return the comparison, with the names of the head's compiled programs if its calls may compile more."""
        policy = self._test.policy
        if policy.findings["compiles"] == OFF or not (compiles.hints(live) or compiles.find(live, policy)):
            return live
        found: list[Compiled] = yield from self._test.ask(first, wire.Relay(wire.FindCompiled()))
        return replace(live, compiled=tuple(found[:_PROGRAMS_MOST]))

    def _allocations(
        self, driver: PairDriver, calls: int
    ) -> Steps[tuple[list[wire.Allocation], list[wire.Allocation]]]:
        """Return the lines that allocate the memory that ``calls`` calls keep, on the base and on the head."""
        order = wire.FindAllocations(calls)
        base = yield from self._test.ask(driver, wire.Relay(order, to_base=True))
        return base, (yield from self._test.ask(driver, wire.Relay(order)))

    def _with_start_ups(self, live: Live) -> Steps[Live]:
        """Return the comparison, with first calls of new interpreters if copies of a process hint at slow ones.

        A module that only the head imports costs a copy nothing; all tests of a run share the import of the tests.
        """
        test, usual_s = self._test, first_call.usual_calls_s(live)
        assert test.called is not None
        if self._drivers.fresh or test.called.anew or test.policy.findings["first_call"] == OFF:
            return live
        hides = not test.order and _imports_more(*self._loaded)
        checked = () if test.observed is None else test.observed.checked
        seen: list[PairRecord | StartUp] = [live.pairs[0]]
        if checked:
            seen.append(StartUp(_starts_s(checked, usual_s), (0.0, 0.0)))
        if not hides and not any(first_call.hints(each, usual_s) for each in seen):
            return live
        test.show("starting new interpreters")
        held = yield from test.lane(whole=True)
        with held:
            while len(live.start_ups) < first_call.START_UPS:
                found = yield from self._start_up(usual_s)
                live = replace(live, start_ups=(*live.start_ups, found))
                if not first_call.hints(found, usual_s, 1.0):
                    break
        return live

    def _start_up(self, usual_s: tuple[float, float]) -> Steps[StartUp]:
        """Return how long a pair of new interpreters takes to import the tests, and to call the component once."""
        test, drivers = self._test, self._drivers.new_interpreters()
        driver = yield from drivers.lease(new=True)
        driver.is_worn = True  # the next ones are new processes, too
        with test.having(driver):
            yield from test.open(driver, [SEED] * 2, last_first=True)
            checked = yield from self._checked(driver)
            yield from test.leave(driver)
        return StartUp(_starts_s(checked, usual_s), self._import_s(driver))


def _starts_s(checked: Sequence[wire.Checked], usual_s: tuple[float, float]) -> tuple[float, float]:
    """Return the seconds of the first calls alone, on the base and on the head."""
    base, head = checked
    return base.start_s(usual_s[0]), head.start_s(usual_s[1])


def _places(base: Iterable[wire.Allocation], head: Iterable[wire.Allocation], least: float) -> tuple[str, ...]:
    """Return the lines of the head that keep at least ``least`` bytes per call more than equal lines of the base.

    If none does, return the files whose lines do together.
    """
    known = defaultdict[tuple[str, str], float](float)
    for each in base:
        known[each.file, each.code] += each.bytes
    lines, files = defaultdict[str, float](float), defaultdict[str, float](float)
    for each in head:
        more = each.bytes - known[each.file, each.code]
        lines[f"{each.file}:{each.line}"] += more
        files[each.file] += max(0.0, more)
    for sizes in (lines, files):
        worth = sorted(((size, place) for place, size in sizes.items() if size >= least), reverse=True)
        if worth:
            return tuple(f"{place} ({units.quantity(size)}B a call)" for size, place in worth[:_PLACES_MOST])
    return ()


def _imports_more(base: Mapping[str, str], head: Mapping[str, str]) -> bool:
    """Whether the head's files, by their modules, have import lines that the base's files do not have."""
    return not _import_lines(head.values()) <= _import_lines(base.values())


def _import_lines(files: Iterable[str]) -> set[str]:
    lines: set[str] = set()
    for file in files:
        with contextlib.suppress(OSError):  # a file that cannot be read imports nothing that is known
            text = Path(file).read_text(encoding="utf-8", errors="replace") if file.endswith(".py") else ""
            lines |= {found.strip() for found in _IMPORT.findall(text)}
    return lines
