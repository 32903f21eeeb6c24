import pytest


def test_never_calls(rlperf):
    print("not called")


@pytest.mark.skip(reason="not today")
def test_skipped(rlperf):
    rlperf(lambda: None)


def test_plain():
    pass
