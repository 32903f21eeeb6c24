import os
import sys

import pytest


@pytest.fixture
def loud():
    print("loud setup")
    yield
    print("loud teardown")


def test_loud(rlperf, loud):
    print("loud before")
    result = rlperf(lambda: sum(range(1000)))
    print("loud after", result.measured)
    print("loud error", file=sys.stderr)
    os.write(1, b"loud descriptor\n")
