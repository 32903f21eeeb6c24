"""What the person at the terminal sees: one live line while measuring, then the summary."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Protocol, TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.counters import counter_lines
from pytest_rlperf.report.device import device_lines
from pytest_rlperf.report.printable import shown, shown_lines
from pytest_rlperf.report.rows import (
    ENVIRONMENT,
    SINCE_FIRST,
    PhaseRow,
    blame_lines,
    cost_text,
    creep_text,
    phase_rows,
    phases_note,
    test_name,
)
from pytest_rlperf.report.shares import shares_lines
from pytest_rlperf.report.summary import Summary
from pytest_rlperf.report.summary_table import STATUS_STYLES, print_table

_REFRESH_S = 0.1
_WAS_COLUMNS = len("  was 12.3 ms")
_DEEPEST = 3  # levels of phases shown without -v
_NARROWEST_NAME = 16


class Screen(Protocol):
    """The part of pytest's terminal writer that the live line needs."""

    @property
    def width_of_current_line(self) -> int:
        """The columns written on the current line."""

    @property
    def fullwidth(self) -> int:
        """The terminal's columns."""


class Progress(Protocol):
    """Shows what goes on while a test is measured."""

    def show(self, test: str, step: str, seconds_left: float) -> None:
        """Show a test's current step, and about how long it will take; 0 where that is not known."""

    def clear(self) -> None:
        """Make room for what pytest writes."""


class NoLine:
    """Shows nothing: there is no terminal."""

    def show(self, test: str, step: str, seconds_left: float) -> None:
        """Show nothing."""

    def clear(self) -> None:
        """Nothing to wipe."""


class LiveLine:
    """One line below pytest's own, rewritten in place; the cursor is always left where pytest had it."""

    def __init__(self, screen: Screen, file: TextIO) -> None:
        self._screen = screen
        self._file = file
        self._shown = False
        self._last_s = 0.0

    def show(self, test: str, step: str, seconds_left: float) -> None:
        """Say on the line what goes on, at most ten times a second."""
        now_s = time.monotonic()
        if self._shown and now_s - self._last_s < _REFRESH_S:
            return
        self._last_s = now_s
        self._shown = True
        left = f" · about {seconds_left:.0f} s left" if seconds_left else ""
        text = f"  rlperf: {shown(test)} · {step}{left}"
        self._write(text[: self._screen.fullwidth - 1])

    def clear(self) -> None:
        """Wipe the line."""
        if self._shown:
            self._shown = False
            self._write("")

    def _write(self, text: str) -> None:
        column = self._screen.width_of_current_line + 1
        # Down one line (scrolling where it is the last), wipe it, write, and back up to where pytest goes on.
        self._file.write(f"\n\x1b[2K{text}\x1b[1A\x1b[{column}G")
        self._file.flush()


def render_summary(outcomes: Sequence[Outcome], summary: Summary, *, width: int, color: bool, verbose: bool) -> str:
    """Return the whole summary as text for a terminal ``width`` columns wide."""
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    if outcomes:
        print_table(console, outcomes, verbose=verbose)
        if not all(outcome.verdict.gated for outcome in outcomes):
            console.print("* shown, not gated")
        console.print()
        for outcome in outcomes:
            _print_details(console, outcome, verbose=verbose)
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True, min_width=8)
    lines.add_column(overflow="fold")
    lines.add_row("machine", _line(summary.machine))
    for origin in summary.origins:
        lines.add_row("compared", _line(origin))
    for note in summary.notes:
        lines.add_row("note", _text(note))
    console.print(lines)
    for text in summary.commands:
        for title, line in zip_longest(("next",), text.split("\n"), fillvalue=""):
            console.print(_text(f"{title:<10}{line}"), soft_wrap=True)  # a command is copied whole, or not at all
    # Rich fills lines up with blanks; a terminal needs none, and a log file is better off without.
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _text(text: str) -> Text:
    """Return text from anywhere as text and nothing else: neither markup nor what a terminal takes for a command."""
    return Text(shown_lines(text))


def _line(text: str) -> Text:
    """Return what holds a name, which may hold the end of a line, as one line of text."""
    return Text(shown(text) if text else "")


def _print_details(console: Console, outcome: Outcome, *, verbose: bool) -> None:
    """Print a test's reason and its phase tree, where it is not simply the same."""
    verdict = outcome.verdict
    same = verdict.status is Status.SAME and not verbose
    # Code that is the same, at another time than stored: the table alone would look like a mistake.
    is_plain = verdict.reason.code != ENVIRONMENT and not outcome.result.notes and not verdict.counters
    if same and outcome.result.measured and is_plain:
        return
    title = _line(f"{test_name(outcome)}  ")
    title.append(verdict.status.value, STATUS_STYLES[verdict.status])
    console.print(title)
    sentences = [*blame_lines(outcome), *(f"note: {note}" for note in outcome.result.notes)]
    for text in (_text(verdict.reason.message), *map(_line, sentences)):
        console.print(Padding(text, (0, 0, 0, 2)))
    if not same:
        _print_phases(console, outcome, verbose=verbose)
    for line in counter_lines(outcome, verbose=verbose):
        console.print(Padding(_line(line), (0, 0, 0, 2)))
    if verbose:
        shares = shares_lines(outcome.result.shares)
        where = ["where the time goes", *(f"  {line}" for line in shares)] if shares else []
        creep = creep_text(outcome)
        since = [f"{SINCE_FIRST}: {creep}"] if creep else []
        for line in (*where, *device_lines(outcome), *since, cost_text(outcome)):
            console.print(Padding(_line(line), (0, 0, 0, 2)))
    console.print()


def _print_phases(console: Console, outcome: Outcome, *, verbose: bool) -> None:
    rows = [row for row in phase_rows(outcome) if row.depth < _DEEPEST or verbose]
    if not rows:
        return
    figures = [_phase_figures(row) for row in rows]
    usual = 34 if all(row.change_s is None for row in rows) else 28  # what a change adds must fit 80 columns, too
    width = max(_NARROWEST_NAME, min(usual, console.width - max(map(len, figures))))
    for row, text in zip(rows, figures, strict=True):
        name = f"{'  ' * (row.depth + 1)}{row.name}"
        console.print(Text(f"{shown(name):<{width}}{text}"))
    note = phases_note(outcome.result)
    if note:
        console.print(Padding(_line(note), (0, 0, 0, 2)))


def _phase_figures(row: PhaseRow) -> str:
    count = "" if row.count is None else f"×{row.count:.3g}"
    was = "" if row.was_s is None else f"  was {units.seconds(row.was_s)}"
    change = "" if row.change_s is None else f"  {units.signed_seconds(row.change_s)}"
    # What is added stands in one column, whether there was a figure before or not.
    added = f"{was:<{_WAS_COLUMNS}}{change}" if change else was
    return f"{units.seconds(row.total_s):>10}{units.percent(row.share, signed=False):>9}{count:>9}{added}"
