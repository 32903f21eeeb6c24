"""Writes to the terminal or to a log: progress while tests are measured, the summary, a self-check, a search."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.errors import for_log, in_encoding, shown, shown_lines
from pytest_rlperf.model.judged import Fitness, Outcome, Selfcheck, SlowdownTrial, Status
from pytest_rlperf.model.measured import test_name
from pytest_rlperf.model.notes import Plan, UnderWay
from pytest_rlperf.report.summary import Summary, is_plain
from pytest_rlperf.report.table import (
    STYLES,
    Column,
    Table,
    folded,
    make_table,
    print_facts,
    print_table,
    rendered,
    shortened,
    table_lines,
    table_text,
)
from pytest_rlperf.report.tables import (
    counter_lines,
    device_tables,
    phase_table,
    share_table,
    verdict_kind,
    verdict_label,
    verdict_line,
    verdict_table,
)
from pytest_rlperf.report.wording import (
    blame_text,
    cost_text,
    fitness_lines,
    longer,
    message,
    pace_text,
    phases_note,
    plan_text,
    remedy_text,
    touched_lines,
    under_way_text,
)

if TYPE_CHECKING:
    from pytest_rlperf.sides.specs import Candidate  # not importable on Windows, where files are only shown

_LOGGED_S = 15.0  # without another line, until a log says what is being measured
_LOG_WIDTH = 80  # of lines with verdicts, whose names are never cut
_DEEPEST = 3  # levels of phases shown without -v
_NAME_LEAST = 16  # columns of a test's name on the live line
_MOST = 10  # commits named of a range
_MORE_PAIRS = "-o rlperf_pairs=3..30"


class LogLines:
    """The progress of a run in a log, where lines are only added: its plan, its verdicts, and its current tests.

    ``write`` adds a line at once. ``verbosity`` is pytest's: at -1 only the plan is written. If ``tells_verdicts``,
    each test has a line when it is over; tests whose keys are ``ambiguous`` have their whole ids. ``begun_s`` is when
    the run began by ``clock``.
    """

    def __init__(
        self,
        write: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        verbosity: int = 0,
        tells_verdicts: bool = True,
        ambiguous: Collection[str] = (),
        begun_s: float | None = None,
    ) -> None:
        self.tells_verdicts = tells_verdicts
        self._write = write
        self._clock = clock
        self._verbosity = verbosity
        self._ambiguous = ambiguous
        self._last_s = clock()
        self._begun_s = self._last_s if begun_s is None else begun_s
        self._name = ""
        self._total, self._left_s = 0, 0.0
        self._told: set[str] = set()
        self._plan: Plan | None = None

    def begin(self, test: str) -> None:
        """Name what the next steps prepare; a search does so for each comparison."""
        self._name = test
        self._told.clear()

    def show(self, step: str) -> None:
        """Write the step, if the last line is old enough."""
        self.measuring([UnderWay(self._name, step)])

    def clear(self) -> None:
        """Wipe nothing: a log has no live line."""

    def count(self, done: int, total: int, verdicts: Mapping[str, int], left_s: float = 0.0) -> None:
        """Keep how many tests there are, and the time left; ``done`` and ``verdicts`` have their lines."""
        self._total, self._left_s = total, left_s

    def plan(self, plan: Plan) -> None:
        """Write what the run is about to do."""
        self._plan, self._total = plan, plan.tests
        if self._verbosity >= -1:
            self._line(f"rlperf: {plan_text(plan)}")

    def measuring(self, tests: Sequence[UnderWay]) -> None:
        """Write what is being measured, if the last line is old enough."""
        now_s = self._clock()
        if self._verbosity >= 0 and now_s - self._last_s >= _LOGGED_S:
            spent_s, done = now_s - self._begun_s, len(self._told)
            self._line(f"rlperf: {under_way_text(spent_s, tests, done, self._total, self._left_s)}")

    def settle(self, outcome: Outcome, *, fails: bool) -> None:
        """Write a verdict, once; after the first, write how long the others take, if no earlier run has shown it."""
        key, is_measured = outcome.result.nodeid, outcome.result.measured
        if key in self._told:
            return
        took = f"{outcome.seconds:.1f} s" if is_measured else ""
        color = "red" if fails else "yellow" if outcome.verdict.is_open else "green"
        self._tell(key, verdict_line(outcome, whole=key in self._ambiguous), took, color)
        plan, self._plan = self._plan, None if is_measured else self._plan
        if plan is None or not is_measured or plan.expected_s or self._verbosity < 0:
            return
        waiting = plan.measured - plan.lanes  # the others have begun with it
        if waiting > 0:
            self._line(f"rlperf: {pace_text(plan.measured - 1, outcome.seconds * waiting / plan.lanes)}")

    def tell(self, key: str, word: str, color: str) -> None:
        """Write how a test has ended that has no verdict, or that has failed for another reason."""
        self._tell(key, f"{word:<34} {shown(key if key in self._ambiguous else test_name(key))}", "", color)

    def _tell(self, key: str, line: str, took: str, color: str) -> None:
        """Write a line on a test, ending with how long it took, and how many of the tests are over."""
        self._told.add(key)
        if self.tells_verdicts:
            part = f"[{100 * len(self._told) // max(1, self._total):>3}%]"
            gap = max(2, _LOG_WIDTH - cell_len(f"  {line}{took} {part}"))
            self._line(f"  {line}{'':{gap}}{took} {part}", color)

    def _line(self, text: str, color: str = "") -> None:
        self._last_s = self._clock()
        self._write(text, color)


class Screen:
    """The target of pytest's terminal writer in a measured run: its file, and one live line below its output.

    The live line is erased before anything else is written. Characters that the file's encoding lacks are written
    another way: pytest would escape the whole text, including its line feeds.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        self._file: TextIO = writer._file
        self._live = ""
        self._column = 1
        writer._file = self

    def write(self, text: str) -> int:
        """Write below the text written before."""
        self.show("")
        return self._file.write(in_encoding(text, getattr(self._file, "encoding", None)))

    def show(self, live: str) -> None:
        """Show another live line, none if it is empty; the cursor stays where pytest has left it."""
        if live == self._live:
            return
        if not self._live:  # else the writer has already counted the text it is about to write
            self._column = self._writer.width_of_current_line % self._writer.fullwidth + 1
        self._live = live
        # Down one line (scrolling if it is the last), wipe it, write, and back up to where pytest goes on.
        text = in_encoding(live, getattr(self._file, "encoding", None))
        self._file.write(f"\n\x1b[2K{text}\x1b[1A\x1b[{self._column}G")
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class LiveLine:
    """The progress of a run on a terminal: one line below pytest's own, rewritten in place, ``width`` columns wide.

    The line has the test's number, the verdicts so far, the time left, the test's name, and the step.
    """

    def __init__(self, screen: Screen, width: int) -> None:
        self._screen = screen
        self._width = width
        self._test = ""
        self._done = self._total = 0
        self._verdicts: Mapping[str, int] = {}
        self._left_s = 0.0

    def begin(self, test: str) -> None:
        """Name the test that the next steps belong to."""
        self._test = test

    def count(self, done: int, total: int, verdicts: Mapping[str, int], left_s: float = 0.0) -> None:
        """Keep how many tests are done, how many there are of each verdict so far, and the time left."""
        self._done, self._total, self._verdicts, self._left_s = done, total, dict(verdicts), left_s

    def plan(self, plan: Plan) -> None:
        """Show nothing: the line has the number of tests and the time left."""

    def measuring(self, tests: Sequence[UnderWay]) -> None:
        """Show the step of the first test."""
        self.begin(tests[0].test)
        self.show(tests[0].step)

    def settle(self, outcome: Outcome, *, fails: bool) -> None:
        """Show nothing: pytest shows each verdict in its place."""

    def show(self, step: str) -> None:
        """Show the step on the line, if the line changes."""
        self._screen.show(for_log(f"  {self._text(step, self._width - 3)}"))

    def clear(self) -> None:
        """Wipe the line."""
        self._screen.show("")

    def _text(self, step: str, width: int) -> str:
        """Return the line in at most ``width`` columns, shortening the test's name first."""
        parts = [f"test {self._done + 1} of {self._total}"] if self._total > 1 else []
        if self._verdicts:
            parts.append(", ".join(f"{number} {verdict}" for verdict, number in self._verdicts.items()))
        if self._left_s >= 1:
            left = f"{self._left_s:.0f} s" if self._left_s < 120 else f"{self._left_s / 60:.0f} min"
            parts.append(f"about {left} left")
        name, step = shown(self._test) if self._test else "", shown(step)

        def line() -> str:
            return f"rlperf: {' · '.join([*parts, *filter(None, [name]), step])}"

        if name:
            name = shortened(name, max(_NAME_LEAST, cell_len(name) - max(0, cell_len(line()) - width)))
        return shortened(line(), width)


def render_summary(outcomes: Sequence[Outcome], summary: Summary, *, width: int, color: bool, verbose: bool) -> str:
    """Return the whole summary as text for a terminal ``width`` columns wide."""

    def write(console: Console) -> None:
        if outcomes:
            print_table(console, verdict_table(outcomes))
            if not all(outcome.verdict.gated for outcome in outcomes):
                console.print("* shown, not gated")
            console.print()
            for outcome in outcomes:
                if verbose or not _is_brief(outcome):
                    print_details(console, outcome, verbose=verbose)
            if not verbose:
                _print_brief(console, [outcome for outcome in outcomes if _is_brief(outcome)])
        print_facts(console, summary.facts())
        for step in summary.steps:
            console.print(Text(f"{'next':<10}{step.effect}:"), soft_wrap=True)
            lines = [*map(shown, step.lines)]  # users copy each line whole
            indent = max(0, min(12, width - max(map(cell_len, lines))))
            for line in lines:
                console.print(Text(f"{'':<{indent}}{line}"), soft_wrap=True)

    return rendered(write, width=width, color=color)


def _is_brief(outcome: Outcome) -> bool:
    """Whether a test has nothing to report except that there is nothing to compare it with, or nothing to measure."""
    is_new = outcome.verdict.status is Status.NEW and outcome.result.measured
    is_equal = outcome.verdict.status is Status.SAME and not outcome.result.measured
    return (is_new or is_equal) and not outcome.result.notes and not outcome.verdict.counters


def _print_brief(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print why tests are NEW, or SAME without measurement: once for each reason."""
    for (status, text), count in Counter((outcome.verdict.status, message(outcome)) for outcome in outcomes).items():
        title = Text(f"{units.counted(count, 'test')}  ")
        title.append(status.value, STYLES[status.value])
        console.print(title)
        _print_indented(console, text)
        if status is Status.NEW:
            _print_indented(console, "-v shows phases")
        console.print()


def print_details(console: Console, outcome: Outcome, *, verbose: bool) -> None:
    """Print a test's reason and its phase tree, unless it is simply the same."""
    if is_plain(outcome) and outcome.result.measured and not verbose:
        return
    verdict = outcome.verdict
    title = Text(shown(f"{outcome.result.name}  "))  # on one line, whatever the name contains
    title.append(verdict_label(verdict), STYLES[verdict_kind(verdict)])
    console.print(title, soft_wrap=True)  # users copy a name whole
    blame = blame_text(outcome)
    sentences = [*([blame] if blame else []), *(f"note: {note}" for note in outcome.result.notes)]
    _print_indented(console, message(outcome))
    for sentence in sentences:
        _print_indented(console, shown(sentence))
    if verbose or verdict.status not in (Status.NEW, Status.SAME):
        _print_phases(console, outcome, verbose=verbose)
    for line in counter_lines(outcome, verbose=verbose):
        _print_indented(console, shown(line))
    if verbose:
        tables = [table for table in (share_table(outcome), *device_tables(outcome)) if table.rows]
        lines = [line for table in tables for line in (table.title, *table_text(table, console.width - 2, ruled=False))]
        for line in (*lines, cost_text(outcome)):
            _print_indented(console, shown(line))
    console.print()


def _print_indented(console: Console, text: str) -> None:
    """Print lines of text indented, and fold those that are too long."""
    for whole in shown_lines(text).split("\n"):
        for line in folded(whole, console.width - 2):
            console.print(Text(f"  {line}"), soft_wrap=True)


def _print_phases(console: Console, outcome: Outcome, *, verbose: bool) -> None:
    table = phase_table(outcome, None if verbose else _DEEPEST)
    if not table.rows:
        return
    titled = any(column.title == "was" for column in table.columns)
    for line in table_lines(table, console.width - 2, ruled=False, titled=titled):
        console.print(Text("  ").append_text(line), soft_wrap=True)
    note = phases_note(outcome.result)
    if note:
        _print_indented(console, shown(note))


# --------------------------------------------------------------------------- a self-check


def render_selfcheck(checks: Sequence[Selfcheck], fitness: Fitness, *, machine: str, width: int, color: bool) -> str:
    """Return the whole report as text for a terminal ``width`` columns wide."""

    def write(console: Console) -> None:
        print_table(console, _trial_table(checks), ruled=False)
        console.print(Text("rows: today's code compared with itself; +N %: with that much real work added to one side"))
        console.print(Text("each cell: the change seen, and ✓ if the verdict is right, ? if it is UNDECIDED"))
        console.print()
        reasons = [("", sentence) for sentence in fitness_lines(checks, fitness)]
        print_facts(console, [("machine", machine), ("fit", "yes" if fitness.is_fit else "no"), *reasons])

    return rendered(write, width=width, color=color)


def _trial_table(checks: Sequence[Selfcheck]) -> Table:
    slowdowns = [trial.slowdown for trial in checks[0].trials]
    columns = (
        Column("test", "left", folds=True),
        Column("call"),
        *(Column(f"+{100 * each:g} %" if each else "unchanged") for each in slowdowns),
        Column("finds"),
        Column("time"),
    )
    rows = [
        [
            check.result.name,
            units.seconds(check.result.call_s),
            *map(_trial, check.trials),
            "none" if check.smallest_found is None else f"+{100 * check.smallest_found:g} %",
            f"{sum(trial.seconds for trial in check.trials):.0f} s",
        ]
        for check in checks
    ]
    return make_table(columns, rows)


def _trial(trial: SlowdownTrial) -> str:
    """Write a trial: the change seen, and whether the verdict is right."""
    estimate, status = trial.verdict.estimate, trial.verdict.status
    seen = "" if estimate is None else f"{100 * (estimate.ratio - 1):+.1f} "
    wrong = "?" if status is Status.UNDECIDED else status.value
    return f"{seen}{'✓' if trial.is_found else wrong}"


# --------------------------------------------------------------------------- a search for the first slower one


def comparison_lines(title: str, found: Mapping[str, Outcome | str]) -> list[str]:
    """Return a line for each test of a comparison: its verdict and change, or why there is none."""
    return [shown(f"{title}: {key}: {_result(outcome)}") for key, outcome in found.items()]


def _result(outcome: Outcome | str) -> str:
    if isinstance(outcome, str):
        return outcome
    status, change = outcome.verdict.status.value, outcome.verdict.estimate
    if change is None:
        return status
    return f"{status} {units.change(change.ratio)} {units.interval(change.ratio, change.low, change.high)}"


def bisection_lines(
    left: Sequence[Candidate], tests: Sequence[str], found: Mapping[str, Outcome | str], options: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines on the end of a search by ``tests``.

    ``left`` are the last good candidate and those after it, up to the first that is known to be slower. ``found`` is
    the comparison of these two; empty if the search stopped before its end. ``tests`` and ``options`` are as they are
    typed.
    """
    good, *others, bad = left
    command = shown(f"rlperf bisect {good.range_to(bad)} {shlex.join([*tests, *options])}")
    if not found:
        yield f"stopped: the first slower one is among {units.counted(len(left) - 1, 'candidate')}, up to {bad.title}"
        yield f"go on: {command}"
        return
    if others:
        before = units.counted(len(others), "candidate")
        yield f"the first slower one is {bad.title}, or one of {before} right before it, which have no verdict"
        for each in [*others, bad][-_MOST:]:
            yield shown(f"  {each.title} {each.written}: {each.subject}" if each.subject else f"  {each.title}")
    else:
        yield shown(f"{bad.title} is the first slower one{f': {bad.subject}, {bad.written}' if bad.subject else ''}")
    for key, outcome in found.items():
        changed = [] if isinstance(outcome, str) else touched_lines(outcome)
        yield shown("; ".join([f"{key} against {good.title}: {_result(outcome)}", *changed]))
    if bad.subject:
        yield f"look: git show {bad.spec}"
    yield f"again: {command}"


def not_slower_lines(
    first: Candidate,
    last: Candidate,
    found: Mapping[str, Outcome | str],
    typed: Callable[[str], str] = str,
    options: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines on a search that had nothing to search for: no test is slower on the last candidate.

    A test is ``typed`` in a command, with ``options``.
    """
    yield f"not found: no test is SLOWER on {last.title} against {first.title}"
    judged = {key: each.verdict for key, each in found.items() if not isinstance(each, str)}
    unsettled = {key: each for key, each in judged.items() if each.gated and each.status is Status.UNDECIDED}
    by_option: dict[str, list[str]] = {}
    for key, each in unsettled.items():
        option = _MORE_PAIRS if each.remedy is None else longer(each.remedy)
        if each.remedy is not None and not option:
            yield shown(f"{key} is UNDECIDED: {remedy_text(each.remedy, each.reason)}")
        else:
            by_option.setdefault(option, []).append(typed(key))
    for option, tests in by_option.items():
        command = shown(f"rlperf bisect {first.range_to(last)} {shlex.join([*tests, *options])}")
        yield f"for what is UNDECIDED: {command} {option}"
