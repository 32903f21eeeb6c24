"""What the person at the terminal sees: one live line while measuring, then the summary."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Literal, Protocol, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model import Outcome, Status
from pytest_rlperf.report.rows import COLUMNS, phase_rows, test_name
from pytest_rlperf.report.summary import Summary

_STYLES = {
    Status.SAME: "green",
    Status.FASTER: "bold green",
    Status.SLOWER: "bold red",
    Status.INVALID: "bold red",
    Status.UNDECIDED: "yellow",
    Status.INCOMPARABLE: "yellow",
    Status.NEW: "cyan",
}
_REFRESH_S = 0.1
_DEEPEST = 3  # levels of phases shown without -v


class Screen(Protocol):
    """The part of pytest's terminal writer that the live line needs."""

    @property
    def width_of_current_line(self) -> int:
        """The columns written on the current line."""

    @property
    def fullwidth(self) -> int:
        """The terminal's columns."""


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
        text = f"  rlperf: {test} · {step} · about {seconds_left:.0f} s left"
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
        console.print(_table(outcomes, width))
        if not all(outcome.verdict.gated for outcome in outcomes):
            console.print("* shown, not gated")
        for outcome in outcomes:
            _print_details(console, outcome, verbose=verbose)
    console.print(Text(f"machine   {summary.machine}"))
    for origin in summary.origins:
        console.print(Text(f"compared  {origin}"))
    for note in summary.notes:
        console.print(Text(f"note      {note}"))
    for command in summary.commands:
        console.print(Text(f"next      {command}"))
    return buffer.getvalue()


def _table(outcomes: Sequence[Outcome], width: int) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    fixed = [column for column in COLUMNS if column.title != "test"]
    taken = sum(max(len(column.title), *(len(column.text(outcome)) for outcome in outcomes)) + 2 for column in fixed)
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column.justify == "left" else "right"
        if column.title == "test":
            table.add_column(column.title, justify=justify, overflow="fold", max_width=max(16, width - taken))
        else:
            table.add_column(column.title, justify=justify, no_wrap=True)
    for outcome in outcomes:
        cells = [Text(column.text(outcome)) for column in COLUMNS]
        cells[-1].stylize(_STYLES[outcome.verdict.status])
        table.add_row(*cells)
    return table


def _print_details(console: Console, outcome: Outcome, *, verbose: bool) -> None:
    """Print a test's reason and its phase tree, where it is not simply the same."""
    verdict = outcome.verdict
    if verdict.status is Status.SAME and not verbose and not outcome.result.notes:
        return
    title = Text(f"{test_name(outcome)}  ")
    title.append(verdict.status.value, _STYLES[verdict.status])
    title.append(f": {verdict.reason.message}")
    console.print(title)
    for note in outcome.result.notes:
        console.print(Text(f"  note: {note}"))
    if verdict.status is Status.SAME and not verbose:
        return
    rows = phase_rows(outcome.result.phases, outcome.result.traced_call_s)
    for row in rows:
        if row.depth >= _DEEPEST and not verbose:
            continue
        name = f"{'  ' * (row.depth + 1)}{row.name}"
        count = "" if row.count is None else f"×{row.count:.3g}"
        console.print(
            Text(f"{name:<34}{units.seconds(row.total_s):>10}{units.percent(row.share, signed=False):>9}{count:>9}")
        )
    if verbose:
        console.print(Text(f"  {_cost(outcome)}"))
    console.print()


def _cost(outcome: Outcome) -> str:
    """Say what a test's figures rest on."""
    workers = outcome.result.workers
    share = sum(worker.cpu_share for worker in workers) / len(workers)
    return (
        f"{len(workers)} workers, {sum(worker.calls for worker in workers)} calls in "
        f"{sum(worker.slices for worker in workers)} slices, cpu/wall {share:.2f}, "
        f"{sum(worker.collections for worker in workers)} collections, {outcome.seconds:.1f} s in all"
    )
