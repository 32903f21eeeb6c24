"""The table at the end of a run of the shipped suite: components by libraries, each figure beside its row's best."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from pytest_rlperf import units
from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.report.table import Column, make_table, table_text

_REFERENCE = "reference"
# A library's test has the library's name before its own; any other test is the reference's.
_TEST = re.compile(
    r"(?:.*[./])?pytest_rlperf[./]suite[./](?:libraries[./]\w+(?:\.py)?::test_(?P<library>[a-z0-9]+)_|\w+(?:\.py)?::test_)"
    r"(?P<name>\w+)(?:\[(?P<sizes>[\w-]+)\])?"
)
_NOT_INSTALLED = re.compile(r"(?:Skipped: )?(\w+ is not installed: pip install .*)")
# Rows in their order: the name of each test's work, with places for its sizes.
_WORK = {
    "vecenv_step_synthetic": "synthetic × {}",
    "vecenv_step": "CartPole × {}",
    "replay_push": "one by one",
    "replay_push_batch": "{} at once",
    "replay_sample": "batch 256",
    "gae": "{}×{}",
    "token_kl": "{}×{}",
    "policy_act": "{} observations",
    "policy_value": "{} observations",
    "policy_convert": "{} observations",
    "sac_update": "batch 256",
    "ppo_collect_synthetic": "synthetic 128×8",
    "ppo_collect": "CartPole 128×8",
    "ppo_update": "synthetic 128×8",
}
_SUFFIXES = re.compile(r"_(?:synthetic|batch)$")


class Row(NamedTuple):
    """The same work for every library: a test without the library's name, and its sizes."""

    name: str
    sizes: tuple[str, ...]

    @property
    def place(self) -> tuple[int, list[int]]:
        """The row's place among the others."""
        return [*_WORK, self.name].index(self.name), [int(size) if size.isdigit() else 0 for size in self.sizes]

    @property
    def label(self) -> tuple[str, str]:
        """The names of the component and of its work."""
        work = _WORK.get(self.name, "×".join(["{}"] * len(self.sizes)))
        return _SUFFIXES.sub("", self.name), f"  {work.format(*self.sizes)}"


def render_components(outcomes: Iterable[Outcome], skipped: Collection[str], *, width: int) -> str:
    """Return the table in lines of at most ``width``; "" unless the suite has measured another library's component.

    ``skipped`` are the reasons of skipped tests; those that name the command to install a library are shown.
    """
    cells = dict(_cells(outcomes))
    libraries = sorted({library for _, library in cells}, key=lambda name: (name != _REFERENCE, name))
    if libraries in ([], [_REFERENCE]):
        return ""
    counted = sorted({outcome.result.unit for outcome in cells.values()})
    missing = sorted({found[1] for reason in skipped if (found := _NOT_INSTALLED.fullmatch(reason))})
    legend = f"Below each figure is its share of the row's best. Items are {', '.join(f'{unit}s' for unit in counted)}."
    notes = [textwrap.fill(text, width) for text in (legend, *missing)]
    return "\n\n".join([*_tables(cells, libraries, width), "\n".join(notes)]) + "\n"


def _cells(outcomes: Iterable[Outcome]) -> Iterable[tuple[tuple[Row, str], Outcome]]:
    """Yield the suite's outcomes by row and library."""
    for outcome in outcomes:
        found = _TEST.fullmatch(outcome.result.nodeid)
        if found is not None:
            sizes = tuple(found["sizes"].split("-")) if found["sizes"] else ()
            yield (Row(found["name"], sizes), found["library"] or _REFERENCE), outcome


def _tables(cells: dict[tuple[Row, str], Outcome], libraries: Sequence[str], width: int) -> list[str]:
    """Return tables of a few libraries each, if there is no room for all in one."""
    rows = sorted({row for row, _ in cells}, key=lambda row: row.place)
    columns = [Column("items/s", "left"), *map(Column, libraries)]
    lines = [
        line
        for row in rows
        for line in zip(row.label, *(_texts(row, library, cells) for library in libraries), strict=True)
    ]
    text = table_text(make_table(columns, lines), None)
    if len(libraries) == 1 or max(map(len, text)) <= width:
        return ["\n".join(text)]
    half = (len(libraries) + 1) // 2
    return [*_tables(cells, libraries[:half], width), *_tables(cells, libraries[half:], width)]


def _texts(row: Row, library: str, cells: dict[tuple[Row, str], Outcome]) -> tuple[str, str]:
    """Return a cell's two lines: its figure, and its share of the row's best, if there are others."""
    outcome = cells.get((row, library))
    if outcome is None:
        return "–", ""
    figure = _items_per_s(outcome)
    if not figure:
        return outcome.verdict.status.value.lower(), ""
    figures = [_items_per_s(other) for (place, _), other in cells.items() if place == row]
    share = figure / max(figures)
    shown = "best" if share == 1.0 else f"{100 * share:.{0 if share >= 0.1 else 1}f} %"
    return units.quantity(figure), shown if sum(map(bool, figures)) > 1 else ""


def _items_per_s(outcome: Outcome) -> float:
    """Return a test's throughput; 0.0 if it has none, or if its measurement broke its own rules."""
    valid = outcome.result.measured and outcome.verdict.status is not Status.INVALID
    return outcome.result.items_per_s if valid else 0.0
