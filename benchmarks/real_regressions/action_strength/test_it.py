import pytest
from library import Env


@pytest.mark.rlperf(findings={"outputs": "gate"})
def test_step(rlperf):
    rlperf(Env().step, unit="env step")
