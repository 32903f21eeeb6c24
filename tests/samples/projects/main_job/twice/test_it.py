import numpy as np
import pytest


class Buffer:
    def sample(self, batch_size):
        return np.zeros((batch_size, 3))


def test_twice(rlperf):
    rlperf(int)
    rlperf(float)


def test_two(rlperf, rlperf_replay_sample):
    rlperf(int)
    rlperf_replay_sample(Buffer(), batch_size=4)


@pytest.mark.xfail
def test_expected(rlperf):
    rlperf(int)
    assert not True, "as everybody knows"
