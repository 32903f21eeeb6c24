"""Shards: a run's tests divided into parts of about the same time, in the same way on every machine."""

from __future__ import annotations

import hashlib
import heapq
import json
import statistics
from collections.abc import Collection, Mapping, Sequence

import pytest

from pytest_rlperf.model import Shard
from pytest_rlperf.options import Config

SHARD = pytest.StashKey[Shard]()  # in the configuration of a run that another run divides


def divide(keys: Sequence[str], seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Return the tests of each of ``count`` shards, in the order of ``keys``.

    The test that takes the longest is the next to be given to the shard that has the least to do: the longest
    processing time rule, within 4/3 of the best division (Graham, 1969). A test that ``seconds`` lacks takes the mean
    of the others. The same keys, in any order, and the same seconds give the same division.
    """
    mean_s = statistics.fmean(known) if (known := [seconds[key] for key in keys if key in seconds]) else 1.0
    shard_of: dict[str, int] = {}
    loads = [(0.0, 0, number) for number in range(count)]  # of shards with equal times the one of fewer tests is next
    for key in sorted(set(keys), key=lambda key: (-seconds.get(key, mean_s), key)):
        load_s, tests, number = loads[0]
        shard_of[key] = number
        heapq.heapreplace(loads, (load_s + seconds.get(key, mean_s), tests + 1, number))
    return [[key for key in keys if shard_of[key] == number] for number in range(count)]


def judging(settings: Config) -> list[object]:
    """Return those of a run's options that verdicts depend on, all but ``against`` and ``strict``."""
    counters = settings.counters
    return [
        settings.baseline,
        settings.tolerance,
        settings.alpha,
        settings.pairs,
        settings.min_change_s,
        [counters.mode, counters.named],
    ]


def make_shard(
    wanted: tuple[int, int],
    keys: Sequence[str],
    gated: Collection[str],
    seconds: Mapping[str, float],
    *,
    rules: Sequence[object] = (),
) -> Shard:
    """Return the shard ``wanted``, a number and how many there are, of the tests ``keys``.

    ``gated`` are those of the tests that can fail for their time; ``seconds`` are as in :func:`divide`. ``rules`` are
    the options that verdicts depend on, plain values.
    """
    number, count = wanted
    parts = divide(keys, seconds, count)
    places = {key: place for place, key in enumerate(keys)}
    division = json.dumps([[sorted(part) for part in parts], sorted(seconds.items()), rules])
    return Shard(
        number=number,
        count=count,
        collected=len(places),
        gated=len(set(gated)),
        places={key: places[key] for key in parts[number - 1]},
        division=hashlib.sha256(division.encode()).hexdigest()[:16],
    )
