"""The courses of tests over commits: in words, in a terminal, and as a page with plots."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.errors import for_log, shown
from pytest_rlperf.model.stored import Break, ChainPoint, ChainStep, Course, Line, LoggedCommit, Machine, Segment
from pytest_rlperf.report.charts import Axis, around
from pytest_rlperf.report.html import environment

_CONFIDENCE_Z = 2.5758  # of a normal 99 % interval
_BLOCKS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60  # of a course; neighbours share a block if there are more points
_LEAST_SPAN = math.log(1.05)  # from the lowest block to the highest: noise stays low
_COMMITS_MOST = 5
_DIGITS = 12
_BREAKS = {
    Break.CLOCK: "another clock decides from there on",
    Break.WORKLOAD: "another workload from there on",
    Break.GAP: "no live comparison joins it with the one before",
}
_MOST = 1e30  # of a value relative to the first: forged figures must not leave the axis without an end
_LEAST_RANGE = (-2.5, 2.5)  # per cent that a plot shows at least, so that noise looks small
_LABELS_MOST = 6  # commits named below a plot
_UNFOLDED_MOST = 5  # tests whose plots are shown even though they have not changed


class HistoryReport(msgspec.Struct, frozen=True):
    """The courses of tests, the names of machine classes, and notes; ``source`` names in words what was read."""

    courses: tuple[Course, ...]
    machines: Mapping[Machine, str]
    source: str
    notes: tuple[str, ...] = ()


# --------------------------------------------------------------------------- words


def line_name(line: Line, machines: Mapping[Machine, str]) -> str:
    """Return a line's name: live, or the machine class."""
    return "live" if line.machine is None else machines[line.machine]


def line_facts(line: Line) -> str:
    """Return a line's first and last value in words, and how many points there are."""
    points = line.points
    if line.machine is None:
        return "; ".join(_product(segment) for segment in line.segments)
    first, last = (units.number(point.value, 3) for point in (points[0], points[-1]))
    return f"{first} → {last} × {line.kernel} kernel, {units.counted(len(points), 'session')}"


def _product(segment: Segment) -> str:
    """Return the product along a chain with its interval."""
    last, links = segment.points[-1], len(segment.points) - 1
    factor = math.exp(_CONFIDENCE_Z * last.error)
    low, high = (units.change(bound, last.value) for bound in (last.value / factor, last.value * factor))
    ends = f"{_short(segment.points[0].commit)}..{_short(last.commit)}"
    return f"{units.change(last.value)} [{low}, {high}] over {units.counted(links, 'link')}, {ends}"


def step_text(step: ChainStep) -> str:
    """Return a change in words: its size, and how many commits lie between."""
    low, high = (units.change(bound, step.ratio) for bound in (step.low, step.high))
    interval = f"{units.change(step.ratio)} [{low}, {high}]"
    ends = [_short(point.commit) for point in (step.before, step.after)]
    between = units.counted(len(step.commits), "commit") if step.commits else "commits that are not in this history"
    return (
        f"{'slower' if step.is_slower else 'faster'} {interval} by live pairs, from {ends[0]} to {ends[1]}: {between}"
    )


def since_text(step: ChainStep) -> str:
    """Return the commit with which a change was first measured and its day, or only the day."""
    return " of ".join(filter(None, [_short(step.after.commit), step.after.created[:10]]))


def step_command(course: Course, step: ChainStep) -> str:
    """Return the command that finds the commit of a slowdown; empty if nothing can be searched."""
    if not step.commits or not step.is_slower:
        return ""
    spec = f"{_short(step.before.commit)}..{_short(step.commits[-1].sha)}"
    tolerance = "" if step.tolerance is None else f" --rlperf-tolerance={100 * step.tolerance:.1f}%"
    return f"rlperf bisect {spec} {shlex.quote(course.test)}{tolerance}"


def commit_text(commit: LoggedCommit) -> str:
    """Return a commit in one line."""
    return f"{_short(commit.sha)} {commit.created[:10]} {commit.author}: {commit.subject}"


def _short(sha: str) -> str:
    return sha[:_DIGITS]


# --------------------------------------------------------------------------- the terminal


def render_history(report: HistoryReport) -> str:
    """Return the courses as text: a row of blocks for each line of a test, then its changes."""
    lines = [line for course in report.courses for line in (*_course_lines(course, report.machines), "")]
    used = {line.machine for course in report.courses for line in course.lines}
    lines += [f"{name}  {describe(machine)}" for machine, name in report.machines.items() if machine in used]
    lines += [report.source, *(f"note: {note}" for note in report.notes)]
    return for_log("".join(f"{shown(line) if line else ''}\n" for line in lines))


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
                yield f"  {line_name(line, machines)}, {_short(segment.points[0].commit)}: {_BREAKS[segment.begins]}"


def blocks(line: Line) -> str:
    """Return a line as blocks, with a blank between segments; higher is slower."""
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


# --------------------------------------------------------------------------- the page


class Dot(msgspec.Struct, frozen=True):
    """A point of a plot: its place and its interval in per cent, and the text that a pointer shows."""

    x: float
    y: float
    low: float
    high: float
    text: str


class Rule(msgspec.Struct, frozen=True):
    """An upright line between two points: a ``step``, with its change as label, or a ``break`` between segments."""

    kind: str
    x: float
    label: str
    text: str


def render_history_page(report: HistoryReport) -> str:
    """Return the courses as one self-contained page; OutputError without jinja2."""
    ordered = sorted(report.courses, key=_gravity)
    tests = [
        {
            "key": course.test,
            "plots": [_plot(course, line, report.machines) for line in course.lines],
            "changes": [
                (step_text(step), [commit_text(commit) for commit in step.commits], step_command(course, step))
                for step in course.steps
            ],
        }
        for course in ordered
    ]
    return (
        environment()
        .get_template("history.html")
        .render(
            headline=_headline(ordered),
            facts=[
                ("read", report.source.removeprefix("read ")),
                *((f"machine {name}", describe(machine)) for machine, name in report.machines.items()),
                *(("note", note) for note in report.notes),
            ],
            tests=tests,
            unfolded=_UNFOLDED_MOST,
        )
    )


def _slowdown(course: Course) -> ChainStep | None:
    """Return the largest slowdown of a test; None if it never got slower."""
    return max((step for step in course.steps if step.is_slower), key=lambda step: step.ratio, default=None)


def _gravity(course: Course) -> tuple[float, bool]:
    """Return the key that sorts tests: the largest slowdowns first, then tests that only got faster."""
    slowdown = _slowdown(course)
    return 0.0 if slowdown is None else -slowdown.ratio, not course.steps


def _headline(ordered: Sequence[Course]) -> str:
    """Return the result in one sentence, with the largest slowdown and the commit that it began with."""
    slower = [step for step in map(_slowdown, ordered) if step is not None]
    tests = units.counted(len(ordered), "test")
    if not slower:
        has_faster = any(course.steps for course in ordered)
        return f"None of {tests} got slower" if has_faster else f"No change in the history of {tests}"
    change, name = units.change(slower[0].ratio), ordered[0].test.rpartition("::")[2]
    which = ":" if len(slower) == 1 else ", most of all"
    return f"{len(slower)} of {tests} got slower{which} {name} {change} since {since_text(slower[0])}"


def _plot(course: Course, line: Line, machines: Mapping[Machine, str]) -> dict[str, Any]:
    """Return a line of a test: its points by segment, rules between them, and labelled places of both axes."""
    last = max(1, len(line.points) - 1)
    places = {id(point): 100 * number / last for number, point in enumerate(line.points)}
    first = line.points[0].value
    bounds = [_percent(value, first) for point in line.points for value in _interval(point, line)]
    axis = around([*bounds, *_LEAST_RANGE])
    rows = [
        [_dot(point, places[id(point)], axis, first, line) for point in segment.points] for segment in line.segments
    ]
    return {
        "title": f"Stored on {line_name(line, machines)}"
        if line.machine
        else "Live pairs, each with the commit before",
        "words": line_facts(line),
        "rows": rows,
        "rules": [*_steps(course, line, places), *_breaks(line, places)],
        "ticks": [(100 - y, label) for y, label in axis.ticks()],
        "labels": _labels(line, places),
    }


def _interval(point: ChainPoint, line: Line) -> tuple[float, float]:
    """Return the ends of a point's 99 % interval; a session has none, as its workers' spread says too little."""
    half = _CONFIDENCE_Z * point.error if line.machine is None else 0.0
    return point.value * math.exp(-half), point.value * math.exp(half)


def _dot(point: ChainPoint, x: float, axis: Axis, first: float, line: Line) -> Dot:
    low, high = _interval(point, line)
    y, upper, lower = (100 - axis.at(_percent(value, first)) for value in (point.value, high, low))
    call = "" if point.call_s is None else f", {units.seconds(point.call_s)} per call"
    change = f"{_percent(point.value, first):+.1f} %"
    return Dot(x, y, upper, lower, f"{point.commit[:12] or point.created} {point.created[:10]}: {change}{call}")


def _percent(value: float, first: float) -> float:
    return 100 * (min(value / first, _MOST) - 1)


def _steps(course: Course, line: Line, places: Mapping[int, float]) -> Iterator[Rule]:
    known = {(point.commit, point.created): places[id(point)] for point in line.points}
    for step in course.steps if line.machine is None else ():
        x = sum(known[point.commit, point.created] for point in (step.before, step.after)) / 2
        yield Rule("slowdown" if step.is_slower else "speedup", x, units.change(step.ratio), "")


def _breaks(line: Line, places: Mapping[int, float]) -> Iterator[Rule]:
    before: ChainPoint | None = None
    for segment in line.segments:
        if before is not None and segment.begins is not Break.FIRST:
            first = segment.points[0]
            x = (places[id(before)] + places[id(first)]) / 2
            yield Rule("break", x, "", f"{first.commit[:12] or first.created}: {_BREAKS[segment.begins]}")
        before = segment.points[-1]


def _labels(line: Line, places: Mapping[int, float]) -> list[tuple[float, str]]:
    """Return some commits of a line with their places, including the first and the last."""
    points = line.points
    count = min(_LABELS_MOST, len(points))
    chosen = [points[round(number * (len(points) - 1) / max(1, count - 1))] for number in range(count)]
    return [(places[id(point)], point.commit[:7] or point.created[:10]) for point in dict.fromkeys(chosen)]
