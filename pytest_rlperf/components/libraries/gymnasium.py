"""gymnasium's vector envs, which are stepped as any env that states its autoreset mode."""

from __future__ import annotations

from pytest_rlperf.components.libraries import Adapter, Library
from pytest_rlperf.components.vecenv import AutoresetStepper

LIBRARY = Library(
    name="gymnasium",
    module="gymnasium",
    requirement="gymnasium",
    vecenv=(Adapter("gymnasium.vector:VectorEnv", AutoresetStepper),),
    environments=("gymnasium:Env.step", "gymnasium.vector:VectorEnv.step"),
    starter="start_gymnasium.py",
)
