"""Readers of files that others may have written return a result or an error of ours, whatever stands in a file.

The readers and the changes are those of ``benchmarks/fuzz``, which tries more inputs than there is time for here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "fuzz"))

from mutations import MOST_BYTES, mutated
from targets import TARGETS

from pytest_rlperf.sides.git import parse_allowance

each_target = pytest.mark.parametrize("name", TARGETS)
few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@each_target
@few
@given(random=st.randoms(use_true_random=False))
def test_a_changed_file_is_read_or_refused(name: str, random: Random) -> None:
    """Values, names and bytes of real files are changed: nothing but the documented error is raised."""
    target = TARGETS[name]
    target.read(mutated(random.choice(target.seeds), random))


@each_target
@few
@given(data=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    """What is no file of ours at all is refused as well."""
    TARGETS[name].read(data)


@each_target
def test_a_real_file_is_read(name: str) -> None:
    """The files that are changed are good ones: most changes leave something to read."""
    for seed in TARGETS[name].seeds:
        TARGETS[name].read(seed)


@each_target
def test_the_same_seed_makes_the_same_change(name: str) -> None:
    """A find can be repeated, and no input grows without end."""
    (seed, *_) = TARGETS[name].seeds
    changes = [mutated(seed, Random(number)) for number in range(30)]
    assert changes == [mutated(seed, Random(number)) for number in range(30)]
    assert len(set(changes)) > 15
    assert max(map(len, changes)) <= MOST_BYTES


@pytest.mark.parametrize("value", ["x" + " " * 200_000 + "y", "x <= " + "1" * 200_000, "x <= 1% " + "why " * 1000])
def test_a_trailer_as_long_as_a_book_accepts_nothing(value: str) -> None:
    """Anybody may write a commit's message; the work on one line of it does not grow with its square."""
    assert parse_allowance(value, "a" * 12) is None
