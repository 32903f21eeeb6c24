"""A few microseconds of work in two phases, `TIMES` as much of it in the second."""

from pytest_rlperf import hierarchical_timer

SIDE = "base"
TIMES = 1


def work():
    with hierarchical_timer("actor"):
        actor = sum(i * i for i in range(400))
    with hierarchical_timer("critic"):
        critic = sum(i * i for i in range(400 * TIMES))
    return actor + critic


def rest():
    return sum(range(400))
