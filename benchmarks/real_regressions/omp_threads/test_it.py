import pytest
from library import SubprocVecEnv


@pytest.fixture
def env():
    made = SubprocVecEnv(2)
    yield made
    made.close()


def test_step(rlperf, env):
    rlperf(env.step, items=2, unit="env step")
