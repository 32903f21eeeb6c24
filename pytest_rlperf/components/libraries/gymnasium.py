"""gymnasium's vector envs, which are stepped as any env that states its autoreset mode."""

from __future__ import annotations

from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.components.vecenv import AutoresetStepper

_STARTER = """\
import gymnasium


def test_gymnasium_step(rlperf_vecenv_step):
    rlperf_vecenv_step(lambda: gymnasium.make_vec("CartPole-v1", num_envs=8))
"""

LIBRARY = Library(
    name="gymnasium",
    module="gymnasium",
    requirement="gymnasium",
    vecenv=(Adapter("gymnasium.vector:VectorEnv", AutoresetStepper),),
    environments=("gymnasium:Env.step", "gymnasium.vector:VectorEnv.step"),
    starter=_STARTER,
)
