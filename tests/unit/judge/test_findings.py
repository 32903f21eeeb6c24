"""Findings beside time and counts: growth, threads, drift, phases and outputs, by made readings and in a whole run."""

from __future__ import annotations

import importlib
import math
import random
import re
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import builders
import numpy as np
import pytest
from example import FAILED, Example
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_rlperf import units
from pytest_rlperf import wire as m
from pytest_rlperf.cli.command import parse
from pytest_rlperf.components.checks import output_parts
from pytest_rlperf.judge.findings import compiles, drift, find_all, first_call, garbage, growth, scale
from pytest_rlperf.judge.findings.outputs import compare
from pytest_rlperf.judge.policy import verdict
from pytest_rlperf.judge.verdict import with_findings
from pytest_rlperf.model.facts import InWords, OtherBits
from pytest_rlperf.model.findings import FINDINGS
from pytest_rlperf.model.judged import Policy, Status, Verdict
from pytest_rlperf.model.live import Live, OutputComparison, Outputs, PairRecord, PhaseRatio, Reading, StartUp
from pytest_rlperf.model.measured import Compiled, Counting, PhaseCounts, Usage
from pytest_rlperf.model.reasons import WrittenReason
from pytest_rlperf.report.run_json import RunFile, document_of, written
from pytest_rlperf.report.wording import finding_line, left_behind_text
from pytest_rlperf.run.series import Series
from pytest_rlperf.spawn.connections import connected

PAGE = (Path(__file__).parents[3] / "docs" / "counters.md").read_text(encoding="utf-8")
OFF = """
    import library
    import pytest

    @pytest.mark.rlperf(findings={"growth": "off", "threads": "off", "drift": "off", "compiles": "off"})
    def test_off(rlperf):
        rlperf(library.growth_of_a_list)
"""
CALLS = (0, 100, 200, 400, 800)
NOTHING = Usage(0, 100_000, 50 << 20, 120, 0, 0, 9, 3, 1)


def usage(calls: int, **more: float) -> Usage:
    """Return what a process holds after so many calls that each leave ``more`` behind."""
    return replace(
        NOTHING, calls=calls, **{name: getattr(NOTHING, name) + int(calls * each) for name, each in more.items()}
    )


def live_of(runs: Sequence[Sequence[Reading]]) -> Live:
    pairs = tuple(replace(builders.pair(0.0), readings=tuple(readings)) for readings in runs)
    return Live("main", "HEAD", builders.result(), pairs, ())


def growing(head: dict[str, float], base: dict[str, float] | None = None, pairs: int = 3) -> Live:
    """Return a comparison in which every call leaves something behind, on head and perhaps on base."""
    readings = [Reading(usage(calls, **(base or {})), usage(calls, **head)) for calls in CALLS]
    return live_of([readings] * pairs)


def lines(live: Live, **levels: str) -> list[str]:
    findings = find_all(live, Policy(findings={**FINDINGS, **levels}))
    return [f"{finding.kind}{'!' if finding.gates else ''}: {finding_line(finding.line)}" for finding in findings]


def test_growth_without_a_base_is_a_note() -> None:
    """It needs several workers that agree, and growth that goes on."""
    growing_usages = [[usage(calls, objects=2.0) for calls in CALLS]] * 3
    filling = [[replace(NOTHING, calls=calls, objects=100_000 + min(calls, 150) * 2) for calls in CALLS]] * 3
    grown = growth.of_one_side(growing_usages)
    assert grown is not None
    assert "leaves 2 blocks of Python memory" in left_behind_text(grown)
    for usages in ([], growing_usages[:1], filling, [[usage(calls) for calls in CALLS]] * 3):
        assert growth.of_one_side(usages) is None


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param(growing({}), [], id="nothing grows"),
        pytest.param(
            growing({"objects": 1.0}),
            ["growth!: each call leaves 1 block of Python memory more than on the base"],
            id="an object",
        ),
        pytest.param(growing({"objects": 10.0}, {"objects": 10.0}), [], id="both sides grow alike"),
        pytest.param(growing({"objects": 10.4}, {"objects": 10.0}), [], id="head grows a little more than base"),
        pytest.param(growing({"objects": 1.0}, pairs=1), [], id="one pair proves nothing"),
        pytest.param(growing({"private_bytes": 100.0}), [], id="less memory in all than an allocator takes at once"),
        pytest.param(
            growing({"private_bytes": 4096.0, "device_bytes": 512.0}),
            ["growth!: each call leaves 4.10kB of memory, 512B of device memory more than on the base"],
            id="memory",
        ),
        pytest.param(
            growing({"shared_blocks": 1.0, "shared_bytes": 4096.0}, {"shared_blocks": 0.1}),
            ["growth!: each call leaves 0.9 blocks of shared memory, 4.10kB of shared memory more than on the base"],
            id="shared memory",
        ),
        pytest.param(
            growing({"shared_blocks": 1.0}, {"shared_blocks": 1.0}), [], id="both sides leave shared memory alike"
        ),
        pytest.param(
            growing({"shared_blocks": 1.006}),
            ["growth!: each call leaves 1 block of shared memory more than on the base"],
            id="about one block",
        ),
        pytest.param(growing({"shared_blocks": 0.002}), [], id="two blocks of shared memory in all"),
        pytest.param(
            growing({"temporary_files": 1.0, "temporary_bytes": 1e4, "segments": 2.0, "segment_bytes": 8192.0}),
            [
                "growth!: each call leaves 1 temporary file, 10.0kB of temporary files, "
                "2 System V segments or semaphores, 8.19kB of System V segments more than on the base"
            ],
            id="on the machine",
        ),
        pytest.param(
            growing({"open_files": 0.01}),
            ["growth!: each call leaves 0.01 open files more than on the base"],
            id="a file in 100",
        ),
        pytest.param(
            live_of(
                [[Reading(usage(0), usage(0)), *(Reading(usage(n), replace(usage(n), threads=6)) for n in CALLS[1:])]]
                * 3
            ),
            ["threads!: works with 6 threads, 3 on the base"],
            id="more threads from the start",
        ),
    ],
)
def test_what_calls_leave_behind(live: Live, expected: list[str]) -> None:
    """Growth in every stretch of every pair, beyond base's, is found and gates."""
    assert lines(live) == expected


def counted(**values: tuple[int, int]) -> Counting:
    """Return what two workers have counted of a whole call: the least and the most of each count."""
    exact = {name: least for name, (least, most) in values.items() if least == most}
    varying = {name: found for name, found in values.items() if found[0] != found[1]}
    return Counting((PhaseCounts("", exact, varying),), 2, 3)


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [
        ({"garbage_files": (0, 0)}, {"garbage_files": (4, 4)}, "4 open files (0 on the base)"),
        ({"garbage_files": (4, 4)}, {"garbage_files": (6, 6)}, "6 open files (4 on the base)"),
        ({"garbage_files": (1, 1)}, {"garbage_files": (0, 0)}, ""),
        ({"garbage_files": (0, 2)}, {"garbage_files": (2, 4)}, ""),
        ({"garbage_bytes": (1000, 2000)}, {"garbage_bytes": (400_000, 500_000)}, "400kB of memory (2.00k on the base)"),
        ({"garbage_bytes": (0, 0)}, {"garbage_bytes": (200_000, 200_000)}, ""),
        (
            {"garbage_bytes": (0, 0), "garbage": (0, 0)},
            {"garbage_bytes": (36_000, 36_000), "garbage": (1, 1)},
            "36.0kB of memory (0 on the base)",
        ),
        ({"garbage_bytes": (0, 0), "garbage": (0, 0)}, {"garbage_bytes": (36_000, 36_000), "garbage": (9, 9)}, ""),
        ({}, {"garbage_processes": (1, 1)}, ""),
    ],
)
def test_what_a_call_leaves_to_the_collector(
    was: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]], expected: str
) -> None:
    """All processes of head leave more than any of base, and enough of it; what a side did not count is not known."""
    found = garbage.find(counted(**was), counted(**now), Policy())
    line = "" if found is None else finding_line(found.line)
    assert line == (f"each call leaves to the garbage collector: {expected}" if expected else "")


@pytest.mark.parametrize(
    ("head", "base", "expected"),
    [
        pytest.param(
            {"compiled": 1.0}, {}, ["compiles!: each call compiles 1 program, none on the base"], id="each call"
        ),
        pytest.param({"compiled": 0.02}, {"compiled": 0.01}, [], id="two for the whole pair"),
        pytest.param({"compiled": 1.0}, {"compiled": 1.0}, [], id="both sides"),
        pytest.param(
            {"compiled": 0.5},
            {"compiled": 0.1},
            ["compiles!: each call compiles 0.5 programs, 0.1 on the base"],
            id="more",
        ),
    ],
)
def test_what_calls_compile(head: dict[str, float], base: dict[str, float], expected: list[str]) -> None:
    """Programs of every pair, where the host's calls go on to compile."""
    short = (0, 20, 40, 60, 90)
    readings = [Reading(usage(calls, **base), usage(calls, **head)) for calls in short]
    assert lines(live_of([readings] * 3)) == expected


def test_what_each_counted_call_compiles_is_found() -> None:
    """A compiler that gives up after a few calls compiles nothing in timed ones; the report names what it compiled."""
    why = "0/4: tensor 'x' size mismatch at index 0. expected 5, actual 6"
    named = (
        Compiled("static", why=why),
        Compiled("lib.total", ("float64", "int64"), ("float64",)),
        Compiled("lib.inner", ("float64",), ("float64",)),
        Compiled("lib.first", ("float64",)),
    )
    live = replace(growing({}), compiled=named)
    found = compiles.of_counts(counted(recompiles=(0, 0)), counted(recompiles=(1, 2)), live, Policy())
    assert found is not None
    assert found.gates
    assert finding_line(found.line) == (
        f"each call compiles 1 program, none on the base; static: {why}; lib.total: int64 after none; "
        "lib.inner: compiled again for the same types; lib.first"
    )
    assert compiles.of_counts(counted(recompiles=(1, 1)), counted(recompiles=(1, 1)), live, Policy()) is None
    assert compiles.of_counts(counted(recompiles=(0, 0)), counted(recompiles=(0, 1)), live, Policy()) is None
    off = Policy(findings={**FINDINGS, "compiles": "off"})
    assert compiles.of_counts(counted(recompiles=(0, 0)), counted(recompiles=(1, 1)), live, off) is None


def test_what_waits_for_the_collector_is_found() -> None:
    """Memory that only a collection frees counts, where head has twice as much of it as base and more in every pair."""

    def waiting(head: int, base: int, blocks: int = 0) -> Live:
        readings = [
            Reading(
                replace(usage(calls), waiting_bytes=base * bool(calls)),
                replace(usage(calls), waiting_bytes=head * (calls > 200), waiting_objects=blocks),
            )
            for calls in CALLS
        ]
        return live_of([readings] * 3)

    (found,) = lines(waiting(80 << 20, 1 << 20))
    assert found == "growth!: each call leaves 204kB that wait for the garbage collector more than on the base"
    assert lines(waiting(80 << 20, 40 << 20)) == []
    assert lines(waiting(8 << 20, 0)) == []

    def collecting(base: int, head: int, blocks: int = 20_000) -> Live:
        live = waiting(8 << 20, 1 << 20, blocks)
        both = [(replace(pair.base, collections=base), replace(pair.head, collections=head)) for pair in live.pairs]
        pairs = (replace(pair, base=base, head=head) for pair, (base, head) in zip(live.pairs, both, strict=True))
        return replace(live, pairs=tuple(pairs))

    # A head that has switched the collector off keeps the memory for good.
    (found,) = lines(collecting(9, 0))
    assert found == "growth!: each call leaves 15.7kB that wait for the garbage collector more than on the base"
    assert lines(collecting(9, 1)) == lines(collecting(0, 0)) == lines(collecting(9, 0, 700)) == []


def test_a_cache_that_fills_is_no_growth() -> None:
    """What grows less from stretch to stretch is a cache, however large."""
    kept = [0, 900, 1500, 1700, 1710]
    readings = [
        Reading(usage(calls), replace(usage(calls), objects=NOTHING.objects + more))
        for calls, more in zip(CALLS, kept, strict=True)
    ]
    assert lines(live_of([readings] * 4)) == []


def test_what_is_kept_once_is_no_growth() -> None:
    """A copy that the head makes on one call of many, beside memory that both sides keep with each call."""
    kept = (0, 40, 100, 180, 400)
    readings = [
        Reading(
            replace(usage(calls), objects=NOTHING.objects + both),
            replace(usage(calls), objects=NOTHING.objects + both + 300 * (calls > 150)),
        )
        for calls, both in zip(CALLS, kept, strict=True)
    ]
    assert lines(live_of([readings] * 4)) == []
    growing_too = [
        replace(each, head=replace(each.head, objects=each.head.objects + each.head.calls)) for each in readings
    ]
    assert "each call leaves" in lines(live_of([growing_too] * 4))[0]


def test_what_the_first_calls_keep_for_good_hides_no_growth() -> None:
    """Few calls that keep one object each after a first one that keeps a hundred, on both sides, grow all the same."""
    once = replace(NOTHING, objects=NOTHING.objects + 100)
    readings = [
        Reading(replace(once if calls else NOTHING, calls=calls), replace(once if calls else NOTHING, calls=calls))
        for calls in (0, 10, 20, 40, 300)
    ]
    grown = [
        replace(reading, head=replace(reading.head, objects=reading.head.objects + reading.head.calls))
        for reading in readings
    ]
    assert lines(live_of([readings] * 3)) == []
    assert lines(live_of([grown] * 3)) == ["growth!: each call leaves 1 block of Python memory more than on the base"]
    short = grown[:3]
    assert lines(live_of([grown, grown, short])) == lines(live_of([grown] * 2))
    assert growth.hints(live_of([grown, short, short]))
    assert not growth.hints(live_of([readings, readings[:3], readings[:3]]))


def test_a_pair_that_is_too_short_hints_at_growth() -> None:
    """Few calls that each keep something ask for a longer look, whose readings then decide."""
    short = [Reading(usage(calls), usage(calls, objects=2.0)) for calls in (0, 4, 8, 16)]
    live = live_of([short] * 3)
    assert lines(live) == []
    assert growth.hints(live)
    longer = tuple(Reading(usage(calls), usage(calls, objects=2.0)) for calls in CALLS)
    assert lines(replace(live, longer=longer)) == [
        "growth!: each call leaves 2 blocks of Python memory more than on the base"
    ]
    assert not growth.hints(growing({}))
    assert growth.hints(growing({"open_files": 0.00125}))  # one within a pair proves nothing
    assert not growth.hints(growing({"open_files": 0.00125}, {"open_files": 0.00125}))
    assert not growth.hints(growing({"open_files": 0.01}))  # enough is found already


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_memory_that_comes_and_goes_is_no_growth(seed: int) -> None:
    """Equal code whose memory jumps at random has no growth."""
    generator = random.Random(seed)

    def reading(calls: int) -> Reading:
        jumps = (generator.randrange(-1 << 20, 1 << 20) for _ in range(4))
        base, head = (
            replace(usage(calls), private_bytes=(50 << 20) + next(jumps), objects=100_000 + next(jumps) % 50)
            for _ in range(2)
        )
        return Reading(base, head)

    runs = [[reading(calls) for calls in CALLS] for _ in range(5)]
    assert lines(live_of(runs)) == []


def test_calls_that_get_slower_drift() -> None:
    """A ratio that rises within every pair is a drift; one that is large from the start is none."""

    def run(ratios: Sequence[float]) -> list[Reading]:
        return [Reading(usage(calls), usage(calls), ratio) for calls, ratio in zip(CALLS, ratios, strict=True)]

    rising = live_of([run((0.0, 0.1, 0.15, 0.2, 0.4 + 0.01 * number)) for number in range(4)])
    (found,) = lines(rising)
    assert found == "drift!: gets slower while it runs: +37.0 % within 800 calls"
    assert f"`{found.removeprefix('drift!: ')}`" in PAGE
    assert lines(live_of([run((0.0, 0.4, 0.41, 0.4, 0.4 + 0.01 * number)) for number in range(4)])) == []


LATER = (1.0, 1.06, 1.1, 1.15, 1.12, 1.2, 1.22, 1.25, 1.28, 1.3, 1.33, 1.35)  # head over base as the pair goes on
RISES, POINTS = (0.04, 0.03, 0.05), (-0.01, 0.0, 0.02)  # within each pair: surely, or on average
SLOWER_BY = ["drift!: gets slower while it runs: +35.0 % within 12800 calls"]


@pytest.mark.parametrize(
    ("rises", "keeps", "later", "expected"),
    [
        pytest.param(RISES, 0.0, LATER, SLOWER_BY, id="by time"),
        pytest.param(POINTS, 2.0, LATER, SLOWER_BY, id="by memory"),
        pytest.param(POINTS, 0.0, LATER, [], id="no hint"),
        pytest.param([-each for each in POINTS], 2.0, LATER, [], id="memory, but faster"),
        pytest.param(RISES, 0.0, (*LATER[6:], *LATER[:6]), [], id="an episode ends"),
        pytest.param(RISES, 0.0, [each - 0.9 for each in LATER], [], id="no slower than at the start"),
        pytest.param(RISES, 0.0, [1 + (each - 1) / 4 for each in LATER], [], id="slower by less than a tenth"),
    ],
)
def test_a_pair_that_goes_on_shows_drift(
    rises: Sequence[float], keeps: float, later: Sequence[float], expected: list[str]
) -> None:
    """Pairs that end early hint at a cost that grows with an episode, by their times or by what both sides keep."""

    def reading(calls: int, ratio: float) -> Reading:
        return Reading(usage(calls, objects=keeps), usage(calls, objects=keeps), ratio)

    live = live_of([[reading(0, 0), reading(100, 0), reading(200, 0), reading(400, rise)] for rise in rises])
    longer = [reading(800 + 1000 * index, math.log(ratio)) for index, ratio in enumerate((1.0, *later))]
    assert lines(replace(live, longer=tuple(longer))) == expected
    assert drift.hints(live) or not expected


def test_calls_that_leave_files_open_are_not_repeated_for_drift() -> None:
    """On either side: thousands of them would run out of files."""
    for leaves, hints in (({"objects": 2.0}, True), ({"objects": 2.0, "open_files": 1.0}, False)):
        used = [usage(calls, **leaves) for calls in CALLS]
        ratios = (0.0, 0.0, 0.02, 0.04, 0.06)
        readings = [Reading(each, each, ratio) for each, ratio in zip(used, ratios, strict=True)]
        assert drift.hints(live_of([readings] * 3)) == hints


def test_a_pair_that_goes_on_for_drift_hides_no_growth() -> None:
    """Unless growth has asked for more calls, the pairs decide."""
    live = growing({"objects": 1.0})
    still = tuple(Reading(usage(0), usage(calls)) for calls in CALLS)
    assert not growth.hints(live)
    assert lines(replace(live, longer=still)) == lines(live) != []


def test_a_phase_is_slower_though_the_call_is_not() -> None:
    """A small phase that got slower for certain is named, its parent and phases of no weight are not."""

    def pairs(*phases: tuple[str, float, float]) -> Live:
        found = tuple(PhaseRatio(path, math.log(ratio), share) for path, ratio, share in phases)
        return replace(live_of([[]] * 4), pairs=(replace(builders.pair(0.01), phases=found),) * 4)

    assert lines(pairs(("update", 1.02, 0.9), ("update/critic", 1.5, 0.05), ("update/tiny", 3.0, 0.0001))) == [
        "phases: slower in a phase: update/critic +50.0 %, at least +40.4 %"
    ]
    assert lines(pairs(("update", 1.02, 0.9), ("update/critic", 1.1, 0.05))) == []
    (line,) = lines(pairs(("update", 1.5, 0.9)))
    assert line.startswith("phases: slower in a phase: update +50.0 %")


def test_phases_that_agree_by_chance_are_not_named() -> None:
    """Where the other phases of a test are off by half from pair to pair, pairs of one that agree prove little."""
    noisy = (0.5, -0.7, 0.2)

    def pair(index: int) -> PairRecord:
        others = tuple(PhaseRatio(f"update/{name}", noisy[(index + turn) % 3], 0.2) for turn, name in enumerate("abc"))
        return replace(builders.pair(0.01), phases=(*others, PhaseRatio("update/d", 0.6 + index / 50, 0.14)))

    assert lines(replace(live_of([[]] * 3), pairs=tuple(map(pair, range(3))))) == []


def point(size: float, ratio: float, peak: int) -> scale.ScalePoint:
    """Return a test at a size whose time on head is ``ratio`` times base's, and whose memory on head is ``peak``."""
    ratios = [math.log(ratio) + noise for noise in (-0.01, 0.0, 0.01)]
    return scale.ScalePoint(size, ratios, 1e-3, {"tensor_peak_bytes": 1000}, {"tensor_peak_bytes": peak})


def test_a_scan_is_linear_beside_work_that_does_not_grow() -> None:
    """The law is that of what head adds, whatever share of a call it is; counts of both sides have it, too."""
    for constant in (1e-4, 1e-3, 1e-2):
        points = [
            scale.ScalePoint(
                size, [math.log(1 + 1e-8 * size / constant)] * 3, constant, {"ops": 500}, {"ops": 500 + size}
            )
            for size in (1_000, 100_000, 1_000_000)
        ]
        found = scale.find(points, Policy())
        assert found is not None
        assert finding_line(found.line).count(", what is added ∝ size^1.0") == len(found.figures) == 2
    quadratic = [replace_ratio(each, 1 + 1e-9 * each.size**2) for each in points]
    found = scale.find(quadratic, Policy())
    assert found is not None
    assert "time" in found.figures
    assert "what is added ∝ size^2.0; ops" in finding_line(found.line)


def replace_ratio(point: scale.ScalePoint, ratio: float) -> scale.ScalePoint:
    """Return a test with the time of head at ``ratio`` times base's."""
    return point._replace(log_ratios=[math.log(ratio)] * 3)


def test_large_counts_are_written_without_exponents() -> None:
    """A mean of counts has two digits and no exponent, as the exact counts beside it have none."""
    for value, text in ((1824.0, "1,800"), (912.0, "910"), (1.0, "1"), (0.0133, "0.013"), (96_000_000.0, "96,000,000")):
        assert units.number(value) == text
    assert units.number(1824.0, 3) == "1,820"
    assert [units.number(value) for value in (0.0, 3.5e-7, 2e12, -1500.0)] == ["0", "3.5e-07", "2e+12", "-1,500"]
    (line,) = lines(growing({"objects": 1824.0}))
    assert line == "growth!: each call leaves 1,800 blocks of Python memory more than on the base"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        (
            [point(1e3, 1.0, 1000), point(1e5, 1.29, 1000), point(1e6, 3.5, 1000)],
            "time ×2.7 (base ×1), what is added ∝ size^0.9",
        ),
        (
            [point(1e3, 1.0, 1000), point(1e5, 1.0, 1000), point(1e6, 1.02, 10000)],
            "tensor_peak_bytes ×10 (base ×1)",
        ),
        ([point(1e3, 1.5, 1000), point(1e5, 1.5, 1000), point(1e6, 1.5, 1000)], None),
        ([point(1e3, 1.0, 1), point(1e5, 1.0, 1), point(1e6, 1.02, 9)], None),  # a count that stays small
        ([point(1e5, 1.0, 1000), point(1e6, 10.0, 1000)], None),  # two sizes show no law
        ([point(1e5, 1.0, 1000), point(2e5, 1.0, 1000), point(2.1e5, 2.0, 1000)], None),  # sizes too near each other
    ],
)  # fmt: skip
def test_a_law_grows_faster(points: list[scale.ScalePoint], expected: str | None) -> None:
    """A larger exponent of time or of an exact count, by the two largest of three sizes or more, is found."""
    found = scale.find(points, Policy())
    assert (finding_line(found.line).partition(": ")[2] if found else None) == expected


def test_the_last_test_of_a_series_has_its_law() -> None:
    """Tests that differ in one number are a series, in any order; it is judged once all of them are measured."""
    sizes = {"s": 1_000, "m": 100_000, "l": 1_000_000}
    keys = {name: f"test_it.py::test_sample[{name}]" for name in sizes}
    items: list[Any] = [
        SimpleNamespace(
            nodeid=keys[name],
            config=SimpleNamespace(getoption=lambda *_: False),
            callspec=SimpleNamespace(params={"stored": size, "kind": "uniform", "flag": True}),
        )
        for name, size in sizes.items()
    ]
    series, found = Series(items), []
    for name, ratio in (("l", 3.5), ("s", 1.0), ("m", 1.0)):
        live = replace(live_of([]), pairs=tuple(builders.pair(math.log(ratio)) for _ in range(3)))
        found.append(series.add(builders.result(keys[name]), live, Policy()))
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert finding_line(found[2].line) == "from 100,000 to 1,000,000: time ×3.5 (base ×1)"
    assert series.add(builders.result("test_it.py::test_other"), live, Policy()) is None


def test_a_slow_start_is_found() -> None:
    """A first call, or an import, that takes longer by half a second and by half in every pair is found."""
    pairs = [replace(builders.pair(0.0), first_call_s=(0.4, 1.6 + 0.1 * n), import_s=(1.0, 1.6)) for n in range(3)]
    slow = replace(live_of([]), pairs=tuple(pairs))
    assert lines(slow) == [
        "first_call!: the first call takes 1.60 s, 400 ms on the base; importing the tests takes 1.60 s, 1.00 s on the "
        "base"
    ]
    assert (
        lines(replace(slow, pairs=tuple(replace(pair, first_call_s=(1.0, 1.4), import_s=(2.0, 2.6)) for pair in pairs)))
        == []
    )


@pytest.mark.parametrize(
    ("start_ups", "is_found"),
    [
        pytest.param([], False, id="copies of a loader prove nothing"),
        pytest.param([StartUp((0.1, 0.1), (1.0, 3.0))] * 4, True, id="an import that only head has"),
        pytest.param([StartUp((0.1, 1.2), (0.0, 0.0))] * 4, True, id="a first call"),
        pytest.param([StartUp((0.1, 0.1), (1.0, 3.0)), StartUp((0.1, 0.1), (1.0, 1.2))], False, id="once"),
    ],
)
def test_new_interpreters_decide_on_a_slow_start(start_ups: list[StartUp], is_found: bool) -> None:
    """Where pairs are copies of a loader, which may have imported what is slow, those of new interpreters count."""
    pair = replace(builders.pair(0.0), loader=0, first_call_s=(0.4, 1.6))
    live = replace(live_of([]), pairs=(pair,) * 3, start_ups=tuple(start_ups))
    assert first_call.hints(pair, first_call.usual_calls_s(live))
    assert bool(lines(live)) is is_found


@pytest.mark.parametrize(("head_s", "is_found"), [(4.2, False), (8.0, True)])
def test_a_slow_first_call_is_slower_than_usual_calls_are(head_s: float, is_found: bool) -> None:
    """A first call that takes what each call takes is no finding of its own."""
    pair = builders.pair(math.log(2), *(builders.worker(wall=builders.figures(call_s)) for call_s in (2.0, 4.0)))
    pair = replace(pair, first_call_s=(2.1, head_s))
    live = replace(live_of([]), pairs=(pair,) * 3)
    assert first_call.hints(pair, first_call.usual_calls_s(live)) is is_found
    assert (first_call.find(live, Policy()) is not None) is is_found


VALUES = np.linspace(-1, 1, 200, dtype=np.float32)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param({"a": VALUES, "n": 3}, OutputComparison(Outputs.EQUAL), id="equal"),
        pytest.param({"a": VALUES * np.float32(1 + 1e-6), "n": 3}, Outputs.CLOSE, id="rounding"),
        pytest.param({"a": -VALUES, "n": 3}, Outputs.DIFFERENT, id="another sign"),
        pytest.param({"a": VALUES.astype(np.float64), "n": 3}, Outputs.DIFFERENT, id="another type"),
        pytest.param({"a": VALUES, "n": 4}, Outputs.DIFFERENT, id="another number"),
        pytest.param({"a": VALUES}, Outputs.DIFFERENT, id="one is missing"),
        pytest.param({"a": VALUES, "n": "text"}, Outputs.DIFFERENT, id="a text"),
        pytest.param({"a": np.where(VALUES > 0, np.nan, VALUES), "n": 3}, Outputs.DIFFERENT, id="NaN"),
    ],
)
def test_outputs_are_compared(head: object, expected: OutputComparison | Outputs) -> None:
    """Outputs are equal in every bit, within rounding, or different; NaN equals NaN."""
    base = output_parts({"a": VALUES, "n": 3})
    found = compare([(7, base, output_parts(head)), (7, base, output_parts(head))])
    assert expected in (found, found.outputs)
    texts = [(7, output_parts("one"), output_parts("two"))] * 2  # of which there is nothing to compare but the bits
    assert compare(texts).outputs is Outputs.DIFFERENT
    with_nan = output_parts([np.array([np.nan, 1.0])])
    assert compare([(7, with_nan, with_nan)] * 2).outputs is Outputs.EQUAL


LARGEST = float(np.finfo(np.float64).max)
AWKWARD: dict[str, Any] = {
    "-inf alone": np.full(5, -np.inf),
    "NaN alone": np.full(3, np.nan, dtype=np.float32),
    "all that is not finite, and numbers": np.array([np.inf, 3.0, -np.inf, np.nan, 5.0]),
    "too large to be added": np.full(4, LARGEST),
    "of both signs": np.array([LARGEST, -LARGEST] * 50),
    "too large for float64": np.array([1e300, 2.0], dtype=np.longdouble) ** 2,
    "half precision": np.full(300, np.finfo(np.float16).max, dtype=np.float16),
    "plain": {"low": -math.inf, "high": math.inf, "none": math.nan, "large": LARGEST, "least": -LARGEST},
    "empty": np.empty((0, 3)),
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.filterwarnings("error", "ignore:overflow encountered in cast:RuntimeWarning")
def test_outputs_that_are_not_finite_are_compared(name: str) -> None:
    """Their samples are finite, or no message could hold them, and tell other outputs apart."""
    value = AWKWARD[name]
    parts = output_parts(value)
    assert parts
    assert all(math.isfinite(number) for part in parts for number in part.sample)
    here, there = connected()
    with here, there:
        m.send(there, m.Answer(1, m.Checked(0.001, 1.0, {}, children=False, output=parts)))
        answer = m.receive(here, m.FromWorker)
    assert isinstance(answer, m.Answer)
    assert m.answer_to(m.Check(), answer).output == parts
    assert compare([(7, parts, parts)] * 2).outputs is Outputs.EQUAL
    other = {**value, "low": math.inf} if isinstance(value, dict) else np.zeros((2, 1))
    assert compare([(7, parts, output_parts(other))] * 2).outputs is Outputs.DIFFERENT


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(np.full(3, LARGEST), id="whose mean is rounded up"),
        pytest.param({"a": 1.0, "n": 10**400}, id="an integer that no float can be"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_the_largest_outputs_are_compared(value: object) -> None:
    """None is left out, and their samples are finite."""
    parts = output_parts(value)
    assert parts
    assert all(math.isfinite(number) for part in parts for number in part.sample)


@given(st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True), max_size=200), st.sampled_from("efd"))
def test_the_mean_of_an_output_is_that_of_its_finite_numbers(values: list[float], kind: str) -> None:
    """By an independent sum; the other samples are its values, in their order."""
    with np.errstate(over="ignore"):
        array = np.array([value / 1e3 for value in values]).astype(kind)
    (part,) = output_parts(array)
    assert all(map(math.isfinite, part.sample))
    finite = [float(number) for number in array if math.isfinite(number)]
    if values:
        mean = float(sum(map(Fraction, finite)) / max(1, len(finite)))
        rounding = max(1e-12 * max(map(abs, finite), default=0.0), sys.float_info.min)
        assert part.sample[0] == pytest.approx(mean, rel=1e-9, abs=rounding)
    if len(values) <= 64:
        assert [number for number in part.sample[1:] if abs(number) < LARGEST and number] == [n for n in finite if n]


def test_outputs_that_vary_are_not_compared() -> None:
    """Where two processes of base differ under one seed, or none had the same seed, nothing is said of head."""
    one, other = output_parts(1.0), output_parts(2.0)
    assert compare([(7, one, other), (7, other, one)]).outputs is Outputs.VARIED
    assert compare([(7, one, other), (8, one, other)]).outputs is Outputs.UNKNOWN
    assert compare([(7, (), ()), (7, (), ())]).outputs is Outputs.UNKNOWN
    assert output_parts(object()) == ()


@pytest.mark.parametrize(
    ("level", "outputs", "expected"),
    [
        ("show", Outputs.DIFFERENT, Status.FASTER),
        ("gate", Outputs.DIFFERENT, Status.SLOWER),
        ("gate", Outputs.CLOSE, Status.FASTER),
        ("bits", Outputs.CLOSE, Status.SLOWER),
        ("off", Outputs.DIFFERENT, Status.FASTER),
    ],
)
def test_a_finding_gates_where_it_is_to(level: str, outputs: Outputs, expected: Status) -> None:
    """A finding that gates makes a test SLOWER whatever its time; one that is shown stands beside the verdict."""
    live = replace(live_of([]), output=OutputComparison(outputs, "output", OtherBits()))
    faster: Verdict = builders.verdict(Status.FASTER, 0.8)
    policy = Policy(findings={**FINDINGS, "outputs": level})
    found = with_findings(faster, find_all(live, policy), policy)
    assert found.status is expected
    assert bool(found.findings) is (level != "off" and not (level == "gate" and outputs is Outputs.CLOSE))


def test_a_file_has_findings_in_words() -> None:
    """Their lines, and what differs in outputs, are read as they were written, and written as they were read."""
    live = replace(growing({"objects": 1.0}), output=OutputComparison(Outputs.DIFFERENT, "output", OtherBits()))
    judged = builders.verdict(Status.SLOWER, 1.2, message="because", findings=find_all(live, Policy()))
    outcome = builders.outcome(builders.result(), judged, live=live)
    document = written(document_of(RunFile(builders.MACHINE, (), (), {"a": outcome})))
    run = parse(document.encode(), "x")
    assert isinstance(run, RunFile)
    found, again = run.tests["a"], run.tests["a"].live
    assert [finding_line(each.line) for each in found.verdict.findings] == [
        "each call leaves 1 block of Python memory more than on the base",
        "returns other numbers from the first call on: output differs",
    ]
    assert again is not None
    assert again.output.what == InWords("differs")
    assert written(document_of(run)) == document


@pytest.mark.parametrize(("level", "fails"), [("show", False), ("gate", True)])
def test_a_time_that_is_only_shown_fails_nothing_by_itself(level: str, fails: bool) -> None:
    """Another kind that gates still fails the test, and says so."""
    policy = Policy(findings={**FINDINGS, "time": "show", "outputs": level})
    live = replace(live_of([]), output=OutputComparison(Outputs.DIFFERENT, "output", OtherBits()))
    slower = verdict(policy, Status.SLOWER, WrittenReason("live", "slower"))
    found = with_findings(slower, find_all(live, policy), policy)
    assert found.status is Status.SLOWER
    assert found.fails(strict=True) is found.by_counts is fails


@pytest.mark.slow
def test_the_examples_on_the_page_are_real(tmp_path: Path) -> None:
    """Each kind fails a test whose change is of its kind, in the page's words, and passes the one beside it.

    Where all kinds that look at what processes hold are off, it is not read.
    """
    example = Example(tmp_path, "findings")
    example.write({"test_off.py": OFF})
    example.commit()
    library = (example.root / "library.py").read_text(encoding="utf-8")
    example.write({"library.py": library.replace("NEW = False", "NEW = True")})
    (command,) = re.findall(r"^pytest (--rlperf-against.*)$", PAGE, re.MULTILINE)
    run = example.pytest(*command.split(), code=FAILED)
    shown = re.findall(r"^\| `(\w+)` \| [^|]* \| (SAME|SLOWER: .*) \|$", PAGE, re.MULTILINE)
    kinds = {*FINDINGS} - {"time", "counts", "drift", "compiles"}
    assert len(shown) == 2 * len(kinds) + 4  # growth within a process, of shared memory, and of files
    for name, expected in shown:
        status, _, line = expected.partition(": ")
        (key,) = {f"test[{name}]", f"test_scale[{name}-1000000]"} & run.tests.keys()
        found = run.tests[key]["verdict"]
        words = " ".join(each["line"] for each in found["findings"] if each["kind"] in name)
        words = re.sub(r", [\d.]+k?B of memory", "", words)  # where there were enough calls to tell
        line, words = (re.sub(r"\+[\d.]+ %|×[\d.]+", "more", text) for text in (line, words))
        line, words = (re.sub(r"\b[\d.]+ [mµn]?s\b", "0 s", text) for text in (line, words))  # a busy machine's, too
        pattern = r"[\d.e+]+".join(map(re.escape, re.split(r"\d[\d.]*(?:e\+\d+)?", line)))
        assert (found["status"], bool(re.match(pattern, words))) == (status, True), (name, words, pattern)
        assert bool(words) is (status == "SLOWER")
    assert not run.tests["test_off"]["live"]["pairs"][0]["readings"]


def test_the_page_about_findings_lists_them_all() -> None:
    """docs/counters.md has every kind of finding, what its module finds, and what it does unless it is set."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    cells = [row for row in rows if len(row) == 4]
    assert {name: level for name, _, _, level in cells} == {f"`{kind}`": f"`{does}`" for kind, does in FINDINGS.items()}
    finds = {name: what for name, what, _, _ in cells}
    for kind in {*FINDINGS} - {"time", "counts"}:
        doc = importlib.import_module(f"pytest_rlperf.judge.findings.{kind}").__doc__ or ""
        assert finds[f"`{kind}`"] == doc.partition(".\n")[0].rstrip(".").partition(": ")[2]
