"""Pairs of workers taking turns, with simulated workers on a clock of their own."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from fake_worker import FakeWorker, checked_in
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from pytest_rlperf.model.durations import SLICE_S, TURN_S, WARM_UP_MOST_S
from pytest_rlperf.model.figures import by_wall
from pytest_rlperf.model.live import log_ratios
from pytest_rlperf.model.measured import Figures, Phase, Shape, SliceKind, SliceRecord, Warm
from pytest_rlperf.model.phases import Block
from pytest_rlperf.pair.leftovers import Leftovers
from pytest_rlperf.pair.records import worker_record
from pytest_rlperf.pair.turns import LogRatios, Pair
from pytest_rlperf.run.pairs import PairTimes
from pytest_rlperf.run.results import PairsMeasured
from pytest_rlperf.timers import FakeClock
from pytest_rlperf.wire import Order, Place, PriceCollections, Take, TakePair, WarmAll, WarmUp
from pytest_rlperf.worker.rounds import slice_shape

Steps = list[tuple[str, str]]
CALLS_UNTIL_WARM = 100


class Simulated(FakeWorker):
    """A worker whose calls take ``call_s``; its calls are noted in ``steps``, which a world shares."""

    def __init__(self, name: str, clock: FakeClock, steps: Steps, call_s: float) -> None:
        self.seed = 7
        self.name = name
        self.call_s = call_s
        self.waits = 0
        self.single = True
        self.held_up = 1.0  # wall time over CPU time of a slice
        self.traced_cost = 1.0
        self.idle = 0.0
        self.cpu = 3
        self.pace: Callable[[int], float] = lambda slice_: 1.0
        self.phases: dict[str, float] = {"work": 1.0}
        self.limits_s: list[float] = []
        self.shapes: list[Shape | None] = []
        self.placed: list[int] = []
        self.kernels: list[bool] = []
        self.begins_after: list[tuple[int, bool]] = []
        self.rare: Callable[[int], float] | None = None  # by the number of the call, how much longer it takes
        self.collects, self.collecting_s = 0, 0.0  # collections in a slice, and what they take in a call
        self.priced: list[int] = []
        self._made = 0
        self.breaks_after = math.inf
        self._clock = clock
        self._steps = steps
        self._shape = Shape(1, 1, long=False)
        self._taken = 0

    def carry_out(self, order: Order[Any]) -> Any:
        match order:
            case WarmUp():
                return self._warm_up(order)
            case Place(cpus):
                self._steps.append((self.name, "place"))
                self.placed += cpus
                (self.cpu,) = cpus
                return None
            case Take(kind):
                return self._take(kind)
            case PriceCollections(calls):
                self.priced.append(calls)
                return self.collecting_s
        return super().carry_out(order)

    def _warm_up(self, order: WarmUp) -> Warm:
        """Spend a quarter of a second, and a call at least, unless there is no time."""
        self._steps.append((self.name, "warm up"))
        self.shapes.append(order.shape)
        self.limits_s.append(order.limit_s)
        self.kernels.append(order.kernels)
        self.begins_after.append((order.calls, order.exactly))
        slice_s = SLICE_S if order.kernels else TURN_S
        self._shape = order.shape or slice_shape(self.call_s, 76.0, single=False, long=order.long, slice_s=slice_s)
        warm_up_s = max(min(0.25, order.limit_s), self.call_s) if order.limit_s > 0 else 0.0
        self._clock.advance(warm_up_s)
        self._made = order.calls or CALLS_UNTIL_WARM
        return Warm(self._shape, self.call_s, warm_up_s, threads=2, single=self.single, calls=self._made)

    def _take(self, kind: SliceKind) -> SliceRecord:
        if self._taken >= self.breaks_after:
            raise ConnectionError(self.name)
        self._steps.append((self.name, kind.value))
        call_s = self.call_s
        if kind is SliceKind.TRACED:
            call_s *= self.traced_cost
        else:
            call_s *= self.pace(self._taken)
            self._taken += 1
        calls = self._shape.iterations * self._shape.rounds
        rounds_ns = [round(1e9 * call_s * usual) for usual in self._rounds()]
        first_call, self._made = self._made, self._made + calls
        self._clock.advance(calls * call_s)
        phases = tuple(Phase(path, 1.0, share * call_s, share * call_s, "host") for path, share in self.phases.items())
        return SliceRecord(
            kind=kind,
            call_s=call_s,
            rounds_s=calls * call_s,
            calls=calls,
            items=2.0 * calls,
            wall_s=calls * call_s,
            cpu_s=calls * call_s / self.held_up,
            waits=self.waits,
            collections=1,
            full_collections=self.collects,
            cpu=self.cpu,
            phases=phases if kind is SliceKind.TRACED else (),
            first_call=first_call,
            rounds_ns=tuple(rounds_ns) if kind is SliceKind.PLAIN else (),
        )

    def _rounds(self) -> list[float]:
        """Return what each round of the next slice takes, in usual calls."""
        size, rounds = self._shape.iterations, self._shape.rounds
        if self.rare is None:
            return [float(size)] * rounds
        starts = range(self._made, self._made + rounds * size, size)
        return [sum(map(self.rare, range(start, start + size))) for start in starts]

    def cpu_s(self) -> float:
        return self.idle * self._clock.now_ns / 1e9


class WarmPair(NamedTuple):
    number: int
    pair: Pair
    share_s: float
    is_single: bool


class World:
    """Pairs of which ``wanted`` are enough, on CPUs from ``first_cpu`` on, and their clock; it notes what happened."""

    def __init__(
        self, base_s: float = 2e-3, head_s: float = 2e-3, wanted: float = 3, first_cpu: int | None = None
    ) -> None:
        self.clock = FakeClock()
        self.steps: Steps = []
        self.wanted = wanted
        self.check_s = min(base_s, head_s)
        self.setup_s = 0.0
        self.tolerance = 0.0
        self.first_cpu = first_cpu
        self.bases = [Simulated("B", self.clock, self.steps, base_s) for _ in range(60)]
        self.heads = [Simulated("H", self.clock, self.steps, head_s) for _ in range(60)]
        self._like = WarmAll(0.0)  # the order to a pair that warms up like the first one

    def measure(self, *, least: int = 3, least_unplaced: int = 0, max_time_s: float = 60.0) -> PairsMeasured:
        """Take pairs one after the other, as a run without lanes does."""
        times = PairTimes(least=least, least_unplaced=least_unplaced, max_time_s=max_time_s, tolerance=self.tolerance)
        first = self.warm_up(times, 0)
        self.take(times, first)
        while times.count < self.wanted and not times.is_up:
            self.take(times, self.warm_up(times, times.count))
        return times.measured(first.pair.idle_shares())

    def warm_up(self, times: PairTimes, index: int) -> WarmPair:
        """Hand over a pair, which takes its time to start, and warm it up."""
        self.steps.append(("", "pair"))
        self.clock.advance(self.setup_s)
        base, head = self.bases[index], self.heads[index]
        base.checked = head.checked = checked_in(self.check_s)
        pair = Pair(
            base,
            head,
            head_first=not index % 2,
            clock=lambda: self.clock.now_ns / 1e9,
            wait=self.clock.advance,
            leftovers=Leftovers({}),
        )
        share_s = times.share_s()
        warmed = pair.warm_up(structs.replace(self._like, share_s=share_s))
        if not index:
            self._like = WarmAll(0.0, warmed.head.shape, warmed.head.call_s, calls=warmed.head.calls)
        is_single = bool(warmed.base.single and warmed.head.single)
        return WarmPair(index, pair, times.share_again_s(index, share_s, is_single=is_single), is_single)

    def take(self, times: PairTimes, warm: WarmPair) -> None:
        """Take the slices of a pair."""
        cpu = None if self.first_cpu is None or not warm.is_single else self.first_cpu + warm.number
        taken = warm.pair.take(TakePair(cpu, warm.share_s, times.enough_error, reads=True))
        times.add(warm.number, warm.share_s, structs.replace(taken, pair=replace(taken.pair, setup_s=self.setup_s)))

    def turns(self) -> list[str]:
        """Return each pair's slices in their order: ``HB`` for plain ones of head and base, ``hb`` for traced ones."""
        pairs: list[str] = []
        for name, step in self.steps:
            if step == "pair":
                pairs.append("")
            elif step in ("plain", "traced"):
                pairs[-1] += name if step == "plain" else name.lower()
        return pairs


def plain(turns: str) -> str:
    return "".join(letter for letter in turns if letter.isupper())


def blocks(turns: str, length: int) -> list[str]:
    """Cut turns into blocks of ``length`` slices."""
    assert len(turns) % length == 0
    return [turns[start : start + length] for start in range(0, len(turns), length)]


@pytest.mark.parametrize(("base_s", "head_s"), [(2e-3, 2e-3), (1.2, 0.9)])
def test_turns_alternate_and_so_do_pairs(base_s: float, head_s: float) -> None:
    """The sides take slices strictly in turn, however long they are; every other pair begins with the other side."""
    world = World(base_s, head_s)
    world.measure()
    for index, turns in enumerate(world.turns()):
        found = blocks(plain(turns), 2)
        assert len(found) >= 3
        assert set(found) == {["HB", "BH"][index % 2]}


def test_both_sides_of_all_pairs_take_slices_of_one_shape() -> None:
    """The first pair's head sizes the slices, by its own pace; all other workers use that size."""
    world = World(base_s=2e-3, head_s=3e-3)
    world.measure()
    shape = slice_shape(3e-3, 76.0, single=False, slice_s=TURN_S)
    assert shape != slice_shape(2e-3, 76.0, single=False, slice_s=TURN_S)
    assert world.heads[0].shapes == [None]
    others = [*world.bases[:3], *world.heads[1:3]]
    assert [worker.shapes for worker in others] == [[shape]] * 5


def test_how_long_sides_warm_up() -> None:
    """For a sixth of a share or two seconds at the most, not at all for very long calls."""
    world = World(base_s=0.6, head_s=0.6)
    world.measure(max_time_s=60)
    assert [worker.limits_s for worker in (*world.heads[:3], *world.bases[:3])] == [[WARM_UP_MOST_S]] * 6
    world = World()
    world.measure(max_time_s=9)
    assert world.heads[0].limits_s == world.bases[0].limits_s == [0.5]
    world = World(base_s=10.0, head_s=10.0)
    world.measure(max_time_s=60)
    assert world.heads[0].limits_s == world.bases[0].limits_s == [0.0]
    world = World()
    world.check_s = 5.0
    measured = world.measure(max_time_s=60)
    assert world.heads[0].limits_s == world.bases[0].limits_s == [WARM_UP_MOST_S]
    assert all(record.blocks > 10 for record in measured.pairs)


def test_slices_of_all_workers_have_the_same_calls_by_number() -> None:
    """A pair's second worker makes as many as the first, which warms up as it needs, beside whole slices of others'."""
    world = World()
    world.measure()
    first, exactly, beside = (0, True), (CALLS_UNTIL_WARM, True), (CALLS_UNTIL_WARM, False)
    assert [worker.begins_after for worker in world.heads[:3]] == [[first], [exactly], [beside]]
    assert [worker.begins_after for worker in world.bases[:3]] == [[exactly], [beside], [exactly]]


def test_traced_blocks_are_interleaved() -> None:
    """A traced block of both sides, as long as a plain one, follows the first block and every eighth one after it."""
    world = World()
    measured = world.measure()
    for turns in world.turns():
        seen, traced_after = 0, []
        for block in blocks(turns, 2):
            if block.islower():
                assert block in ("hb", "bh")
                traced_after.append(seen)
            else:
                assert block.isupper()
                seen += 1
        assert traced_after == list(range(1, seen + 1, 8))
    assert len(measured.traced) == sum(turns.count("h") for turns in world.turns())
    assert all(slice_.kind is SliceKind.TRACED for block in measured.traced for slice_ in block)


def test_traced_slices_are_not_counted() -> None:
    """Figures, ratios and slices exclude the cost of tracing, and phases are shares of the traced calls."""
    world = World()
    for worker in world.heads:
        worker.traced_cost = 10.0
    measured = world.measure()
    for index, record in enumerate(measured.pairs):
        assert record.wall_log_ratio == pytest.approx(0.0, abs=1e-12)
        assert record.head.wall.call_s == pytest.approx(2e-3)
        assert record.head.slices == record.base.slices == record.blocks == world.turns()[index].count("H")
        assert record.head.collections == record.head.slices
    for side in (measured.of_side("base"), measured.of_side("head")):
        assert side.traced_call_s == 1.0
        assert {phase.path: phase.total_s for phase in side.phases} == pytest.approx({"work": 1.0})


@settings(max_examples=10)
@given(base_s=st.floats(1e-6, 3.0), ratio=st.floats(0.25, 4.0))
def test_a_constant_factor_is_found_exactly(base_s: float, ratio: float) -> None:
    """Where nothing disturbs, a pair's figure is the logarithm of the factor, for calls of any length."""
    measured = World(base_s, ratio * base_s).measure(max_time_s=90)
    assert len(measured.pairs) == 3
    for record in measured.pairs:
        assert record.wall_log_ratio == pytest.approx(math.log(ratio), abs=1e-9)
        assert record.cpu_log_ratio == pytest.approx(math.log(ratio), abs=1e-9)
        assert record.base.wall.call_s == pytest.approx(base_s)
        assert record.head.wall.call_s == pytest.approx(ratio * base_s)
        assert record.head.wall.relative == record.head.wall.relative_memory == 0.0


def plain_slice(call_s: float, cpu_s: float) -> SliceRecord:
    return SliceRecord(SliceKind.PLAIN, call_s, call_s, 1, 1.0, call_s, cpu_s, 0, 0, 0, ())


@given(
    pace=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=40).filter(lambda pace: len(pace) % 2 == 0),
    head_first=st.booleans(),
)
def test_slices_are_compared_with_their_neighbours_in_time(pace: list[float], head_first: bool) -> None:
    """Of n slices there are n - 1 differences, and a factor common to two neighbours is in none but their others'."""
    head = slice(0 if head_first else 1, None, 2)
    base = slice(1 if head_first else 0, None, 2)
    drawn = [Block(plain_slice(b, b), plain_slice(2 * h, h)) for b, h in zip(pace[base], pace[head], strict=True)]
    found = LogRatios.of(drawn, by_wall, head_first=head_first)
    steps = [math.log(after / before) for before, after in itertools.pairwise(pace)]
    to_head = [step if (index % 2 == 0) != head_first else -step for index, step in enumerate(steps)]
    expected = [math.log(2) + step for step in to_head]
    assert found.within == pytest.approx(expected[::2])
    assert found.between == pytest.approx(expected[1::2])


@given(count=st.integers(2, 20), drift=st.floats(-0.1, 0.1), head_first=st.booleans())
def test_a_pace_that_drifts_cancels(count: int, drift: float, head_first: bool) -> None:
    """From two blocks on, however few they are, a machine that gets slower from slice to slice moves no figure."""
    pace = [math.exp(drift * index) for index in range(2 * count)]
    firsts, seconds = pace[::2], pace[1::2]
    base, head = (seconds, firsts) if head_first else (firsts, seconds)
    drawn = [Block(plain_slice(b, b), plain_slice(1.05 * h, h)) for b, h in zip(base, head, strict=True)]
    assert LogRatios.of(drawn, by_wall, head_first=head_first).figure() == pytest.approx(math.log(1.05))


@pytest.mark.parametrize("stalled", [0, 1, 7, 20, 30])
def test_one_stalled_slice_does_not_move_a_figure(stalled: int) -> None:
    """A slice a hundred times as long as the others is in two differences, which are cut off: nothing is left of it."""
    world = World()
    world.heads[1].pace = lambda slice_: 100.0 if slice_ == stalled else 1.0
    measured = world.measure()
    assert measured.pairs[1].blocks >= 3
    assert [record.wall_log_ratio for record in measured.pairs] == [pytest.approx(0.0, abs=1e-12)] * 3
    assert measured.pairs[1].head.wall.call_s == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("call_s", "held_up", "base_held_up", "by_cpu"),
    [
        pytest.param(20e-3, 2.0, 1.0, True, id="alone"),
        pytest.param(20e-3, 2.0, 0.5, False, id="more CPU than wall time is no one thread's"),
        pytest.param(1e-3, 1.5, 1.0, False, id="short calls' median leaves out being held up by itself"),
    ],
)
def test_where_every_worker_is_alone_cpu_time_counts(
    call_s: float, held_up: float, base_held_up: float, by_cpu: bool
) -> None:
    """Long calls that never wait are compared by CPU time: being held up is not being slower."""
    world = World(call_s, call_s * held_up)
    for worker in world.heads:
        worker.held_up = held_up
    world.bases[1].held_up = base_held_up
    pairs = world.measure().pairs
    assert pairs[1].alone is by_cpu
    assert [record.wall_log_ratio for record in pairs] == [pytest.approx(math.log(held_up))] * 3
    assert log_ratios(pairs)[1] == pytest.approx(0.0 if by_cpu else math.log(held_up), abs=1e-12)


def test_a_time_limit_far_too_short_leaves_one_pair_of_one_block() -> None:
    """There is always a figure; with some time there are several pairs."""
    assert len(World(wanted=math.inf).measure(max_time_s=6.0).pairs) >= 3
    assert [record.blocks for record in World(wanted=math.inf).measure(max_time_s=1e-3).pairs] == [1]


def test_time_is_shared_out_among_the_least_pairs() -> None:
    """Calls too long for what the rule wants leave each of the least pairs its part, the first one too."""
    world = World(2.0, 2.0)
    measured = world.measure(max_time_s=60.0)
    first, second, third = (record.seconds for record in measured.pairs)
    assert 10.0 < first <= 20.0
    assert second <= (60.0 - first) / 2
    assert third <= 60.0 - first - second
    alone, of_six = (World(2.0, 2.0, wanted=1).measure(least=least, max_time_s=60.0) for least in (1, 6))
    assert alone.pairs[0].blocks > of_six.pairs[0].blocks


def test_pairs_that_are_not_placed_have_time_for_as_many_as_they_need() -> None:
    """Where the kernel places workers the time is shared out among more pairs, once that is known."""
    counts = {}
    for single in (True, False):
        world = World(3.0, 3.0, wanted=math.inf, first_cpu=0)
        for worker in (*world.bases, *world.heads):
            worker.single = single
        counts[single] = len(world.measure(least=3, least_unplaced=6).pairs)
    assert counts[True] < 6 <= counts[False]


def test_setting_up_is_not_counted() -> None:
    """Starting workers for minutes takes nothing from the time to measure; each pair's is in its record."""
    quick, slow = World(), World()
    slow.setup_s = 100.0
    expected, found = quick.measure(), slow.measure()
    assert [record.setup_s for record in found.pairs] == [100.0] * 3
    blocks_of, seconds_of = ([getattr(record, name) for record in expected.pairs] for name in ("blocks", "seconds"))
    assert [record.blocks for record in found.pairs] == pytest.approx(blocks_of, abs=1)  # seconds add up otherwise
    assert [record.seconds for record in found.pairs] == pytest.approx(seconds_of, abs=0.04)  # a block or two
    assert slow.heads[0].limits_s == [WARM_UP_MOST_S]


@pytest.mark.parametrize(
    ("call_s", "max_time_s"),
    [
        # The others have no more kinds of blocks, but many.
        pytest.param(call_s, max_time_s, marks=pytest.mark.slow if max_time_s / call_s > 1000 else ())
        for call_s in (1e-6, 0.01, 0.2, 0.9, 3.0, 4.0, 7.0, 9.9, 20.0)
        for max_time_s in (2.0, 10.0, 60.0)
    ],
)
def test_the_time_limit_holds_for_calls_of_any_length(call_s: float, max_time_s: float) -> None:
    """No test takes more than its time and what one block, begun in time, takes."""
    world = World(call_s, call_s, wanted=math.inf)
    measured = world.measure(max_time_s=max_time_s)
    per_block_s = 2 * max(call_s, 0.02)
    assert world.clock.now_ns / 1e9 <= max_time_s + per_block_s + 0.6
    assert all(record.blocks >= 1 for record in measured.pairs)


def test_a_worker_lost_within_a_pair_is_reported() -> None:
    """No figure is made of half a pair: what took the worker away comes through."""
    world = World()
    world.bases[1].breaks_after = 9
    with pytest.raises(ConnectionError, match="B"):
        world.measure()


def test_cpu_time_used_while_waiting_is_recorded() -> None:
    """A worker that burns CPU time while others are measured, or for a second after a single pair, is found."""
    world = World()
    world.bases[0].idle = 0.4
    pairs = world.measure().pairs
    assert pairs[0].base.idle_cpu_share == pytest.approx(0.4)
    assert [record.head.idle_cpu_share for record in pairs] == [0.0] * 3
    assert [record.base.idle_cpu_share for record in pairs[1:]] == [0.0] * 2
    world = World(wanted=1)
    world.heads[0].idle = 0.3
    (pair,) = world.measure().pairs
    assert pair.head.idle_cpu_share == pytest.approx(0.3)
    assert pair.base.idle_cpu_share == 0.0


@pytest.mark.parametrize(("off_turn_s", "share"), [(0.9e-3, 0.0), (1.5e-3, 0.15)])
def test_what_calls_leave_to_others_counts_as_work_while_idle(off_turn_s: float, share: float) -> None:
    """A little is usual, for a thread that reads one batch ahead."""
    plain = SliceRecord(SliceKind.PLAIN, 1e-3, 0.01, 10, 10.0, 0.01, 0.01, 0, 0, 0, (), off_turn_s=off_turn_s)
    figures, warm = Figures(1e-3, 0.0, 0.0), Warm(Shape(1, 10, long=False), 1e-3, 0.1, 1, single=True)
    record = worker_record([plain] * 3, figures, figures, warm, seed=0)
    assert record.idle_cpu_share == pytest.approx(share)


@pytest.mark.parametrize(("base", "head", "few"), [(0, 0, False), (1, 1, True), (1, 2, False)])
def test_collections_of_both_sides_are_priced(base: int, head: int, few: bool) -> None:
    """Also equally many: one may take longer, as it walks more objects. A few calls show whether the code asks."""
    world = World(wanted=1)
    for worker, collects in ((world.bases[0], base), (world.heads[0], head)):
        worker.collects, worker.collecting_s = collects, collects * worker.call_s
    (pair,) = world.measure(least=1).pairs
    slice_calls = pair.base.calls // pair.base.slices
    asked = [] if not base else [2 * slice_calls if few else pair.base.calls]
    assert [world.bases[0].priced, world.heads[0].priced] == [asked, asked]
    assert [each.collecting_s for each in (pair.base, pair.head)] == [2e-3 * base, 2e-3 * head]


def test_a_pair_that_is_single_shares_one_cpu_where_there_are_cpus_to_choose() -> None:
    """Both sides are kept on the CPU chosen for the pair, once they are warm; slices tell where they were."""
    world = World(first_cpu=10)
    measured = world.measure()
    placed = [(base.placed, head.placed) for base, head in zip(world.bases[:3], world.heads[:3], strict=True)]
    assert placed == [([cpu], [cpu]) for cpu in (10, 11, 12)]
    assert [(record.placed, record.cpus) for record in measured.pairs] == [(cpu, (cpu,)) for cpu in (10, 11, 12)]
    assert [step for _, step in world.steps[1:5]] == ["warm up", "warm up", "place", "place"]
    world = World()
    assert [record.placed for record in world.measure().pairs] == [None] * 3
    assert not any(step == "place" for _, step in world.steps)


@pytest.mark.parametrize("side", ["bases", "heads"])
def test_a_pair_of_which_one_side_is_not_single_is_placed_nowhere(side: str) -> None:
    """Work of several threads or processes on either side is never squeezed onto one CPU, nor is the other side."""
    world = World(first_cpu=10)
    getattr(world, side)[1].single = False
    world.bases[1].cpu, world.heads[1].cpu = 5, 4
    measured = world.measure()
    assert world.bases[1].placed == world.heads[1].placed == []
    assert [record.placed for record in measured.pairs] == [10, None, 12]
    assert measured.pairs[1].cpus == (4, 5)


def noisy_pace(seed: int, sd: float) -> Callable[[int], float]:
    noise = random.Random(seed)
    return lambda _: math.exp(noise.gauss(0, sd))


def test_a_pair_ends_when_its_own_error_is_small() -> None:
    """Slices that agree end a pair after 0.3 s; slices that differ take the planned 1.2 s."""
    steady, noisy = World(), World()
    steady.tolerance = noisy.tolerance = 0.03
    for number, worker in enumerate((*noisy.bases, *noisy.heads)):
        worker.pace = noisy_pace(number, 0.3)
    warm_s = 0.5
    for record in steady.measure().pairs:
        assert 0.29 < record.seconds - warm_s < 0.7
        assert record.blocks >= 5
    for record in noisy.measure().pairs:
        assert record.seconds - warm_s > 1.1


@pytest.mark.parametrize(("period", "longer"), [(8, False), (40, True)])
def test_pairs_go_on_for_longer_where_rare_calls_are_few(period: int, longer: bool) -> None:
    """Once those before show that a rare call's period may be about as long as they are."""
    world = World(wanted=5)
    world.tolerance = 0.1
    for worker in (*world.bases, *world.heads):
        worker.rare = lambda call: 1.0 if call % period else 20.0
    blocks = [record.blocks for record in world.measure(least=5).pairs]
    assert (blocks[-1] > 2 * blocks[0]) == longer


def test_pairs_that_begin_at_the_same_time_have_time_each() -> None:
    """They share what is left; where that is little, fewer begin, and in the end none."""
    world, times = World(), PairTimes(least=1, max_time_s=12.0)
    world.take(times, world.warm_up(times, 0))
    assert times.begin(2) == 2
    for pair in [world.warm_up(times, index) for index in (1, 2)]:
        world.take(times, pair)
    begun = []
    while not times.is_up:
        begun.append(times.begin(9))
        world.take(times, world.warm_up(times, times.count))
    assert begun == sorted(begun, reverse=True)
    assert begun[-1] == 1
    assert min(record.blocks for record in times.records()) > 5


def test_a_pair_that_is_lost_leaves_its_time_to_the_next() -> None:
    """The pair in its place has as much time, and a pair after it that was taken meanwhile does not count yet."""
    world, times = World(), PairTimes(least=3, max_time_s=60.0)
    lost_s = times.share_s()
    world.take(times, world.warm_up(times, 1))
    assert times.count == 0
    times.give_back(lost_s)
    again = world.warm_up(times, 0)
    assert again.share_s > lost_s
    world.take(times, again)
    assert times.count == len(times.records()) == 2


def test_a_pair_ends_when_its_own_error_is_small_beside_the_spread_between_pairs() -> None:
    """From the third pair on: where pairs differ by 10 %, longer ones tell nothing more."""
    world = World(wanted=6)
    world.tolerance = 0.03
    for number, (base, head) in enumerate(zip(world.bases, world.heads, strict=True)):
        base.pace = noisy_pace(number, 0.15)
        head.call_s *= math.exp(0.1 * (-1) ** number)
    seconds = [record.seconds for record in world.measure(least=6).pairs]
    assert min(seconds[:3]) > 1.1
    assert max(seconds[3:]) < 1.0


def test_phases_are_shares_of_their_own_sides_calls() -> None:
    """A traced block has each side's phases as shares of that side's call, so that the machine's pace cancels."""
    world = World(base_s=2e-3, head_s=3e-3)
    for worker in world.bases:
        worker.phases = {"critic": 0.25, "actor": 0.5}
    for worker in world.heads:
        worker.phases = {"critic": 0.5, "extra": 0.1}
        worker.traced_cost = 7.0
    traced = world.measure().traced
    assert len(traced) > 3
    for block in traced:
        base, head = block.shares()
        assert base == pytest.approx({"critic": 0.25, "actor": 0.5})
        assert head == pytest.approx({"critic": 0.5, "extra": 0.1})
