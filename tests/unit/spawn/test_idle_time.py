"""How long a process has used no CPU time."""

from __future__ import annotations

from pytest_rlperf.spawn.process import IdleTime


def test_time_without_work_is_counted_from_the_last_work_that_was_seen() -> None:
    """A look comes every two seconds at most, and the first one only learns what was used."""
    now_s, used_s = 100.0, 5.0
    idle = IdleTime(lambda: used_s, lambda: now_s)
    found = []
    for passed_s, worked_s in ((1, 0), (10, 0), (10, 0), (10, 0.5), (1, 0), (12, 0)):
        now_s, used_s = now_s + passed_s, used_s + worked_s
        found.append(idle.lasts_s())
    assert found == [1, 0, 10, 0, 1, 13]
