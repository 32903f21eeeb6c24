"""The course of a test's time over commits: lines that can be compared, chains of live ratios, and their changes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec.structs import replace

from pytest_rlperf.judge.stats import normal_quantile
from pytest_rlperf.model.judged import CONFIDENCE, LIVE_TOLERANCE, Estimate, Outcome, Status
from pytest_rlperf.model.reasons import Code, VersionChange
from pytest_rlperf.model.stored import (
    LARGEST_LOG,
    Break,
    ChainPoint,
    ChainStep,
    Course,
    Line,
    Link,
    LoggedCommit,
    Segment,
    StoredSession,
)

FALSE_STEPS = 0.05  # the chance of any change in a chain of equal code
LEAST_CHANGE = LIVE_TOLERANCE / 2  # a search for the commit also treats less as no change
LEAST_TOLERANCE = 0.005  # of a search
_SAME_SIZE = 0.05
_DIGITS = 12  # of a SHA: names of sessions have only these
_UNUSABLE = (Status.INVALID, Status.INCOMPARABLE, Status.ERROR)


# ----------------------------------------------------------------------- live comparisons


def link_of(
    base: str | None, head: str | None, outcome: Outcome, packages: Iterable[VersionChange] = ()
) -> Link | None:
    """Return a test's live comparison of two commits, by full SHAs; None if these two were not compared.

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
    """Return the standard error of a ratio's logarithm that gives a normal interval as wide as the estimate's own."""
    return math.log(estimate.high / estimate.low) / (2 * normal_quantile((1 + estimate.confidence) / 2))


def chains(links: Iterable[Link], order: Mapping[str, int], times: Mapping[str, str]) -> list[list[Link]]:
    """Return live comparisons in rows; in a row each comparison begins at the commit where the one before it ends.

    ``order`` is the place of each commit in the first-parent history. If it is not empty, comparisons of other commits
    are left out, and the rows come in its order, else in that of ``times``. Of several comparisons with one head, the
    one with the nearest base stays, and of these the most exact one.
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
    """Return the products along a chain; the squared errors of independent comparisons add up."""
    ratios = accumulate((link.log_ratio for link in row), initial=0.0)
    errors = accumulate((link.error for link in row), math.hypot, initial=0.0)
    points = (
        ChainPoint(times.get(sha, ""), sha, _ratio(log_ratio), min(error, LARGEST_LOG), place=order.get(sha))
        for sha, log_ratio, error in zip([row[0].base, *(link.head for link in row)], ratios, errors, strict=True)
    )
    return Segment(tuple(points), Break.FIRST if is_first else Break.GAP)


# ----------------------------------------------------------------------- stored sessions


def _in_order(sessions: Iterable[StoredSession], order: Mapping[str, int]) -> list[StoredSession]:
    """Return the sessions of one machine class in the order of their commits, without those that have no place in it.

    If the history has none of the commits, the sessions are in the order of time.
    """
    timed = sorted(sessions, key=lambda each: each.created)
    placed = [session for session in timed if session.commit[:_DIGITS] in order]
    return sorted(placed, key=lambda each: order[each.commit[:_DIGITS]]) or timed


def _stored_line(ordered: Sequence[StoredSession], order: Mapping[str, int]) -> Line:
    """Return ordered sessions of one machine class as a line.

    Its values are multiples of the kernel with which they mostly vary less from one session to the next.
    """
    groups: list[tuple[Break, list[StoredSession]]] = []
    for session in ordered:
        begins = _break(groups[-1][1][-1], session) if groups else Break.FIRST
        if begins is not None:
            groups.append((begins, []))
        groups[-1][1].append(session)
    pace = _calmer([group for _, group in groups])
    segments = (Segment(tuple(_point(session, pace, order) for session in group), begins) for begins, group in groups)
    return Line(ordered[0].machine, "interpreter" if pace == "relative" else "memory", tuple(segments))


def _break(before: StoredSession, now: StoredSession) -> Break | None:
    """Return why two successive sessions cannot be compared; None if they can."""
    if before.work[:2] != now.work[:2] or not math.isclose(before.work[2], now.work[2], rel_tol=_SAME_SIZE):
        return Break.WORKLOAD
    return Break.CLOCK if before.clock != now.clock else None


def _calmer(groups: Sequence[Sequence[StoredSession]]) -> str:
    """Return the pace by which most successive sessions differ less; a change of the code is one step among them."""

    def roughness(pace: str) -> float:
        logs = ([math.log(getattr(session, pace)) for session in group] for group in groups)
        steps = [abs(later - earlier) for group in logs for earlier, later in pairwise(group)]
        return statistics.median(steps) if steps else 0.0

    return min(("relative", "relative_memory"), key=roughness)


def _point(session: StoredSession, pace: str, order: Mapping[str, int]) -> ChainPoint:
    place = order.get(session.commit[:_DIGITS])
    return ChainPoint(session.created, session.commit, getattr(session, pace), 0.0, session.call_s, place)


# ----------------------------------------------------------------------- changes


def _chain_steps(row: Sequence[Link], segment: Segment) -> list[ChainStep]:
    """Return the links of a chain that show a change; all links share the error rate ``FALSE_STEPS``."""
    least = normal_quantile(1 - FALSE_STEPS / (2 * len(row)))
    width = normal_quantile((1 + CONFIDENCE) / 2)
    return [
        _step(before, after, link.log_ratio, width * link.error)
        for link, (before, after) in zip(row, pairwise(segment.points), strict=True)
        if abs(link.log_ratio) > least * link.error
    ]


def _step(before: ChainPoint, after: ChainPoint, change: float, half: float) -> ChainStep:
    # Live pairs are almost always SLOWER from 4/3 of the tolerance on.
    tolerance = None if change > math.log1p(4 / 3 * LIVE_TOLERANCE) else max(LEAST_TOLERANCE, math.expm1(change) / 2)
    ratios = (_ratio(change), _ratio(change - half), _ratio(change + half))
    return ChainStep(before, after, *ratios, tolerance=tolerance)


def _ratio(log_ratio: float) -> float:
    """Return a ratio from its logarithm, limited to sensible values."""
    return math.exp(max(-LARGEST_LOG, min(log_ratio, LARGEST_LOG)))


# ----------------------------------------------------------------------- courses


def courses(
    sessions: Mapping[str, Collection[StoredSession]],
    links: Mapping[str, Collection[Link]],
    commits: Sequence[LoggedCommit],
) -> list[Course]:
    """Return the course of every test that has sessions or live comparisons.

    ``commits`` are the first-parent history, oldest first.
    """
    times = {commit.sha: commit.created for commit in commits}
    # Links have full SHAs, and sessions their first digits.
    order = {key: place for place, commit in enumerate(commits) for key in (commit.sha, commit.sha[:_DIGITS])}
    tests = dict.fromkeys((*sessions, *links))
    return [_course(test, sessions.get(test, ()), links.get(test, ()), commits, order, times) for test in tests]


def _course(
    test: str,
    sessions: Collection[StoredSession],
    links: Iterable[Link],
    commits: Sequence[LoggedCommit],
    order: Mapping[str, int],
    times: Mapping[str, str],
) -> Course:
    """Return a test's course, with the changes in its chain."""
    rows = chains(links, order, times)
    segments = [_chain_segment(row, order, times, is_first=not number) for number, row in enumerate(rows)]
    lines = [Line(None, "", tuple(segments))] if rows else []
    for machine in dict.fromkeys(session.machine for session in sessions):
        lines.append(_stored_line(_in_order([each for each in sessions if each.machine == machine], order), order))
    steps = [step for row, segment in zip(rows, segments, strict=True) for step in _chain_steps(row, segment)]
    known = [step for step in steps if abs(math.log(step.ratio)) >= math.log1p(LEAST_CHANGE)]
    whole = tuple(_with_commits(step, commits, order) for step in known)
    return Course(test, tuple(lines), whole)


def _with_commits(step: ChainStep, commits: Sequence[LoggedCommit], order: Mapping[str, int]) -> ChainStep:
    """Return a change with the commits between its ends."""
    before, after = (order.get(point.commit[:_DIGITS]) for point in (step.before, step.after))
    if before is None or after is None:
        return step
    return replace(step, commits=tuple(commits[before + 1 : after + 1]))
