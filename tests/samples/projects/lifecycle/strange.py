import time
import warnings
from pathlib import Path

import pytest


def work():
    return sum(range(1000))


class Outer:
    class NestedWarning(UserWarning):
        pass


def test_lazy_category(rlperf):
    from lazy import LazyWarning

    warnings.warn("known here only", LazyWarning)
    rlperf(work)


def test_nested_category(rlperf):
    warnings.warn("in a class", Outer.NestedWarning)
    rlperf(work)


def test_big_property(rlperf, record_property):
    record_property("big", 2**70)
    rlperf(work)


def test_path_property(rlperf, record_property):
    record_property("path", Path("/a/long/way/down/to/some/file/or/other/at/the/end"))
    rlperf(work)


def test_surrogate(rlperf):
    rlperf(work)
    raise ValueError("undecodable \udcff name")


def test_after_surrogate(rlperf):
    rlperf(work)


def test_subtests(rlperf, subtests):
    for part in range(3):
        with subtests.test("part", part=part):
            assert part != 1
    rlperf(work)


@pytest.mark.parametrize("unstable", [time.time_ns()])
def test_unstable_id(rlperf, unstable):
    rlperf(work)


def test_uncaptured(rlperf, capsys):
    with capsys.disabled():
        print("\nseen at once", flush=True)
    rlperf(work)


class Opaque:
    pass


@pytest.mark.parametrize("value", [Opaque(), 2.5, None, True, int])
def test_opaque(rlperf, value):
    rlperf(work)
