"""The courses of tests over commits, in words and in a terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.model.history import Break, Course, Line, LoggedCommit, Segment, Step
from pytest_rlperf.model.stored import Machine
from pytest_rlperf.report.printable import harmless, shown

CONFIDENCE_Z = 2.5758  # of a normal 99 % interval
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60  # of a course; neighbours share a block where there are more points
_LEAST_SPAN = math.log(1.05)  # from the lowest block to the highest: noise stays low
_COMMITS_MOST = 5
_DIGITS = 12


@dataclass(frozen=True)
class HistoryReport:
    """The courses of tests, the names of machine classes, and notes; ``source`` is what was read, in words."""

    courses: tuple[Course, ...]
    machines: Mapping[Machine, str]
    source: str
    notes: tuple[str, ...] = ()


# --------------------------------------------------------------------------- words


def line_name(line: Line, machines: Mapping[Machine, str]) -> str:
    """Return what a line is called: live, or the machine class."""
    return "live" if line.machine is None else machines[line.machine]


def line_facts(line: Line) -> str:
    """Return a line's first and last value in words, and how many points there are."""
    points = line.points
    if line.machine is None:
        return "; ".join(_product(segment) for segment in line.segments)
    first, last = (f"{point.value:.3g}" for point in (points[0], points[-1]))
    return f"{first} → {last} × {line.kernel} kernel, {units.counted(len(points), 'session')}"


def _product(segment: Segment) -> str:
    """Return the product along a chain with its interval."""
    last, links = segment.points[-1], len(segment.points) - 1
    factor = math.exp(CONFIDENCE_Z * last.error)
    low, high = (units.change(bound, last.value) for bound in (last.value / factor, last.value * factor))
    ends = f"{_short(segment.points[0].commit)}..{_short(last.commit)}"
    return f"{units.change(last.value)} [{low}, {high}] over {units.counted(links, 'link')}, {ends}"


def step_text(step: Step) -> str:
    """Return a change in words: its size, and how many commits lie between."""
    low, high = (units.change(bound, step.ratio) for bound in (step.low, step.high))
    interval = f"{units.change(step.ratio)} [{low}, {high}]"
    ends = [_short(point.commit) for point in (step.before, step.after)]
    between = units.counted(len(step.commits), "commit") if step.commits else "commits that are not in this history"
    return (
        f"{'slower' if step.is_slower else 'faster'} {interval} by live pairs, from {ends[0]} to {ends[1]}: {between}"
    )


def since_text(step: Step) -> str:
    """Return the commit with which a change was first measured and its day, or the day alone."""
    return " of ".join(filter(None, [_short(step.after.commit), step.after.created[:10]]))


def step_command(course: Course, step: Step) -> str:
    """Return the search that names the commit of a slowdown, empty where nothing can be searched."""
    if not step.commits or not step.is_slower:
        return ""
    spec = f"{_short(step.before.commit)}..{_short(step.commits[-1].sha)}"
    tolerance = "" if step.tolerance is None else f" --rlperf-tolerance={100 * step.tolerance:.1f}%"
    return f"pytest --rlperf-bisect={spec}{tolerance} {shlex.quote(course.test)}"


def break_text(segment: Segment) -> str:
    """Return why a segment begins, empty for the first."""
    return {
        Break.FIRST: "",
        Break.CLOCK: "another clock decides from there on",
        Break.WORKLOAD: "another workload from there on",
        Break.GAP: "no live comparison joins it with the one before",
    }[segment.begins]


def commit_text(commit: LoggedCommit) -> str:
    """Return a commit in one line."""
    return f"{_short(commit.sha)} {commit.created[:10]} {commit.author}: {commit.subject}"


def _short(sha: str) -> str:
    return sha[:_DIGITS]


# --------------------------------------------------------------------------- the terminal


def render_history(report: HistoryReport) -> str:
    """Return the courses as text: a line of blocks for each line of a test, then its changes."""
    lines = [line for course in report.courses for line in (*_course_lines(course, report.machines), "")]
    used = {line.machine for course in report.courses for line in course.lines}
    lines += [f"{name}  {describe(machine)}" for machine, name in report.machines.items() if machine in used]
    lines += [report.source, *(f"note: {note}" for note in report.notes)]
    return "".join(f"{harmless(shown(line)) if line else ''}\n" for line in lines)


def _course_lines(course: Course, machines: Mapping[Machine, str]) -> Iterator[str]:
    yield course.test
    rows = [(line_name(line, machines), blocks(line), line_facts(line)) for line in course.lines]
    wide, long = (max((len(row[place]) for row in rows), default=0) for place in (0, 1))
    for name, drawn, facts in rows:
        yield f"  {name:<{wide}}  {drawn:<{long}}  {facts}"
    for step in course.steps:
        yield f"  {step_text(step)}"
        for commit in step.commits[-_COMMITS_MOST:]:
            yield f"    {commit_text(commit)}"
        if len(step.commits) > _COMMITS_MOST:
            yield f"    and {len(step.commits) - _COMMITS_MOST} before"
        if command := step_command(course, step):
            yield f"    {command}"
    for line in course.lines:
        for segment in line.segments:
            if segment.begins in (Break.CLOCK, Break.WORKLOAD):
                yield f"  {line_name(line, machines)}, {_short(segment.points[0].commit)}: {break_text(segment)}"


def blocks(line: Line) -> str:
    """Return a line as blocks, higher is slower; a blank stands between segments."""
    each = math.ceil(len(line.points) / _COLUMNS)
    rows = [
        [
            sum(math.log(point.value) for point in segment.points[place : place + each])
            / len(segment.points[place : place + each])
            for place in range(0, len(segment.points), each)
        ]
        for segment in line.segments
    ]
    low, high = min(map(min, rows)), max(map(max, rows))
    span = max(high - low, _LEAST_SPAN)
    return " ".join("".join(_BLOCKS[round((value - low) / span * (len(_BLOCKS) - 1))] for value in row) for row in rows)
