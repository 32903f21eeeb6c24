"""``rlperf cache``: the code of other commits and versions that runs have prepared and kept."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Command, Exit, UsageError, listed, print_text, table_width

if TYPE_CHECKING:
    from pytest_rlperf.sides.cache import Entry


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove all that no run uses now")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.sides.cache import cache_entries

    entries = cache_entries()
    if arguments.clear:
        return _clear(entries)
    print_text(_rendered(entries) if entries else "the cache is empty\n")
    return Exit.NOTHING_SLOWER


def _clear(entries: Sequence[Entry]) -> int:
    sizes = [entry.size_bytes for entry in entries]
    kept = [entry for entry in entries if not entry.remove()]
    removed = sum(size for entry, size in zip(entries, sizes, strict=True) if entry not in kept)
    print_text(f"removed {len(entries) - len(kept)} of {len(entries)} entries, {removed / 1e6:.1f} MB\n")
    if kept:
        raise UsageError(
            f"{listed([str(entry.place) for entry in kept])}: used by a run, or not removable; "
            "run rlperf cache --clear again when that run has ended"
        )
    return Exit.NOTHING_SLOWER


def _rendered(entries: Sequence[Entry]) -> str:
    """Return a row for each tree, the largest first, and the whole."""
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.table import Column, make_table
    from pytest_rlperf.report.text import table_text
    from pytest_rlperf.sides.cache import KEPT_DAYS, KEPT_ENTRIES

    columns = [
        Column("tree", "tree", "left", overflow="fold"),
        Column("entries", "entries"),
        Column("size", "size"),
        Column("used", "last used", "left"),
    ]
    trees = [list(group) for _, group in groupby(sorted(entries, key=_directory), key=_directory)]
    trees.sort(key=lambda tree: sum(entry.size_bytes for entry in tree), reverse=True)
    rows = [
        [
            shown(tree[0].tree),
            str(len(tree)),
            _size(tree),
            time.strftime("%Y-%m-%d", time.localtime(max(entry.used_s for entry in tree))),
        ]
        for tree in trees
    ]
    lines = table_text(make_table(columns, rows), table_width())
    whole = f"{_size(entries)} in all; a tree keeps its {KEPT_ENTRIES} latest entries, for {KEPT_DAYS} days after use"
    roots = " and ".join(sorted({shown(str(entry.place.parent.parent)) for entry in entries}))
    return "\n".join([*lines, "", f"kept in {roots}", whole, "rlperf cache --clear removes all that no run uses", ""])


def _directory(entry: Entry) -> str:
    return str(entry.place.parent)


def _size(entries: Sequence[Entry]) -> str:
    return f"{sum(entry.size_bytes for entry in entries) / 1e6:.1f} MB"


CACHE = Command(
    "cache", "Show what runs keep of other commits and versions, by tree, or remove it.", _add_arguments, _run
)
