"""Baselines and machines as tables: what is shown of files beside the summary of a run."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_rlperf import units
from pytest_rlperf.model import Baseline, Machine, Result, StoredResult, TimerTree, Timing
from pytest_rlperf.report.rows import phases_note
from pytest_rlperf.report.tree import render_tree

_WHAT = {
    "system": "operating system",
    "arch": "architecture",
    "cpu": "processor",
    "cores": "cores it may use",
    "python": "Python",
    "kernel": "reference kernels' version",
    "accelerators": "accelerators",
}


def aligned(headers: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], *, width: int, color: bool) -> str:
    """Return a table as text; ``headers`` are titles with the way their cells are set, the first may be folded."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for index, (title, justify) in enumerate(headers):
        table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold", no_wrap=index > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    buffer = io.StringIO()
    console = Console(
        file=buffer, width=width, force_terminal=color, no_color=not color, highlight=False, legacy_windows=False
    )
    console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in buffer.getvalue().splitlines())


def render_baseline(baseline: Baseline, keys: Sequence[str], *, width: int, color: bool, verbose: bool) -> str:
    """Return a baseline's figures: a line a test, where it comes from, and why it was accepted; phases on request."""
    stored = {key: baseline.results[key] for key in keys}
    headers = [("test", "left"), ("median", "right"), ("items/s", "right"), ("workers", "right"), ("stored", "left")]
    rows = [
        [
            short_name(key),
            units.seconds(entry.result.call_s) if entry.result.measured else "",
            units.quantity(entry.result.items_per_s) if entry.result.measured else "",
            str(len(entry.result.workers)),
            _origin(baseline, entry),
        ]
        for key, entry in stored.items()
    ]
    parts = [aligned(headers, rows, width=width, color=color)]
    accepted = [f"{short_name(key)}: {_acceptance(entry)}\n" for key, entry in stored.items() if entry.accepted]
    if accepted:
        parts.append("".join(["\naccepted although slower:\n", *(f"  {line}" for line in accepted)]))
    if verbose:
        parts += [f"\n{phases_table(entry.result, width=width)}" for entry in stored.values() if entry.result.phases]
    return "".join(parts)


def _origin(baseline: Baseline, entry: StoredResult) -> str:
    provenance = baseline.sessions.get(entry.session)
    if provenance is None:
        return entry.session
    code = "outside git" if provenance.commit is None else f"commit {provenance.commit[:12]}"
    return f"{provenance.created.partition('T')[0]}, {code}{', uncommitted changes' if provenance.dirty else ''}"


def _acceptance(entry: StoredResult) -> str:
    accepted = entry.accepted
    assert accepted is not None
    day = accepted.created.partition("T")[0]
    by = f" by {accepted.by}" if accepted.by else ""
    return f"{units.seconds(accepted.previous_call_s)} before; {day}{by}: {accepted.reason}"


def phases_table(result: Result, *, width: int | None) -> str:
    """Return a result's phases as the table that trees of timers have, per call, and what they add up to."""
    children: dict[str, list[str]] = {}
    for phase in result.phases:
        children.setdefault(phase.path.rpartition("/")[0], []).append(phase.path)
    by_path = {phase.path: phase for phase in result.phases}

    def timing(path: str) -> Timing:
        phase = by_path[path]
        below = tuple(timing(child) for child in children.get(path, ()))
        return Timing(phase.name, round(phase.count), round(1e9 * phase.total_s), children=below)

    whole = Timing(
        result.nodeid,
        1,
        round(1e9 * result.traced_call_s),
        children=tuple(timing(path) for path in children.get("", ())),
    )
    note = phases_note(result)
    return render_tree(TimerTree(whole), width=width) + (f"{note}\n" if note else "")


def short_name(key: str) -> str:
    """Return a test's name without its file's directories."""
    path, separator, name = key.partition("::")
    return name if separator else path


def render_machines(machines: Mapping[str, Machine], *, width: int, color: bool) -> str:
    """Return what identifies one machine or several, a column each, with a mark where they differ."""
    fields = {name: list(asdict(machine).items()) for name, machine in machines.items()}
    rows = []
    for index, (field, _) in enumerate(next(iter(fields.values()))):
        cells = [_machine_text(found[index][1]) for found in fields.values()]
        rows.append([_WHAT.get(field, field), *cells, *(["≠" if len(set(cells)) > 1 else ""] * (len(cells) > 1))])
    headers = [("machine", "left"), *((name, "left") for name in machines), *([("", "left")] * (len(machines) > 1))]
    return aligned(headers, rows, width=width, color=color)


def _machine_text(value: object) -> str:
    return ("\n".join(map(str, value)) or "none") if isinstance(value, (tuple, list)) else str(value)
