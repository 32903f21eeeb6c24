"""The page of the courses of tests over commits: the places of all points and lines, and every course in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.model.history import Break, Course, Line, LoggedCommit, Point, Step
from pytest_rlperf.model.stored import Machine
from pytest_rlperf.report.history import (
    CONFIDENCE_Z,
    HistoryReport,
    break_text,
    commit_text,
    line_facts,
    line_name,
    since_text,
    step_command,
    step_text,
)
from pytest_rlperf.report.html.charts import Axis, around
from pytest_rlperf.report.html.page import environment

_MOST = 1e30  # of a value by the first one: forged figures must not leave the axis without an end
_LEAST_RANGE = (-2.5, 2.5)  # per cent that a plot shows at least, so that noise looks small
_LABELS_MOST = 6  # commits named below a plot
_UNFOLDED_MOST = 5  # tests whose plots are shown though they have not changed


@dataclass(frozen=True)
class Dot:
    """A point of a plot with the ends of its interval, in per cent, and the text that a pointer shows."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Rule:
    """An upright line between two points: a ``step``, with its change as label, or a ``break`` between segments."""

    kind: str
    x: float
    label: str
    text: str


@dataclass(frozen=True)
class CoursePlot:
    """One line of a test: its points by segment, rules between them, and labelled places of both axes."""

    title: str
    words: str
    rows: Sequence[Sequence[Dot]]
    rules: Sequence[Rule]
    ticks: Sequence[tuple[float, str]]
    labels: Sequence[tuple[float, str]]


@dataclass(frozen=True)
class Change:
    """A change in words, the commits that lie between, and the search that names one."""

    text: str
    commits: Sequence[str]
    command: str


@dataclass(frozen=True)
class TestCourse:
    """A test's plots and changes."""

    key: str
    plots: Sequence[CoursePlot]
    changes: Sequence[Change]


def render_history_page(report: HistoryReport) -> str:
    """Return the courses as one page that needs nothing beside itself; OutputError without jinja2."""
    ordered = sorted(report.courses, key=_gravity)
    tests = [
        TestCourse(
            course.test,
            [_plot(course, line, report.machines) for line in course.lines],
            [_change(course, step) for step in course.steps],
        )
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


def _slowdown(course: Course) -> Step | None:
    """Return the largest slowdown of a test, None where it never got slower."""
    return max((step for step in course.steps if step.is_slower), key=lambda step: step.ratio, default=None)


def _gravity(course: Course) -> tuple[float, bool]:
    """Return the key that sorts tests: the largest slowdowns first, then those that only got faster."""
    slowdown = _slowdown(course)
    return 0.0 if slowdown is None else -slowdown.ratio, not course.steps


def _headline(ordered: Sequence[Course]) -> str:
    """Return the result in one sentence, with the largest slowdown and the commit since which it is there."""
    slower = [step for step in map(_slowdown, ordered) if step is not None]
    tests = units.counted(len(ordered), "test")
    if not slower:
        has_faster = any(course.steps for course in ordered)
        return f"None of {tests} got slower" if has_faster else f"No change in the course of {tests}"
    change, name = units.change(slower[0].ratio), ordered[0].test.rpartition("::")[2]
    which = ":" if len(slower) == 1 else ", most of all"
    return f"{len(slower)} of {tests} got slower{which} {name} {change} since {since_text(slower[0])}"


def _change(course: Course, step: Step) -> Change:
    commits: Sequence[LoggedCommit] = step.commits
    return Change(step_text(step), [commit_text(commit) for commit in commits], step_command(course, step))


def _plot(course: Course, line: Line, machines: Mapping[Machine, str]) -> CoursePlot:
    places = _places(course, line)
    first = line.points[0].value
    bounds = [_percent(value, first) for point in line.points for value in _interval(point, line)]
    axis = around([*bounds, *_LEAST_RANGE])
    rows = [
        [_dot(point, places[id(point)], axis, first, line) for point in segment.points] for segment in line.segments
    ]
    what = (
        "Live pairs, each with the commit before" if line.machine is None else f"Stored on {line_name(line, machines)}"
    )
    return CoursePlot(
        title=what,
        words=line_facts(line),
        rows=rows,
        rules=[*_steps(course, line, places), *_breaks(line, places)],
        ticks=[(100 - y, label) for y, label in axis.ticks("+", " %")],
        labels=_labels(line, places),
    )


def _places(course: Course, line: Line) -> dict[int, float]:
    """Return each point's place across: by its commit, the same in all lines of a test, else one after another."""
    everything = [point for each in course.lines for point in each.points]
    if all(point.place is not None for point in everything):
        ranks = {place: rank for rank, place in enumerate(sorted({point.place or 0 for point in everything}))}
        last = max(1, len(ranks) - 1)
        return {id(point): 100 * ranks[point.place or 0] / last for point in line.points}
    last = max(1, len(line.points) - 1)
    return {id(point): 100 * number / last for number, point in enumerate(line.points)}


def _interval(point: Point, line: Line) -> tuple[float, float]:
    """Return the ends of a point's 99 % interval; of a session the workers' spread says less, so it has none."""
    half = CONFIDENCE_Z * point.error if line.machine is None else 0.0
    return point.value * math.exp(-half), point.value * math.exp(half)


def _dot(point: Point, x: float, axis: Axis, first: float, line: Line) -> Dot:
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
    before: Point | None = None
    for segment in line.segments:
        if before is not None and segment.begins is not Break.FIRST:
            first = segment.points[0]
            x = (places[id(before)] + places[id(first)]) / 2
            yield Rule("break", x, "", f"{first.commit[:12] or first.created}: {break_text(segment)}")
        before = segment.points[-1]


def _labels(line: Line, places: Mapping[int, float]) -> list[tuple[float, str]]:
    """Return some commits of a line with their places, the first and the last among them."""
    points = line.points
    count = min(_LABELS_MOST, len(points))
    chosen = [points[round(number * (len(points) - 1) / max(1, count - 1))] for number in range(count)]
    return [(places[id(point)], point.commit[:7] or point.created[:10]) for point in dict.fromkeys(chosen)]
