"""The shipped suite's table: components by libraries, each cell's throughput beside the best of its row."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.table import Column, make_table
from pytest_rlperf.report.text import blocks, table_text

_REFERENCE = "reference"
# A test of the suite: one of libraries has the library's name after its module's, any other is the reference's.
_TEST = re.compile(
    r"(?:.*[./])?pytest_rlperf[./]suite[./](?:libraries[./]test_(?P<library>\w+)|\w+)(?:\.py)?"
    r"::test_(?(library)(?P=library)_)(?P<name>\w+)(?:\[(?P<parameters>[\w-]+)\])?"
)
_ROWS = {
    "vecenv_step_synthetic": ("vecenv_step", "synthetic × {}"),
    "vecenv_step": ("vecenv_step", "CartPole × {}"),
    "replay_sample": ("replay_sample", "batch 256"),
    "gae": ("gae", "{}×{}"),
    "sac_update": ("sac_update", "batch 256"),
    "ppo_collect_synthetic": ("ppo_collect", "synthetic 128×8"),
    "ppo_collect": ("ppo_collect", "CartPole 128×8"),
    "ppo_update": ("ppo_update", "128×8, 4 epochs"),
}
_LEGEND = "Below each figure its share of the row's best. Items are env steps, transitions, and updates."
_NOTHING = "–"


@dataclass(frozen=True)
class Row:
    """A row: the same work for every library, as a test and its sizes."""

    name: str
    sizes: tuple[str, ...]

    @property
    def place(self) -> tuple[int, list[int]]:
        """Its place among the rows."""
        kind = list(_ROWS).index(self.name) if self.name in _ROWS else len(_ROWS)
        return kind, [int(size) if size.isdigit() else 0 for size in self.sizes]

    @property
    def label(self) -> tuple[str, str]:
        """The names of its component and of its work."""
        title, work = _ROWS.get(self.name, (self.name, "×".join("{}" for _ in self.sizes)))
        return title, f"  {work.format(*self.sizes)}"


@dataclass(frozen=True)
class Cell:
    """A test's figure, or a word for why there is none."""

    items_per_s: float | None
    word: str
    is_skipped: bool = False


def render_matrix(outcomes: Sequence[Outcome], skipped: Mapping[str, str], *, width: int) -> str:
    """Return the table in lines of at most ``width``, "" where of the suite no library but the reference was measured.

    ``skipped`` has why tests were skipped, by their keys.
    """
    cells = _cells(outcomes, skipped)
    shown = {library for (_, library), cell in cells.items() if not cell.is_skipped}
    if not any(cell.items_per_s is not None for (_, library), cell in cells.items() if library != _REFERENCE):
        return ""
    libraries = sorted(shown, key=lambda name: (name != _REFERENCE, name))
    rows = sorted(dict.fromkeys(row for row, library in cells if library in shown), key=lambda row: row.place)
    table = make_table(
        [Column("work", "items/s", "left"), *(Column(f"library {library}", library) for library in libraries)],
        [
            line
            for row in rows
            for line in zip(row.label, *(_texts(row, library, cells) for library in libraries), strict=True)
        ],
    )
    tables = ["\n".join(table_text(block, None)) for block in blocks(table, width)]
    reasons = (f"skipped: {why}" for key, why in skipped.items() if _place(key)[1] is not None)
    notes = [textwrap.fill(text, width) for text in (_LEGEND, *dict.fromkeys(reasons))]
    return "\n\n".join([*tables, "\n".join(notes)]) + "\n"


def _place(key: str) -> tuple[Row | None, str | None]:
    """Return a test's row and library; None of both for a test that is not of the suite."""
    found = _TEST.fullmatch(key)
    if found is None:
        return None, None
    parameters = found["parameters"].split("-") if found["parameters"] else []
    return Row(found["name"], tuple(parameters)), found["library"] or _REFERENCE


def _cells(outcomes: Sequence[Outcome], skipped: Mapping[str, str]) -> dict[tuple[Row, str], Cell]:
    """Return the cells by row and library; a measurement that broke its own rules has no figure."""
    known = {key: Cell(None, "skipped", is_skipped=True) for key in skipped}
    for outcome in outcomes:
        status, result = outcome.verdict.status, outcome.result
        if status in (Status.INVALID, Status.ERROR) or not result.measured:
            known[result.nodeid] = Cell(None, status.value.lower())
        else:
            known[result.nodeid] = Cell(result.items_per_s, units.quantity(result.items_per_s))
    placed = ((_place(key), cell) for key, cell in known.items())
    return {(row, library): cell for (row, library), cell in placed if row is not None and library is not None}


def _texts(row: Row, library: str, cells: Mapping[tuple[Row, str], Cell]) -> tuple[str, str]:
    """Return a cell's two lines: its figure, and its share of the best one in the row, where there are others."""
    cell = cells.get((row, library), Cell(None, _NOTHING))
    figures = [other.items_per_s for (place, _), other in cells.items() if place == row and other.items_per_s]
    if cell.items_per_s is None or len(figures) == 1:
        return cell.word, ""
    share = cell.items_per_s / max(figures)
    if share == 1.0:
        return cell.word, "best"
    return cell.word, f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
