import unittest

import pytest


def test_uncalled(rlperf_gae):
    pass


def test_called(rlperf):
    rlperf(lambda: None)


@pytest.mark.parametrize("number", [1, 2])
def test_parametrized(rlperf, number):
    if number == 1:
        rlperf(lambda: None)


def test_skipped(rlperf):
    pytest.skip("not today")


def test_failed(rlperf):
    raise AssertionError


@pytest.mark.xfail
def test_xfailed(rlperf):
    raise AssertionError


@pytest.fixture
def measure(rlperf):
    return rlperf


def test_of_another_fixture(measure):
    pass


class TestClass:
    def test_method(self, rlperf_sac_update):
        pass


class TestUnit(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, rlperf):
        self.rlperf = rlperf

    def test_passed(self):
        pass

    def test_failed(self):
        self.fail()
