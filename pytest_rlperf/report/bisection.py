"""The report of a search for the first slower commit or release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from pytest_rlperf import units
from pytest_rlperf.model.bisection import BisectionReport, Candidate, FirstSlower
from pytest_rlperf.report.printable import shown
from pytest_rlperf.report.terminal import print_details
from pytest_rlperf.report.text import rendered

_MOST = 10  # commits named of a range, and of those that were left out


def render_bisection(report: BisectionReport, notes: Sequence[str], *, width: int, color: bool) -> str:
    """Return the result as text for a terminal ``width`` columns wide."""

    def write(console: Console) -> None:
        def say(line: str) -> None:
            console.print(shown(line), soft_wrap=True, markup=False, highlight=False)

        for found in report.found:
            for line in _lines(found):
                say(line)
            if found.step is not None:
                print_details(console, found.step, verbose=False)
            say(f"  again: {found.command}")
            console.print()
        for line in [*_beside(report), *(f"note: {note}" for note in notes)]:
            say(line)

    return rendered(write, width=width, color=color)


def _lines(found: FirstSlower) -> Iterator[str]:
    first, count = found.candidates[-1], len(found.candidates)
    effort = f"{units.counted(found.probes, 'probe')}, {units.counted(found.pairs, 'pair')}"
    sure = f"{units.percent(found.chance, signed=False)} sure; {effort}"
    ratio, low, high = found.whole
    if found.is_named and count == 1:
        yield f"{found.test}: {first.title} is the first slower one ({sure})"
    elif found.is_named:
        yield (
            f"{found.test}: {first.title} is the first slower one, or one of {units.counted(count - 1, 'candidate')} "
            f"right before it, which cannot be run ({sure})"
        )
    else:
        left = f"{found.candidates[0].title} to {first.title}"
        yield f"{found.test}: the first slower one is among {count}, {left} ({sure})"
    for candidate in found.candidates[-_MOST:]:
        if candidate.subject:
            yield f"  {candidate.key[:12]} {candidate.day} {candidate.author}: {candidate.subject}"
    yield f"  the whole range: {units.change(ratio)} [{units.change(low, ratio)}, {units.change(high, ratio)}]"
    step = found.step
    if step is not None and step.verdict.estimate is not None and step.live is not None:
        change = step.verdict.estimate
        interval = f"[{units.change(change.low, change.ratio)}, {units.change(change.high, change.ratio)}]"
        yield f"  {step.live.head_label} against {step.live.base_label}: {units.change(change.ratio)} {interval}"
        if found.is_partial:
            yield "  it is not all of the change: search on from there to the last one"


def _beside(report: BisectionReport) -> Iterator[str]:
    yield f"searched {units.counted(report.count, 'candidate')} in {_duration(report.seconds)}"
    named = {candidate.key for found in report.found for candidate in found.candidates}
    for skipped in report.skipped[:_MOST]:
        yield f"left out {_name(skipped.candidate)}: {skipped.reason}"
    if len(report.skipped) > _MOST:
        yield f"left out {len(report.skipped) - _MOST} more that cannot be run"
    for suspect in report.suspects[:_MOST]:
        here = ", the commit found" if suspect.candidate.key in named else ""
        yield (
            f"suspect {_name(suspect.candidate)}{here}: it changes {', '.join(suspect.files)}, and packages stay as "
            "installed here (--rlperf-bisect=pip:NAME==GOOD)"
        )
    if report.stopped:
        yield f"stopped: {report.stopped}; go on with {report.command}"


def _name(candidate: Candidate) -> str:
    return f"{candidate.title} {candidate.subject!r}" if candidate.subject else candidate.title


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
