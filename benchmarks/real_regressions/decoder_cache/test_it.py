import pytest
from library import Loader


@pytest.fixture
def loader():
    made = Loader()
    yield made
    made.close()


def test_frames(rlperf, loader):
    rlperf(lambda: [loader.frame() for _ in range(4)], items=4, unit="frame")
