"""Notes of a run: each fact comes once."""

from __future__ import annotations

from pytest_rlperf.model.notes import MeasuredFresh, NotForked
from pytest_rlperf.report.wording import note_lines


def test_a_run_whose_processes_were_all_new_interpreters_says_so_once() -> None:
    """The note on one test gives the reason only if the note on all processes does not."""
    why = "a thread runs before the tests do"
    alone = note_lines([MeasuredFresh("test_it.py::test_a", why)], verbose=False)
    both = note_lines([NotForked(why), MeasuredFresh("test_it.py::test_a", why)], verbose=False)
    assert alone == [f"test_a was measured in new interpreters, which takes longer: {why}"]
    assert both == [f"every process was a new interpreter, which takes longer: {why}"]
