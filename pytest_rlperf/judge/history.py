"""The course of a test's time over commits: lines that can be compared, chains of live ratios, and change points."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from pytest_rlperf.judge.stats import normal_quantile, squared_deviations, student_quantile
from pytest_rlperf.model.history import (
    Break,
    Course,
    Line,
    LoggedCommit,
    PackageChange,
    Point,
    Segment,
    Session,
    Step,
)
from pytest_rlperf.model.judged import CONFIDENCE, LIVE_TOLERANCE, Estimate, Outcome, Status
from pytest_rlperf.model.reasons import Code, VersionChange
from pytest_rlperf.model.stored import LARGEST_LOG, Link, Machine

FALSE_STEPS = 0.05  # the chance of any change point in a segment, or a chain, of equal code
LEAST_POINTS = 3  # on either side of a change point of a stored line: one odd session is none
LEAST_CHANGE = LIVE_TOLERANCE / 2  # of a change point; a search for the commit counts less as no change too
LEAST_TOLERANCE = 0.005  # of a search
_SAME_SIZE = 0.05
_DIGITS = 12  # of a SHA: the names of sessions have no more
_UNUSABLE = (Status.INVALID, Status.INCOMPARABLE, Status.ERROR)


# ----------------------------------------------------------------------- live comparisons


def link_of(
    base: str | None, head: str | None, outcome: Outcome, packages: Iterable[VersionChange] = ()
) -> Link | None:
    """Return a test's live comparison of two commits, by full SHAs; None where there was none of these two.

    Equal code is a link too: its ratio is 1 without an error.
    """
    verdict, live = outcome.verdict, outcome.live
    if base is None or head is None or base == head or verdict.status in _UNUSABLE:
        return None
    if live is None:
        is_equal = verdict.reason.code in (Code.CODE, Code.ENVIRONMENT)
        return Link(base, head, 0.0, 0.0, tuple(packages)) if is_equal else None
    estimate = verdict.estimate
    if estimate is None or live.base_commit != base or not 0 < estimate.low <= estimate.high < math.inf:
        return None
    error = standard_error(estimate)
    return Link(base, head, math.log(estimate.ratio), error, tuple(packages)) if error <= LARGEST_LOG else None


def standard_error(estimate: Estimate) -> float:
    """Return the standard error of a ratio's logarithm whose normal interval is as wide as the estimate's own."""
    return math.log(estimate.high / estimate.low) / (2 * normal_quantile((1 + estimate.confidence) / 2))


def chains(links: Iterable[Link], order: Mapping[str, int], times: Mapping[str, str]) -> list[list[Link]]:
    """Return live comparisons in rows, each of which begins at the commit where the one before it ends.

    ``order`` is the place of each commit in the first-parent history; where it is not empty, comparisons of other
    commits are left out, and the rows come in its order, else in that of ``times``. Of several with one head the one
    with the nearest base stays, of these the most exact.
    """
    nearest: dict[str, Link] = {}
    for link in links:
        if order and not order.get(link.base, math.inf) < order.get(link.head, -math.inf):
            continue
        other = nearest.setdefault(link.head, link)
        if (-order.get(link.base, 0), link.error) < (-order.get(other.base, 0), other.error):
            nearest[link.head] = link
    found: list[list[Link]] = []
    for link in sorted(nearest.values(), key=lambda each: (order.get(each.head, 0), times.get(each.head, ""))):
        before = next((row for row in reversed(found) if row[-1].head == link.base), None)
        if before is None:
            found.append([link])
        else:
            before.append(link)
    return found


def _chain_segment(
    row: Sequence[Link], order: Mapping[str, int], times: Mapping[str, str], *, is_first: bool
) -> Segment:
    """Return the products along a chain: errors of independent comparisons add up in squares."""
    ratios = accumulate((link.log_ratio for link in row), initial=0.0)
    errors = accumulate((link.error for link in row), math.hypot, initial=0.0)
    points = (
        Point(times.get(sha, ""), sha, _ratio(log_ratio), min(error, LARGEST_LOG), place=order.get(sha))
        for sha, log_ratio, error in zip([row[0].base, *(link.head for link in row)], ratios, errors, strict=True)
    )
    return Segment(tuple(points), Break.FIRST if is_first else Break.GAP)


# ----------------------------------------------------------------------- stored sessions


def _in_order(
    sessions: Iterable[Session], commits: Sequence[LoggedCommit], order: Mapping[str, int]
) -> tuple[list[Session], list[Session]]:
    """Return the sessions of one machine class in the order of their commits, and those that have no place in it.

    Commits that were measured before the history begins, as a shallow clone's may, come first, in the order of time. So
    do all sessions where the history has none of them.
    """
    timed = sorted(sessions, key=lambda each: each.created)
    placed = [session for session in timed if session.commit[:_DIGITS] in order]
    if not placed:
        return timed, []
    others = [session for session in timed if session.commit[:_DIGITS] not in order]
    begins = commits[0].created
    early = [session for session in others if session.commit and session.created < begins]
    left = [session for session in others if not (session.commit and session.created < begins)]
    placed.sort(key=lambda each: order[each.commit[:_DIGITS]])
    return [*early, *placed], left


def _stored_line(ordered: Sequence[Session], order: Mapping[str, int], free: Collection[str]) -> Line:
    """Return ordered sessions of one machine class as a line.

    Its values are multiples of the kernel by which they vary less from one session to the next.
    """
    groups: list[tuple[Break, tuple[PackageChange, ...], list[Session]]] = []
    versions: dict[str, str] = {}
    for session in ordered:
        changed = _changed(versions, session.packages or {}, free)
        begins = _break(groups[-1][2][-1], session, changed) if groups else Break.FIRST
        if begins is not None:
            groups.append((begins, changed if begins is Break.PACKAGES else (), []))
        groups[-1][2].append(session)
        versions |= session.packages or {}
    pace = _calmer([group for _, _, group in groups])
    segments = (
        Segment(tuple(_point(session, pace, order) for session in group), begins, packages)
        for begins, packages, group in groups
    )
    return Line(ordered[0].machine, "interpreter" if pace == "relative" else "memory", tuple(segments))


def _changed(then: Mapping[str, str], now: Mapping[str, str], free: Collection[str]) -> tuple[PackageChange, ...]:
    """Return the packages whose versions differ; of one that was loaded on one side alone nothing is known."""
    both = sorted(then.keys() & now.keys())
    return tuple((name, then[name], now[name]) for name in both if then[name] != now[name] and name not in free)


def _break(before: Session, now: Session, changed: Sequence[PackageChange]) -> Break | None:
    """Return why two sessions in a row cannot be compared, None where they can."""
    if before.work[:2] != now.work[:2] or not math.isclose(before.work[2], now.work[2], rel_tol=_SAME_SIZE):
        return Break.WORKLOAD
    if before.clock != now.clock:
        return Break.CLOCK
    return Break.PACKAGES if changed else None


def _calmer(groups: Sequence[Sequence[Session]]) -> str:
    """Return the pace by which sessions in a row differ less."""

    def roughness(pace: str) -> float:
        logs = ([math.log(getattr(session, pace)) for session in group] for group in groups)
        return sum((later - earlier) ** 2 for group in logs for earlier, later in pairwise(group))

    return min(("relative", "relative_memory"), key=roughness)


def _point(session: Session, pace: str, order: Mapping[str, int]) -> Point:
    error = session.error if pace == "relative" else session.error_memory
    place = order.get(session.commit[:_DIGITS])
    return Point(session.created, session.commit, getattr(session, pace), error, session.call_s, place)


# ----------------------------------------------------------------------- change points


def change_points(logs: Sequence[float], error: float) -> list[int]:
    """Return the places at which new levels begin in a row of logarithms; ImportError without ruptures.

    The segmentation is that of least squares with a penalty for each change. A change is worth σ² t², t being Student's
    quantile for a chance of ``FALSE_STEPS`` in all, shared by all places a single change could have (Bonferroni's
    inequality for the largest of the statistics of a shift at each place: K. J. Worsley, "On the likelihood ratio test
    for a shift in location of normal populations", JASA 74, 1979). σ² is half the mean squared difference of
    neighbours, into which a shift enters once, at its degrees of freedom (J. von Neumann et al., "The mean square
    successive difference", Ann. Math. Stat. 12, 1941), and no less than ``error``².
    """
    count = len(logs)
    places = count - 2 * LEAST_POINTS + 1
    if places < 1:
        return []
    import numpy as np
    import ruptures

    freedom = 2 * (count - 1) ** 2 / (3 * count - 4)
    quantile = student_quantile(1 - FALSE_STEPS / (2 * places), freedom)
    penalty = max(_neighbours(logs), error**2, 1e-18) * quantile**2
    search = ruptures.KernelCPD(kernel="linear", min_size=LEAST_POINTS).fit(np.array(logs).reshape(-1, 1))
    found: list[int] = search.predict(pen=penalty)
    return found[:-1]


def _neighbours(logs: Sequence[float]) -> float:
    """Return the variance of a row as half the mean squared difference of neighbours."""
    return sum((later - earlier) ** 2 for earlier, later in pairwise(logs)) / (2 * (len(logs) - 1))


def _stored_steps(line: Line) -> list[Step]:
    """Return the change points of a line of sessions, with the change of the levels on either side."""
    found = []
    for segment in line.segments:
        points = segment.points
        logs = [math.log(point.value) for point in points]
        error = math.hypot(*(point.error for point in points)) / math.sqrt(len(points))
        places = change_points(logs, error)
        levels = [logs[begin:end] for begin, end in pairwise([0, *places, len(logs)])]
        freedom = len(logs) - len(levels)
        noise = sum(map(squared_deviations, levels)) / max(1, freedom)
        for place, (before, after) in zip(places, pairwise(levels), strict=True):
            change = math.fsum(after) / len(after) - math.fsum(before) / len(before)
            squared = max(noise, error**2) * (1 / len(before) + 1 / len(after))
            half = student_quantile((1 + CONFIDENCE) / 2, freedom) * math.sqrt(squared)
            found.append(_step(line.machine, points[place - 1], points[place], change, half))
    return found


def _chain_steps(row: Sequence[Link], segment: Segment) -> list[Step]:
    """Return the links of a chain that differ from no change, all of them sharing ``FALSE_STEPS``."""
    least = normal_quantile(1 - FALSE_STEPS / (2 * len(row)))
    width = normal_quantile((1 + CONFIDENCE) / 2)
    return [
        _step(None, before, after, link.log_ratio, width * link.error)
        for link, (before, after) in zip(row, pairwise(segment.points), strict=True)
        if abs(link.log_ratio) > least * link.error
    ]


def _step(machine: Machine | None, before: Point, after: Point, change: float, half: float) -> Step:
    # Live pairs are SLOWER for certain from 4/3 of the tolerance on.
    tolerance = None if change > math.log1p(4 / 3 * LIVE_TOLERANCE) else max(LEAST_TOLERANCE, math.expm1(change) / 2)
    ratios = (_ratio(change), _ratio(change - half), _ratio(change + half))
    return Step(machine, before, after, *ratios, tolerance=tolerance)


def _ratio(log_ratio: float) -> float:
    """Return a ratio by its logarithm, as large or small as there is any sense in."""
    return math.exp(max(-LARGEST_LOG, min(log_ratio, LARGEST_LOG)))


# ----------------------------------------------------------------------- courses


def courses(
    sessions: Mapping[str, Collection[Session]],
    links: Mapping[str, Collection[Link]],
    commits: Sequence[LoggedCommit],
    free: Collection[str],
    times: Mapping[str, str],
) -> list[Course]:
    """Return the course of every test that there are sessions or live comparisons of.

    ``commits`` are the first-parent history, oldest first, empty without a repository; then ``times`` are when commits
    were measured, as far as that is known. ``free`` are packages whose versions begin no new segment.
    """
    times = {commit.sha: commit.created for commit in commits} or times
    # Full SHAs of links, and the first digits of sessions'.
    order = {key: place for place, commit in enumerate(commits) for key in (commit.sha, commit.sha[:_DIGITS])}
    tests = dict.fromkeys((*sessions, *links))
    return [_course(test, sessions.get(test, ()), links.get(test, ()), commits, order, free, times) for test in tests]


def _course(
    test: str,
    sessions: Collection[Session],
    links: Iterable[Link],
    commits: Sequence[LoggedCommit],
    order: Mapping[str, int],
    free: Collection[str],
    times: Mapping[str, str],
) -> Course:
    """Return a test's course; where a chain has both ends of a change in a stored line, the chain decides."""
    rows = chains(links, order, times)
    segments = [_chain_segment(row, order, times, is_first=not number) for number, row in enumerate(rows)]
    lines = [Line(None, "", tuple(segments))] if rows else []
    steps = [step for row, segment in zip(rows, segments, strict=True) for step in _chain_steps(row, segment)]
    live = [{point.commit[:_DIGITS] for point in segment.points} for segment in segments]
    is_searched, left_off = True, []
    for machine in dict.fromkeys(session.machine for session in sessions):
        ordered, others = _in_order([each for each in sessions if each.machine == machine], commits, order)
        line = _stored_line(ordered, order, free)
        lines.append(line)
        left_off += others
        try:
            found = _stored_steps(line)
        except ImportError:
            is_searched = False
            continue
        steps += [step for step in found if not any(_ends(step) <= chain for chain in live)]
    known = [step for step in steps if abs(math.log(step.ratio)) >= math.log1p(LEAST_CHANGE)]
    whole = tuple(_with_commits(step, commits, order) for step in known)
    return Course(test, tuple(lines), whole, is_searched, tuple(left_off))


def _ends(step: Step) -> set[str]:
    """Return the commits on both sides of a change."""
    return {point.commit[:_DIGITS] for point in (step.before, step.after)}


def _with_commits(step: Step, commits: Sequence[LoggedCommit], order: Mapping[str, int]) -> Step:
    """Return a change with the commits that lie between its ends."""
    before, after = (order.get(point.commit[:_DIGITS]) for point in (step.before, step.after))
    if before is None or after is None:
        return step
    return replace(step, commits=tuple(commits[before + 1 : after + 1]))
