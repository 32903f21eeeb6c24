"""Exact counts: how they are confirmed, compared, judged, selected and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from fake_worker import FakeWorker, checked_in
from msgspec.structs import replace
from virtual_gpu import VirtualGPU
from wording import Wording

from pytest_rlperf import wire
from pytest_rlperf.counters import NAMES
from pytest_rlperf.counters.memory import OF_GARBAGE
from pytest_rlperf.devices import driving
from pytest_rlperf.judge.counters import combine, compare, more_work, uncounted
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.measured import Count, CounterChange, Counting, PhaseCounts, Result, Tally, Workload
from pytest_rlperf.model.notes import OneWorkerCounted
from pytest_rlperf.model.stored import Baseline, Machine
from pytest_rlperf.options import OPTIONS, Config, parse_findings
from pytest_rlperf.pair.counting import count_in
from pytest_rlperf.report.wording import obstacle_text, verdict_message
from pytest_rlperf.run.counting import CountingPairs, count_order, learn
from pytest_rlperf.run.stored_counts import OtherCounts, StoredCounts, live_counts
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.wire import REPETITIONS, CountAll, Order
from pytest_rlperf.worker.counting import count

EVERY = ("*",)
WHOLE = ""

# Counts by path and name; a pair is a count that was not always the same.
Counts = Mapping[str, Mapping[str, int | tuple[int, int]]]


def counting(counts: Counts, workers: int = 5) -> Counting:
    """Return what ``workers`` counted."""
    phases = tuple(
        PhaseCounts(
            path,
            {name: value for name, value in found.items() if isinstance(value, int)},
            {name: value for name, value in found.items() if isinstance(value, tuple)},
        )
        for path, found in counts.items()
    )
    return Counting(phases, workers, 2, ())


def tally(*repetitions: Counts) -> Tally:
    return Tally(
        tuple(
            tuple(
                Count(path, name, value)
                for path, found in counts.items()
                for name, value in found.items()
                if isinstance(value, int)
            )
            for counts in repetitions
        ),
        (),
    )


def read(text: str) -> Counts:
    """Return the counts of ``phase: name count, name least..most · phase: …``; the whole call's need no phase."""
    found: dict[str, dict[str, int | tuple[int, int]]] = {}
    for part in text.split(" · "):
        path, _, counts = part.rpartition(": ")
        for count_ in counts.split(", "):
            name, _, value = count_.partition(" ")
            least, _, most = value.partition("..")
            found.setdefault(path, {})[name] = (int(least), int(most)) if most else int(least)
    return found


def changes(then: str, now: str, names: tuple[str, ...] = EVERY) -> str:
    found = compare(counting(read(then)), counting(read(now)), names)
    return " · ".join(
        f"{change.path}{': ' * bool(change.path)}{change.name} {change.was} → {change.now}" for change in found
    )


def test_what_is_equal_everywhere_is_exact() -> None:
    """A count is exact where every worker's every repetition has it, else its least and most are kept."""
    learnt = learn(
        [
            tally({WHOLE: {"ops": 7, "python_calls": 3}}, {WHOLE: {"ops": 7, "python_calls": 4}}),
            tally({WHOLE: {"ops": 7, "python_calls": 2}}, {WHOLE: {"ops": 7, "python_calls": 3}}),
        ]
    )
    assert learnt == Counting((PhaseCounts(WHOLE, {"ops": 7}, {"python_calls": (2, 4)}),), 2, 2, ())


def test_without_a_second_worker_nothing_is_exact() -> None:
    """Repetitions of one process share what differs between processes; of workers that declined there is only why."""
    learnt = learn([tally({WHOLE: {"ops": 7}}, {WHOLE: {"ops": 7}})])
    assert learnt == Counting((PhaseCounts(WHOLE, {}, {"ops": (7, 7)}),), 1, 2, ())
    assert learn([]) is None
    assert learn([Tally((), ("too long",))] * 5) == Counting((), 0, 0, ("too long",))


def test_what_a_repetition_does_not_have_is_zero_there() -> None:
    """Zero counts of members and phases are not sent; the sum tells that they were looked for."""
    learnt = learn(
        [
            tally({WHOLE: {"ops": 1, "ops:aten::mm": 1}}),
            tally({WHOLE: {"ops": 1, "ops:aten::add": 1}, "late": {"ops": 1}}),
        ]
    )
    assert learnt is not None
    assert learnt.phases == (
        PhaseCounts(WHOLE, {"ops": 1}, {"ops:aten::mm": (0, 1), "ops:aten::add": (0, 1)}),
        PhaseCounts("late", {}, {"ops": (0, 1)}),
    )


def test_what_the_other_side_counted_too_is_exact() -> None:
    """One worker of each side are two processes, where both have the same count; it tells nothing where they differ."""
    seven, eight = (tally(*[{WHOLE: {"ops": ops, "syncs": 0}}] * 2) for ops in (7, 8))
    assert learn([seven], [seven]) == Counting((PhaseCounts(WHOLE, {"ops": 7, "syncs": 0}, {}),), 2, 2, ())
    assert learn([seven], [eight]) == Counting((PhaseCounts(WHOLE, {"syncs": 0}, {"ops": (7, 7)}),), 2, 2, ())
    assert learn([seven, seven], [eight]) == Counting((PhaseCounts(WHOLE, {"ops": 7, "syncs": 0}, {}),), 3, 2, ())


def test_what_one_worker_alone_counted_is_not_exact() -> None:
    """An instrument that could not run in another worker of its side needs the other side's; its note stays."""
    banned = replace(tally({WHOLE: {"ops": 7}}), notes=("not counted: banned",))
    whole = tally({WHOLE: {"ops": 7, "native_calls": 1}})
    learnt = learn([whole, banned])
    assert learnt == Counting(
        (PhaseCounts(WHOLE, {"ops": 7}, {"native_calls": (1, 1)}),), 2, 1, ("not counted: banned",)
    )
    learnt = learn([whole, banned], [whole])
    assert learnt is not None
    assert learnt.phases == (PhaseCounts(WHOLE, {"ops": 7, "native_calls": 1}, {}),)


class Clerk(FakeWorker):
    def __init__(self, answer: Tally, checked_s: float = 0.001) -> None:
        self.checked = checked_in(checked_s)
        self.asked: list[wire.Count] = []
        self.tally = answer

    def carry_out(self, order: Order[Any]) -> Tally:
        assert isinstance(order, wire.Count)
        self.asked.append(order)
        return self.tally


COUNTED = tally(*[{WHOLE: {"ops": 7}}] * 2)
FAILED = replace(COUNTED, notes=("not counted: ops: the call fails",), has_failed=True)
LONG = Tally((), ("too long",))
SETTINGS = Config(**{option.name: option.default for option in OPTIONS})


@pytest.mark.parametrize("repetitions", [1, REPETITIONS])
def test_the_first_worker_decides_what_the_others_count(repetitions: int) -> None:
    """As many calls, of the same numbers, in four times its limit: a stall must not make a worker's counts miss."""
    answer = replace(COUNTED, repetitions=COUNTED.repetitions[:repetitions], instruments=("ops",), looks=2)
    clerks = [Clerk(answer) for _ in range(3)]
    assert count_in(clerks, CountAll(1.5, 6.0, ["ops"])) == [answer] * 3
    assert clerks[0].asked == [wire.Count(REPETITIONS, 1.5, ["ops"])]
    assert clerks[1].asked == clerks[2].asked == [wire.Count(repetitions, 6.0, ["ops"], looks=2)]


def test_a_gate_has_more_time_and_without_counters_there_is_none() -> None:
    """All workers of a test have a tenth of its time, half where counts decide; off, no worker counts."""
    for does, share in (("show", 0.1), ("gate", 0.5), (("ops",), 0.5)):
        order = count_order(dataclasses.replace(SETTINGS, max_time_s=60.0, findings={"counts": does}))
        assert order is not None
        assert 6 * order.limit_s == pytest.approx(60 * share)
        assert order.longest_first_s == pytest.approx(6.0)
        assert order.instruments == []
    assert count_order(dataclasses.replace(SETTINGS, findings={"counts": "off"})) is None


def test_the_first_worker_declines_for_all() -> None:
    """Where calls turn out to be too long, one worker has spent one call on it at most, and the reason is known."""
    clerks = [Clerk(LONG) for _ in range(5)]
    assert count_in(clerks, CountAll(1.0, 6.0)) == [LONG] * 5
    assert [len(clerk.asked) for clerk in clerks] == [1, 0, 0, 0, 0]
    clerks = [Clerk(COUNTED, checked_s=6.1), Clerk(COUNTED)]
    found = count_in(clerks, CountAll(1.0, 6.0))
    assert [clerk.asked for clerk in clerks] == [[], []]
    assert found[0] == found[1] == Tally((), found[0].notes if found[0] else ())
    assert found[0] is not None
    assert "the first call took 6.10 s" in found[0].notes[0]


@pytest.mark.parametrize(("place", "counted"), [(0, [1, 0, 0]), (1, [1, 1, 1]), (2, [1, 1, 1])])
def test_after_a_first_call_that_failed_no_other_worker_counts(place: int, counted: list[int]) -> None:
    """The workers after the first count at the same time, so that one that fails leaves the others their counts."""
    clerks = [Clerk(FAILED if number == place else COUNTED) for number in range(3)]
    found = count_in(clerks, CountAll(1.0, 6.0))
    assert [len(clerk.asked) for clerk in clerks] == counted
    assert found == [clerk.tally if number else None for clerk, number in zip(clerks, counted, strict=True)]


def orders(*pairs: tuple[Tally | None, Tally | None], **findings: str) -> list[list[str] | None]:
    """Return the instruments that one pair after the other is to count, of which base and head count these."""
    return [order for order, _, _ in decisions(*pairs, **findings)]


def decisions(
    *pairs: tuple[Tally | None, Tally | None], **findings: str
) -> list[tuple[list[str] | None, Counting | None, Counting | None]]:
    """Return what each pair is to count, None where nothing, and what both sides have learned once it has."""
    counting_pairs = CountingPairs(dataclasses.replace(SETTINGS, findings={"counts": "show", **findings}))
    made: list[tuple[list[str] | None, Counting | None, Counting | None]] = []
    for number, (base, head) in enumerate(pairs):
        head_first = not number % 2
        order = counting_pairs.order()
        if order is not None:
            counting_pairs.add([head, base] if head_first else [base, head], head_first=head_first)
        made.append((None if order is None else order.instruments, *counting_pairs.learned()))
    return made


def both(ops: int, *calls: int, names: Sequence[str] = ("ops", "python_calls")) -> Tally:
    """Return a tally of as many repetitions as ``calls``, of those of two counts that have one of ``names``."""
    return tally(
        *(
            {WHOLE: {name: value for name, value in (("ops", ops), ("python_calls", each)) if name in names}}
            for each in calls
        )
    )


def test_one_pair_counts_where_both_sides_agree() -> None:
    """Their counts are exact, and no later pair has to make more calls; off, none does."""
    same = both(7, 3, 3)
    made = decisions((same, same), (same, same), (same, same))
    assert [order for order, _, _ in made] == [[], None, None]
    expected = Counting((PhaseCounts(WHOLE, {"ops": 7, "python_calls": 3}, {}),), 2, 2, ())
    assert made[-1][1:] == (expected, expected)
    assert orders((same, same), counts="off") == [None]


def test_two_more_pairs_count_what_differs() -> None:
    """A change is exact once processes of each side agree; what merely varies is not counted again."""
    calls = ("python_calls",)
    changed = decisions((both(7, 3, 3), both(7, 4, 4)), *[(both(7, 3, 3, names=calls), both(7, 4, 4, names=calls))] * 3)
    assert [order for order, _, _ in changed] == [[], ["python_calls"], ["python_calls"], None]
    base, head = changed[-1][1:]
    assert base is not None
    assert head is not None
    assert base.phases == (PhaseCounts(WHOLE, {"ops": 7, "python_calls": 3}, {}),)
    assert head.phases == (PhaseCounts(WHOLE, {"ops": 7, "python_calls": 4}, {}),)
    assert base.workers == head.workers == 6
    varying = both(7, 3, 4, names=calls)
    assert orders((both(7, 3, 4), both(7, 3, 4)), *[(varying, varying)] * 3) == [[], None, None, None]


@pytest.mark.parametrize(
    "failed",
    [(None, FAILED), (FAILED, COUNTED), (None, replace(LONG, has_failed=True))],
    ids=["head", "base", "phases"],
)
def test_after_a_call_that_failed_the_next_pair_rests(failed: tuple[Tally | None, Tally]) -> None:
    """It finds out whether counting is to blame; the pair after it counts again, and the note stays."""
    made = decisions(failed, (COUNTED, COUNTED), (COUNTED, COUNTED), (COUNTED, COUNTED))
    assert [order for order, _, _ in made] == [[], None, [], None]
    notes = {note for _, *sides in made[-1:] for side in sides if side is not None for note in side.notes}
    assert notes == {note for each in failed if each is not None for note in each.notes}


def test_pairs_whose_calls_are_too_long_are_asked_once() -> None:
    """Nothing is exact then, and the reason is known."""
    made = decisions((LONG, LONG), (COUNTED, COUNTED))
    assert [order for order, _, _ in made] == [[], None]
    assert made[-1][1:] == (Counting((), 0, 0, LONG.notes),) * 2


def test_a_call_that_fails_while_its_phases_are_recorded_is_not_counted() -> None:
    """It is made again without that, and what it processed is in no slice; one that fails again raises."""
    calls: list[str] = []
    work, _ = workload(calls)

    def failing(numbers: range) -> Workload:
        def call() -> None:
            work.call()
            if calls.count("call") in numbers:
                raise ValueError(f"it broke at {calls.count('call')}")

        return replace(work, call=call)

    found = count(failing(range(1, 2)), wire.Count(2, 60.0))
    (note,) = found.notes
    assert (found.repetitions, found.has_failed) == ((), True)
    assert "ValueError: it broke at 1" in note
    assert calls == ["setup", "call", "setup", "call", "processed"]
    calls.clear()
    with pytest.raises(ValueError, match="it broke at 2"):
        count(failing(range(1, 9)), wire.Count(2, 60.0))


def workload(calls: list[str], *seconds: float) -> tuple[Workload, list[int]]:
    """Return a workload that notes its calls, and the readings of a clock that they move by ``seconds``, then by 0."""
    durations_s = iter(seconds)
    now_ns = [0]

    def call() -> None:
        calls.append("call")
        now_ns[0] += int(1e9 * next(durations_s, 0.0))

    def processed() -> float:
        calls.append("processed")
        return 0.0

    return (
        Workload("callable", call, 1.0, "call", lambda: None, setup=lambda: calls.append("setup"), count=processed),
        now_ns,
    )


@pytest.mark.parametrize(("limit_s", "made"), [(0.7, 2), (0.4, 1)])
def test_calls_too_long_to_be_counted_run_once_or_twice(limit_s: float, made: int) -> None:
    """They tell how long counting would take, once where there is no doubt; what they processed is in no slice."""
    calls: list[str] = []
    slow, now_ns = workload(calls, 0.6, 0.5)
    found = count(slow, wire.Count(2, limit_s), clock_ns=lambda: now_ns[0])
    assert calls == [*["setup", "call"] * made, "processed"]
    assert found.repetitions == ()
    (note,) = found.notes
    assert f" {'500' if made == 2 else '600'} ms" in note
    assert "--rlperf-max-time" in note


@pytest.mark.parametrize(
    ("call_s", "times", "only"),
    [(0.02, 2, False), (0.06, 1, False), (0.19, 1, False), (0.21, 1, True), (0.66, 1, True), (0.68, 0, False)],
)
def test_a_long_call_is_counted_once(call_s: float, times: int, only: bool) -> None:
    """A call for which there is no time to count it twice is counted once, and of a longer one what is garbage."""
    slow, now_ns = workload([], call_s, call_s)
    found = count(slow, wire.Count(2, 1.0), clock_ns=lambda: now_ns[0])
    assert len(found.repetitions) == times
    assert found.instruments == (OF_GARBAGE if only else ())
    names = {each.name for counts in found.repetitions for each in counts}
    assert ("python_calls" in names) is (times > 0 and not only)
    assert names.issuperset(OF_GARBAGE) is (times > 0)
    assert bool(found.notes) is (only or not times)


@pytest.mark.parametrize(("call_s", "looks"), [(0.02, 1), (0.06, 2)])
def test_all_workers_count_the_same_calls(call_s: float, looks: int) -> None:
    """A worker that has more time looks at as many calls before it counts: at a certain one an episode ends."""
    slow, now_ns = workload([], call_s, call_s)
    first = count(slow, wire.Count(2, 1.0), clock_ns=lambda: now_ns[0])
    assert first.looks == looks
    again, now_ns = workload([], call_s, call_s)
    order = wire.Count(len(first.repetitions), 4.0, looks=first.looks)
    assert count(again, order, clock_ns=lambda: now_ns[0]).calls == first.calls


def test_a_workload_with_setup_and_count_is_counted() -> None:
    """Every counted call comes after its setup, and what was processed is drained in the end."""
    calls: list[str] = []
    quick, _ = workload(calls)
    found = count(quick, wire.Count(2, 60.0))
    assert len(found.repetitions) == 2
    assert all({"python_calls"} <= {each.name for each in counts if not each.path} for counts in found.repetitions)
    assert calls[-1] == "processed"
    assert calls.count("setup") == calls.count("call") > 2
    assert all(calls[index - 1] == "setup" for index, name in enumerate(calls) if name == "call")


def on_device(gpu: VirtualGPU, *, careless: bool) -> Workload:
    """Return a workload that is fed from the host and reads a loss; ``careless`` makes it wait, and grow."""
    held = [gpu.allocate(1000)]

    def call() -> None:
        with hierarchical_timer("sample"):
            gpu.copy_to_device(4096, pinned=not careless)
        with hierarchical_timer("critic"):
            gpu.launch(1e-4)
            if careless:
                gpu.item()
                held.append(gpu.allocate(1000))

    return Workload("callable", call, 1.0, "call", call, holds=(held,))


def counted_on_device(*, careless: bool) -> Counting:
    """Return what two workers count of it, each with a device of its own."""
    tallies = []
    for _ in range(2):
        gpu = VirtualGPU()
        with driving(gpu):
            work = on_device(gpu, careless=careless)
            work.check()
            tallies.append(count(work, wire.Count(2, 60.0)))
    learnt = learn(tallies)
    assert learnt is not None
    return learnt


def test_the_device_that_a_workload_is_on_is_counted() -> None:
    """Waits, pageable copies and memory asked for, each by phase: a marker that names them convicts."""
    policy = Policy(gates=("syncs", "pageable_copies", "device_allocations", "kernels"))
    found = combine(verdict(Status.SAME), counted_on_device(careless=False), counted_on_device(careless=True), policy)
    assert found.status is Status.SLOWER
    assert verdict_message(found).startswith(
        "critic: device_allocations 0 → 1; syncs 0 → 1 · sample: pageable_copies 0 → 1; syncs 0 → 1\n"
    )


MEMBERS = (
    "ops 20, ops:aten::mm 12 · sac: ops 20, ops:aten::mm 12 · sac/critic: ops 15, ops:aten::mm 12 · sac/actor: ops 5"
)
MORE_OF_ONE = (
    "ops 26, ops:aten::mm 18 · sac: ops 26, ops:aten::mm 18 · sac/critic: ops 21, ops:aten::mm 18 · sac/actor: ops 5"
)
MOVES = "python_calls 110..115 · critic: python_calls 40 · actor: python_calls 20 · env: python_calls 50..55"


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        # Not again in each phase around it, and by the operation's name rather than by the sum.
        pytest.param(MEMBERS, MORE_OF_ONE, "sac/critic: ops:aten::mm 12 → 18", id="in the deepest phase"),
        pytest.param(
            "syncs 0 · sac: syncs 0 · sac/critic: syncs 0",
            "syncs 6 · sac: syncs 6 · sac/critic: syncs 4",
            "sac: syncs 0 → 6 · sac/critic: syncs 0 → 4",
            id="a phase is told for what its children leave open",
        ),
        pytest.param("ops 9 · a: ops 6 · b: ops 3", "ops 9 · a: ops 3 · b: ops 6", "", id="moved"),
        pytest.param("ops 9 · a: ops 6 · b: ops 3", "ops 9 · a: ops 6 · c: ops 3", "", id="renamed"),
        pytest.param("ops 9 · critic: ops 9", "ops 11 · q: ops 11", "ops 9 → 11", id="renamed, and two more"),
        pytest.param("ops 9", "ops 11 · log: ops 2", "log: ops 0 → 2", id="a new phase"),
        pytest.param(
            "native_calls 10, native_calls:rlox 4",
            "native_calls 12, native_calls:rlox 4",
            "native_calls 10 → 12",
            id="of no member",
        ),
        pytest.param("syncs 2..4", "syncs 9", "", id="it was not exact"),
        pytest.param("syncs 3", "syncs 2..4", "", id="it may be what it was"),
        pytest.param("syncs 3", "syncs 3..4", "", id="or the least"),
        pytest.param("syncs 3", "syncs 2..3", "", id="or the most"),
        pytest.param("syncs 3", "syncs 4..6", "syncs 3 → 4", id="wholly above"),
        pytest.param("syncs 9", "syncs 4..6", "syncs 9 → 6", id="wholly below"),
        pytest.param("syncs 3", "syncs 3", "", id="equal"),
        pytest.param("syncs 0", "syncs 2", "syncs 0 → 2", id="from zero"),
        pytest.param("syncs 2", "syncs 0", "syncs 2 → 0", id="to zero"),
        pytest.param(
            "syncs 2, syncs:item 0 · a: syncs 1 · ab: syncs 1, syncs:item 0",
            "syncs 3, syncs:item 1 · a: syncs 2 · ab: syncs 1, syncs:item 1",
            "a: syncs 1 → 2 · ab: syncs:item 0 → 1",
            id="members of another phase whose name begins alike leave the sum",
        ),
        pytest.param(
            "syncs 1, syncs:item 1 · a: syncs:item 1",
            "syncs 2, syncs:item 2 · a: syncs:item 2",
            "a: syncs:item 1 → 2",
            id="a member below leaves out the sum",
        ),
        pytest.param(
            "syncs 2, syncs:item 2",
            "syncs 2, syncs:cpu 2",
            "syncs:cpu 0 → 2 · syncs:item 2 → 0",
            id="members that one side alone has",
        ),
        pytest.param("ops 5 · a: ops 1..3", "ops 8 · a: ops 4", "ops 5 → 8", id="a phase that wavered explains none"),
        pytest.param(
            "ops 110 · a: ops 100", "ops 120 · a: ops 102", "ops 110 → 120 · a: ops 100 → 102", id="nor does one of ten"
        ),
        pytest.param(
            "python_calls 90..95 · critic: python_calls 40",
            "python_calls 90..95 · critic: python_calls 41",
            "critic: python_calls 40 → 41",
            id="one more where the whole wavers",
        ),
        pytest.param(
            "python_calls 90..95 · critic: python_calls 41",
            "python_calls 91..97 · critic: python_calls 40",
            "critic: python_calls 41 → 40",
            id="one less where the whole wavers",
        ),
        # Where the whole wavers, what a phase of one side alone does may be elsewhere on the other.
        *(
            pytest.param(MOVES, f"python_calls 110..115 · actor: python_calls 20 · {now}", "", id=name)
            for name, now in (
                ("wavers, renamed", "q: python_calls 40 · env: python_calls 50..55"),
                ("wavers, deeper", "q/first: python_calls 40 · env: python_calls 50..55"),
                ("wavers, timer removed", "env: python_calls 50..55"),
            )
        ),
        pytest.param(MOVES, MOVES.replace("40", "30").replace("20", "30"), "", id="wavers, moved"),
        *(
            pytest.param(
                f"python_calls 90..99 · a: python_calls {a} · b: python_calls {b}",
                f"python_calls 90..99 · a: python_calls {70 - a} · b: python_calls {52 - b}",
                f"b: python_calls {b} → {52 - b}",
                id=name,
            )
            for name, a, b in (("ten that moved, two more", 40, 20), ("ten that moved, two less", 30, 32))
        ),
        *(
            pytest.param("host_peak_bytes 6144", f"host_peak_bytes {now}", expected, id=f"rounded, {now}")
            for now, expected in ((7168, ""), (5120, ""), (8192, "host_peak_bytes 6144 → 8192"))
        ),
        pytest.param("ops 1, syncs 3", "ops 1", "", id="not counted on one side"),
    ],
)
def test_what_has_changed(then: str, now: str, expected: str) -> None:
    """A change is another exact count, told once, where it is."""
    assert changes(then, now) == expected


def test_one_worker_alone_is_not_compared() -> None:
    """It has nothing exact."""
    assert compare(counting({WHOLE: {"ops": 1}}, workers=1), counting({WHOLE: {"ops": 2}}), EVERY) == ()


def test_gates_that_nothing_was_counted_for_are_named() -> None:
    """A gate that a side has not counted is named; one that only a marker names, too."""
    then = counting({WHOLE: {"ops": 3, "syncs": 0, "native_calls": 2}})
    now = counting({WHOLE: {"syncs": 0, "native_calls": 2}})
    every = tuple(name for name in NAMES if not name.endswith((":", "_bytes")))
    assert uncounted(then, now, every, ()) == ("ops",)
    assert uncounted(now, now, every, ()) == uncounted(then, now, (), ()) == ()
    named = ("syncs", "kernels", "native_calls:rlox", "copies_*", "native_calls:")
    assert uncounted(then, then, named, named) == ("kernels", "copies_*")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("ops",), "ops 3 → 5"),
        (("ops:",), "ops:aten::add 2 → 3 · ops:aten::mm 1 → 2"),
        (("ops:aten::mm", "syncs"), "ops:aten::mm 1 → 2 · syncs 0 → 1"),
        (("*_bytes",), "tensor_peak_bytes 100 → 164"),
    ],
)
def test_the_marker_chooses_by_name_family_and_pattern(names: tuple[str, ...], expected: str) -> None:
    """A family is its members, a name is itself alone."""
    then = "ops 3, ops:aten::mm 1, ops:aten::add 2, syncs 0, tensor_peak_bytes 100"
    now = "ops 5, ops:aten::mm 2, ops:aten::add 3, syncs 1, tensor_peak_bytes 164"
    assert changes(then, now, names) == expected


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        pytest.param("ops 100", "ops 103", [], id="by the tolerance"),
        pytest.param("ops 100", "ops 104", ["ops 100 → 104"], id="by more"),
        pytest.param("ops 4", "ops 2", [], id="less"),
        pytest.param("host_peak_bytes 1024, garbage 1", "host_peak_bytes 9216, garbage 9", [], id="memory"),
        pytest.param("ops 9, syncs 3", "ops 10", ["ops 9 → 10"], id="not counted on one side"),
        pytest.param("python_calls 4..6", "python_calls 8", [], id="inexact"),
        pytest.param(
            "python_calls 50, native_calls 150, native_calls:builtins 129, native_calls:numpy 21, syncs 0",
            "python_calls 90, native_calls 1055, native_calls:builtins 1032, native_calls:numpy 23, syncs 1",
            ["native_calls:builtins 129 → 1032", "syncs 0 → 1", "python_calls 50 → 90"],
            id="the most first, a family by its member",
        ),
        pytest.param(
            "native_calls 100, native_calls:a 90, native_calls:b 10",
            "native_calls 101, native_calls:a 80, native_calls:b 21",
            [],
            id="a member in the place of another",
        ),
    ],
)
def test_the_work_of_which_a_call_does_more(then: str, now: str, expected: list[str]) -> None:
    """Beyond a tolerance of 3 %, by the sum of a family, and relative to what it was; sizes are no work."""
    found = more_work(counting(read(then)), counting(read(now)), 0.03)
    assert [f"{change.name} {change.was} → {change.now}" for change in found] == expected
    assert more_work(counting(read(then), workers=1), counting(read(now)), 0.03) == ()


def verdict(status: Status, message: str = "why") -> Verdict:
    return builders.verdict(status, 1.01, margin=0.02, message=message)


THEN = counting({WHOLE: {"ops": 9, "ops:aten::mm": 9, "syncs": 4}})
MORE = counting({WHOLE: {"ops": 12, "ops:aten::mm": 12, "syncs": 4}})
LESS = counting({WHOLE: {"ops": 7, "ops:aten::mm": 7, "syncs": 4}})
BOTH = counting({WHOLE: {"ops": 7, "ops:aten::mm": 7, "syncs": 5}})
GATES = Policy(gates=("ops", "syncs"))


@pytest.mark.parametrize("status", [Status.SAME, Status.UNDECIDED, Status.NEW, Status.INCOMPARABLE, Status.FASTER])
def test_a_gated_count_that_is_more_is_slower(status: Status) -> None:
    """Whatever the time says, which stays with the verdict; the operation is named."""
    found = combine(verdict(status), THEN, MORE, GATES)
    assert found.status is Status.SLOWER
    assert (found.reason.code, found.by_counts) == ("counters", True)
    assert verdict_message(found) == f"aten::mm 9 → 12\nby time only: {status.value}, why"
    assert found.estimate == verdict(status).estimate
    assert found.counters == (CounterChange(WHOLE, "ops:aten::mm", 9, 12),)
    assert found.fails(strict=False)


def test_what_does_not_gate_or_is_accepted_fails_nothing() -> None:
    """The verdict is the time's where counts do not gate, and the changes are there to be shown."""
    assert not combine(replace(verdict(Status.SAME), accepted=True), THEN, MORE, GATES).fails(strict=True)
    assert not combine(verdict(Status.SAME), THEN, MORE, replace(GATES, gated=False)).fails(strict=True)
    found = combine(verdict(Status.SAME), THEN, MORE, Policy())
    assert found == replace(verdict(Status.SAME), counters=found.counters)
    assert found.counters


@pytest.mark.parametrize(
    ("status", "now"),
    [
        (Status.SLOWER, MORE),
        (Status.SLOWER, LESS),
        (Status.INVALID, LESS),
        (Status.FASTER, LESS),
    ],
)
def test_a_verdict_of_times_that_stands_says_what_was_counted(status: Status, now: Counting, wording: Wording) -> None:
    """A time that is slower, or no measurement at all, is not made good by fewer operations."""
    found = combine(verdict(status), THEN, now, GATES)
    assert found.status is status
    assert not found.by_counts
    assert verdict_message(found) == wording


HERE = builders.MACHINE
RESULT = builders.result("t.py::test_a", counting=THEN)


def baseline(machine: Machine, result: Result = RESULT, **packages: str) -> Baseline:
    origin = builders.provenance(packages=packages)
    return Baseline(1, machine, {"s": origin}, {result.nodeid: builders.stored(result, "s")})


def recall(tmp_path: Path, own: Baseline | None, result: Result = RESULT) -> OtherCounts:
    return StoredCounts(own, tmp_path).find(result)


def installed(name: str) -> str:
    from importlib.metadata import version

    return version(name)


@pytest.mark.parametrize(
    "stored",
    [
        baseline(HERE, numpy="0.1"),
        baseline(HERE, nosuchpackage="1.0"),
    ],
)
def test_counts_of_other_versions_are_not_compared(tmp_path: Path, stored: Baseline, wording: Wording) -> None:
    """Other versions of packages may change the counts, so only live sides can decide."""
    found = recall(tmp_path, stored)
    assert found.counting is None
    assert found.obstacle is not None
    assert obstacle_text(found.obstacle).replace(installed("numpy"), "INSTALLED") == wording


def test_counts_of_other_versions_of_the_tree_are_compared(tmp_path: Path) -> None:
    """The tree's own code is what is tested."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "NoSuchPackage"\n')
    assert recall(tmp_path, baseline(HERE, nosuchpackage="1.0")) == OtherCounts(THEN)


@pytest.mark.parametrize(("then", "now"), [(1, 5), (5, 1)])
def test_one_worker_alone_tells_nothing(tmp_path: Path, then: int, now: int) -> None:
    """Its counts may be exact or not: that they were not compared is said."""
    counts: Counts = {WHOLE: {"syncs": 1}}
    stored = baseline(HERE, replace(RESULT, counting=counting(counts, workers=then)))
    found = recall(tmp_path, stored, result=replace(RESULT, counting=counting(counts, workers=now)))
    assert found.counting is None
    assert found.obstacle == OneWorkerCounted()


def test_another_python_counts_its_calls_otherwise() -> None:
    """Of a live comparison of two interpreters only what the libraries below do is compared."""
    counts: Counts = {WHOLE: {"ops": 3, "python_calls": 9, "native_calls": 4, "native_calls:numpy": 4, "garbage": 1}}
    base = replace(RESULT, counting=counting(counts))
    assert live_counts(base, "python:/usr/bin/python3").counting == counting({WHOLE: {"ops": 3}})
    assert live_counts(base, "HEAD~1") == live_counts(base) == OtherCounts(counting(counts))


@pytest.mark.parametrize("value", ["ops", "", 3, [], [3], ["no_such"], ["op"], ["native_call:rlox"], ["opz*"]])
def test_counters_that_mean_nothing_are_refused(value: object, wording: Wording) -> None:
    """With what there is."""
    with wording.raises(ValueError):
        parse_findings({"counts": value})


def test_the_marker_gates_unless_counting_is_off(pytester: pytest.Pytester) -> None:
    """The marker beats the ini file, and lists what gates; off is off, whatever a test asks for.

    Sizes depend on the interpreter's build, and an operation replaced by a better one is no regression: neither gates.
    """
    pytester.makeini("[pytest]\nrlperf_findings = counts=gate")
    pytester.makeconftest(
        "def pytest_collection_modifyitems(config, items):\n"
        "    from pytest_rlperf.options import read_config\n"
        "    for item in items:\n"
        "        print(item.name, *read_config(config).for_test(item).gating_counts)\n"
    )
    pytester.makepyfile(
        "import pytest\ndef test_a(): pass\n"
        "@pytest.mark.rlperf(findings={'counts': ['syncs', 'ops:']})\ndef test_b(): pass\n"
    )
    exact = [name for name in NAMES if not name.endswith((":", "_bytes"))]
    for args, expected in (
        ((), (exact, ["syncs", "ops:"])),
        (("--rlperf-findings=counts=show",), ([], ["syncs", "ops:"])),
        (("--rlperf-findings=counts=off",), ([], [])),
    ):
        result = pytester.runpytest_inprocess("-p", "rlperf", "-q", "-s", "--rlperf", "--collect-only", *args)
        lines = [" ".join((f"*test_{name}", *gates)) for name, gates in zip("ab", expected, strict=True)]
        result.stdout.fnmatch_lines(lines)


def test_a_counter_that_does_not_exist_is_a_usage_error(pytester: pytest.Pytester) -> None:
    """At collection, before anything is measured, with the names there are; so is a word that is none."""
    pytester.makepyfile(
        "import pytest\n@pytest.mark.rlperf(findings={'counts': ['opps']})\ndef test_a(rlperf): rlperf(lambda: None)\n"
    )
    result = pytester.runpytest_inprocess("-p", "rlperf", "--rlperf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_a*'opps'*'opps'*: ops, ops:, *"])
    result = pytester.runpytest_inprocess("-p", "rlperf", "--rlperf-findings=counts=on")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rlperf-findings=counts=on: *off, show*gate*"])
