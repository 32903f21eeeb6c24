"""What calls do, counted, in words: what changed, and under -v everything there is of the whole call."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_rlperf.model import CounterChange, Counting, Outcome, PhaseCounts

_OPERATIONS = "ops:"  # left out: what follows names PyTorch's operation fully
_CHANGES_MOST = 8  # of one phase, without -v


def counter_lines(outcome: Outcome, *, verbose: bool) -> list[str]:
    """Return the lines about a test's counts: those that changed and, where ``verbose``, all of the whole call."""
    lines = list(_changes(outcome.verdict.counters, None if verbose else _CHANGES_MOST))
    counting = outcome.result.counting
    if not verbose or counting is None:
        return lines
    lines += _whole_call(counting)
    lines += _by_phase(counting, outcome.verdict.counters)
    return [*lines, *counting.notes]


def _changes(changes: tuple[CounterChange, ...], most: int | None) -> Iterator[str]:
    """Yield what changed, a line for each phase; less is marked as better."""
    for path in dict.fromkeys(change.path for change in changes):
        found = [f"{_label(change.name)} {change.was} → {change.now}" for change in changes if change.path == path]
        more = f"; {len(found) - most} more" if most is not None and len(found) > most else ""
        yield f"{path or 'the call'}: {'; '.join(found[:most])}{more}"


def _whole_call(counting: Counting) -> Iterator[str]:
    """Yield the counts of the whole call that are not zero, sums only: exact ones plain, others from..to."""
    for phase in counting.phases:
        if phase.path == "":
            counts = [f"{name} {text}" for name, text in _texts(phase).items() if ":" not in name and text != "0"]
            yield f"counted: {', '.join(counts) or 'nothing'}"


def _by_phase(counting: Counting, changes: tuple[CounterChange, ...]) -> Iterator[str]:
    """Yield where in the call a count that changed is."""
    for name in dict.fromkeys(change.name for change in changes):
        places = [(phase.path or "the call", _texts(phase).get(name)) for phase in counting.phases]
        yield f"{_label(name)}: {', '.join(f'{path} {text}' for path, text in places if text is not None)}"


def _texts(phase: PhaseCounts) -> dict[str, str]:
    ranges = {name: f"{least}..{most}" for name, (least, most) in phase.inexact.items()}
    return {name: str(value) for name, value in phase.exact.items()} | ranges


def _label(name: str) -> str:
    return name.removeprefix(_OPERATIONS)
