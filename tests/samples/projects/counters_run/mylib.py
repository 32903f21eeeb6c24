"""Steps in two phases."""

from pytest_rlperf import hierarchical_timer


def step():
    return sum(i * i for i in range(30))


def update(steps):
    with hierarchical_timer("critic"):
        for _ in range(steps):
            step()
    with hierarchical_timer("actor"):
        step()
