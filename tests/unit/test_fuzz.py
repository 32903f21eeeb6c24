"""Readers of files that others may have written return a result or an error of ours, whatever stands in a file.

``FUZZ_EXAMPLES=100000 pytest tests/unit/test_fuzz.py -k "changed and baseline"`` tries as many inputs of a reader,
others each time, and fails where one takes over five seconds.
"""

from __future__ import annotations

import json
import os

import pytest
from fuzz_targets import TARGETS, changed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_rlperf.sides.git import parse_allowance

EXAMPLES = os.environ.get("FUZZ_EXAMPLES")
each_target = pytest.mark.parametrize("name", TARGETS)
few = settings(
    max_examples=int(EXAMPLES or 60),
    deadline=5000 if EXAMPLES else None,
    derandomize=not EXAMPLES,
    suppress_health_check=list(HealthCheck),
)


@each_target
@few
@given(data=st.data())
def test_a_changed_file_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Values, names and bytes of real files are changed: nothing but the documented error is raised."""
    target = TARGETS[name]
    target.read(data.draw(changed(target)))


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


@pytest.mark.parametrize("value", ["x" + " " * 200_000 + "y", "x <= " + "1" * 200_000, "x <= 1% " + "why " * 1000])
def test_a_trailer_as_long_as_a_book_accepts_nothing(value: str) -> None:
    """Anybody may write a commit's message; the work on one line of it does not grow with its square."""
    assert parse_allowance(value, "a" * 12) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("ratio", 0.0), ("ratio", -3.0), ("low", 1e9), ("high", 1e-9), ("confidence", 1e-12), ("confidence", 1.0)],
)
def test_an_estimate_that_no_run_gives_is_shown_as_it_is(field: str, value: float) -> None:
    """Nothing is computed from an estimate that was read."""
    document = json.loads(TARGETS["run"].seeds[0])
    (test,) = document["tests"].values()
    test["verdict"]["estimate"][field] = value
    TARGETS["run"].read(json.dumps(document).encode())
