"""The order of a body's statements, and whether it matters that two bodies have different orders."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence

_OF_PYTHON = "of Python: "  # before an import of the standard library
_STAR = ast.dump(ast.alias("*"))


def import_entries(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return an import's entries in an order: one for each name, however many a line imports."""
    start = _OF_PYTHON * _is_of_python(node)
    if isinstance(node, ast.Import):
        return [f"{start}Import {alias.name} as {alias.asname}" for alias in node.names]
    names = sorted((alias.name, alias.asname or "") for alias in node.names)
    return [f"{start}ImportFrom {'.' * node.level}{node.module or ''}:{name} as {asname}" for name, asname in names]


def _is_of_python(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import is only of the standard library."""
    modules = (
        [alias.name for alias in node.names]
        if isinstance(node, ast.Import)
        else ["." * node.level + (node.module or "")]
    )
    return all(module.partition(".")[0] in sys.stdlib_module_names for module in modules)


def is_in_order(was: Sequence[str], now: Sequence[str]) -> bool:
    """Whether what both bodies share comes in the same order.

    Imports of the standard library do not affect other imports, but statements may replace what they bind.
    """
    if was == now:
        return True
    both = {*was} & {*now}
    ours, theirs = ([each for each in order if each in both] for order in (was, now))
    return _without_python(ours) == _without_python(theirs) and _statements_before(ours) == _statements_before(theirs)


def _without_python(order: Iterable[str]) -> list[str]:
    return [each for each in order if not each.startswith(_OF_PYTHON)]


def _statements_before(order: Iterable[str]) -> dict[str, list[int]]:
    """Return how many statements come before each import of the standard library."""
    found, statements = dict[str, list[int]](), 0
    for each in order:
        if each.startswith(_OF_PYTHON):
            found.setdefault(each, []).append(statements)
        else:
            statements += not each.startswith("Import") or _STAR in each
    return found
