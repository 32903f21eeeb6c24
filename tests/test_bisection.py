"""The search for the first slower commit, on made-up pairs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from builders import estimate
from hypothesis import given
from hypothesis import strategies as st

from pytest_rlperf.judge.bisection import PAIRS_MOST, SURE, Bisection, is_partial, next_probe

TOLERANCE = 0.03
PAIRS = 3  # of a probe


def pairs_of(change: float, generator: random.Random, sd: float, count: int = PAIRS) -> list[float]:
    """Return log ratios of pairs of a commit that is slower by ``change``, or not."""
    offset = generator.gauss(0.0, 0.002)  # the commit's own: its layout in memory
    return [math.log1p(change) + offset + generator.gauss(0.0, sd) for _ in range(count)]


def search(
    changes: Sequence[float], generator: random.Random, sd: float = 0.01, untestable: frozenset[int] = frozenset()
) -> tuple[Bisection, int]:
    """Search among commits of these changes since the good one; return how it ended and the number of probes."""
    found = Bisection(len(changes), TOLERANCE, {len(changes): pairs_of(changes[-1], generator, sd, 5)})
    probes = 0
    while (commit := next_probe([found])) is not None:
        probes += 1
        if commit in untestable:
            found = found.without(commit)
        else:
            found = found.after(commit, pairs_of(changes[commit - 1], generator, sd))
    return found, probes


def steps(count: int, *slower: tuple[int, float]) -> list[float]:
    """Return the change of each of ``count`` commits, which grows at the commits of ``slower``."""
    return [math.prod(1 + change for at, change in slower if commit >= at) - 1 for commit in range(1, count + 1)]


def test_named_commits_are_right_and_probes_are_few() -> None:
    """Of searches among 200 commits 99 of 100 names are right at least, after little more than log2 200 = 7.6."""
    generator, named, right, probed = random.Random(1), 0, 0, 0
    runs = 150
    for _ in range(runs):
        first = generator.randint(1, 200)
        found, probes = search(steps(200, (first, generator.uniform(0.03, 0.12))), generator, 0.008)
        probed += probes
        best = found.likeliest()
        if best.chance >= SURE:
            named += 1
            right += (best.first, best.last) == (first, first)
    assert right >= 0.99 * named
    assert named >= 0.95 * runs
    assert probed <= 12 * runs


def test_small_changes_take_more_pairs_and_no_wrong_name() -> None:
    """A change of twice the pairs' spread is named by few pairs; one that equals it takes more and is no worse."""
    taken = []
    for change in (0.08, 0.02):
        generator, right, pairs = random.Random(2), 0, 0
        for _ in range(10):
            first = generator.randint(1, 50)
            found, _ = search(steps(50, (first, change)), generator, 0.01)
            best = found.likeliest()
            right += best.chance < SURE or best.first == best.last == first
            pairs += sum(map(len, found.pairs.values()))
        assert right == 10
        taken.append(pairs)
    assert taken[1] > 1.3 * taken[0]


def test_of_several_slowdowns_one_is_named() -> None:
    """With +4 % and later +8 % either has a chance to be found first; the name is always one of them."""
    generator = random.Random(3)
    for _ in range(40):
        one, other = sorted(generator.sample(range(1, 101), 2))
        found, _ = search(steps(100, (one, 0.04), (other, 0.08)), generator, 0.006)
        best = found.likeliest()
        assert best.chance < SURE or best.first == best.last
        assert best.chance < SURE or best.first == one


def test_commits_that_cannot_be_run_are_named_with_the_next_that_can() -> None:
    """The slower commit is one of a range: those that do not run right before one that does, and that one."""
    found, _ = search(steps(64, (30, 0.08)), random.Random(4), untestable=frozenset(range(28, 33)))
    best = found.likeliest()
    assert best.chance >= SURE
    assert (best.first, best.last) == (28, 33)


def test_range_is_left_where_pairs_show_nothing() -> None:
    """Pairs that differ by twice the change end with a range that has the commit, and hardly a name."""
    within = named = 0
    for seed in range(8):
        found, _ = search(steps(16, (5, 0.03)), random.Random(seed), sd=0.06)
        left = found.range_left()
        within += left.first <= 5 <= left.last
        named += found.likeliest().chance >= SURE
        assert all(len(pairs) < PAIRS_MOST + PAIRS for commit, pairs in found.pairs.items())
    assert within >= 7
    assert named <= 2


def test_probes_serve_all_tests_that_need_them() -> None:
    """Of two searches the commit is chosen by both; one that is over has no say."""
    generator = random.Random(6)
    over, _ = search(steps(40, (7, 0.1)), generator)
    fresh = Bisection(40, TOLERANCE, {40: pairs_of(0.1, generator, 0.01)})
    assert over.is_over
    assert next_probe([over, fresh]) == next_probe([fresh]) == 20
    assert next_probe([over]) is None


def test_one_commit_is_named_without_a_probe() -> None:
    """Between two commits there is nothing to search."""
    found = Bisection(1, TOLERANCE, {1: (0.05, 0.06, 0.05)})
    assert found.is_over
    assert (found.likeliest().first, found.likeliest().chance) == (1, 1.0)


def test_a_change_is_partial_where_it_is_surely_less() -> None:
    """It is compared with the whole change, which has an interval of 99 %."""
    whole = Bisection(1, TOLERANCE, {1: (0.10, 0.11, 0.105)}).whole()
    assert whole.ratio == pytest.approx(math.exp(0.105))
    assert whole.confidence == SURE
    assert 1.05 < whole.low < whole.ratio < whole.high < 1.2
    assert is_partial(estimate(1.03), whole)
    assert not is_partial(estimate(whole.low - 0.005), whole)
    assert not is_partial(None, whole)


FIGURES = st.floats(-2.0, 2.0, allow_nan=False)
SEARCHES: Callable[[int], st.SearchStrategy[Bisection]] = lambda count: st.builds(  # noqa: E731 - a strategy of a size
    lambda last, pairs, untestable, placed: Bisection(
        count, TOLERANCE, {**pairs, count: last}, frozenset(untestable), placed
    ),
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=5),
    st.dictionaries(st.integers(1, count), st.lists(FIGURES, min_size=1, max_size=5), max_size=6),
    st.sets(st.integers(1, count), max_size=4),
    st.booleans(),
)


@given(st.integers(1, 40).flatmap(SEARCHES))
def test_chances_are_chances(found: Bisection) -> None:
    """They add up to one, the ranges lie among the commits, and no probe is of a commit that cannot be probed."""
    chances = found.chances()
    assert len(chances) == found.count
    assert math.fsum(chances) == pytest.approx(1.0)
    assert all(0 <= chance <= 1 for chance in chances)
    best, left = found.likeliest(), found.range_left()
    for each in (best, left):
        assert 1 <= each.first <= each.last <= found.count
        assert 0 <= each.chance <= 1
    probe = next_probe([found])
    if probe is not None:
        assert probe not in found.untestable
        assert 1 <= probe < found.count
        assert best.chance < SURE


@given(st.integers(2, 40).flatmap(SEARCHES), st.data())
def test_slow_pairs_move_the_chances_to_earlier_commits(found: Bisection, data: st.DataObject) -> None:
    """A commit that is as slow as the last one becomes no less likely to be slower, whatever was known of it."""
    commit = data.draw(st.integers(1, found.count - 1))
    bad = math.fsum(found.pairs[found.count]) / len(found.pairs[found.count])
    before = Bisection(found.count, TOLERANCE, {found.count: found.pairs[found.count]})
    after = before.after(commit, [bad] * 3)
    assert after.is_slower(commit) >= before.is_slower(commit) - 1e-9
