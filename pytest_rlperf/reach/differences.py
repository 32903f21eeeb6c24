"""What differs between two sources of a file, by their parts."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from itertools import zip_longest

from pytest_rlperf.model.reach import ChangedPart
from pytest_rlperf.reach.order import is_in_order
from pytest_rlperf.reach.source import ALL, Part, Source

_FUTURE = "__future__:annotations"
_EMPTY = ast.dump(ast.Module([], []))


def changed_parts(
    base: Source, head: Source, file: str, is_taken: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[ChangedPart, Part | None, Part | None]]:
    """Yield what differs between two sources of a file, with the base's part and the head's.

    ``is_taken`` is whether another module takes a name from this one, or all names ("*").
    """
    rebound = {name for name in {*base.imports, *head.imports} if base.imports.get(name) != head.imports.get(name)}
    handed_on = any(_is_handed_on(name, base, head, is_taken) for name in rebound)
    for key in dict.fromkeys([*head.parts, *base.parts]):
        was, now = base.parts.get(key), head.parts.get(key)
        if was is not None and now is not None and was.runs == now.runs and is_in_order(was.order, now.order):
            if rebound.isdisjoint(was.names) and not (handed_on and not was.name):
                continue
        elif (was is None or now is None) and _does_nothing(was) and _does_nothing(now):
            continue
        yield _changed(was, now, file), was, now


def _is_handed_on(name: str, base: Source, head: Source, is_taken: Callable[[str], bool]) -> bool:
    """Whether another module may see that the import of a name differs, even if nothing here uses the name.

    It may import the name from here if its origin has changed. A name that one side lacks counts if another module
    takes it, or if something else takes its place: a builtin, or what a star import or the module's function makes.
    """
    if name == ALL:
        return is_taken("*") or is_taken(ALL)
    if _FUTURE in (*base.imports.get(name, ()), *head.imports.get(name, ())):
        return base.has_annotations or head.has_annotations
    makes = any(each.has_star or each.has_names_on_demand or each.asks_for_any for each in (base, head))
    return name in base.bound & head.bound or makes or name in vars(builtins) or is_taken(name) or is_taken("*")


def _does_nothing(part: Part | None) -> bool:
    """Whether a part is missing, or is the body of an empty module."""
    return part is None or (not part.name and part.runs == _EMPTY)


def _changed(was: Part | None, now: Part | None, file: str) -> ChangedPart:
    here = now or was
    assert here is not None
    texts = ["" if part is None else part.text for part in (was, now)]
    differs = here.first + _first_difference(*texts)
    if not here.name:
        texts = ["", ""]  # the whole module would be too much to show
    return ChangedPart(here.kind, file, here.name, here.line, differs, *texts)


def _first_difference(was: str, now: str) -> int:
    """Return how many lines of ``now`` come before the first that differs from ``was``."""
    if not was or not now or was == now:
        return 0
    pairs = zip_longest(was.split("\n"), now.split("\n"))
    return next(number for number, (ours, theirs) in enumerate(pairs) if ours != theirs)
