import unittest

import pytest
from library import work


def test_work(rlperf):
    print("printed")
    rlperf(work)


@pytest.mark.parametrize("size", ["zwölf", 2])
def test_sizes(rlperf, size):
    rlperf(work)


def test_wrong(rlperf):
    rlperf(work, check=lambda found: pytest.fail("not that"))


class TestClass:
    def test_method(self, rlperf):
        rlperf(work)


class Cases(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _measure(self, rlperf):
        self.measure = rlperf

    def test_case(self):
        self.measure(work)


def test_plain():
    assert work()
