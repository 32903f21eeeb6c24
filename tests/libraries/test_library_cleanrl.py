from __future__ import annotations

import runpy
from typing import Any

import pytest
from library_checks import EXAMPLES, assert_parts, harvested

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import sac_workload

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]


def script(name: str) -> dict[str, Any]:
    """Return what a script of the example defines."""
    pytest.importorskip("gymnasium")
    return runpy.run_path(str(EXAMPLES / "cleanrl" / f"{name}.py"))


def test_phases_of_an_update_without_timers() -> None:
    """Networks, optimizers and buffer are found among the variables of the function."""
    sac = script("sac_continuous_action")
    buffer = sac["ReplayBuffer"](300, 3, 1)
    for _ in range(300):
        buffer.add([0.1, 0.2, 0.3], [0.5], [0.2, 0.3, 0.4], 1.0, False)
    workload = sac_workload(sac["make_update"](sac["Actor"](3, 1), buffer, 256, 3, 1), None)
    workload.check()
    phases = harvested(workload, 20)
    assert_parts(phases, "sac_update", ("sample", "target_q", "critic", "actor", "alpha", "polyak"))
    for name in ("critic", "actor", "alpha"):
        assert phases[f"sac_update/{name}/backward"].count == phases[f"sac_update/{name}/step"].count == 1


def test_phases_of_a_rollout_with_timers() -> None:
    """The phases shown are the script's timers; the env is reset before and never again."""
    ppo = script("ppo")
    envs = ppo["make_envs"]("CartPole-v1", 4)
    collect = ppo["make_collect"](ppo["Agent"](envs), envs, 32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(envs, "reset", lambda **_: pytest.fail("resets the env"))
        workload = ppo_workload(collect, None, 128)
        workload.check()
        assert workload.processed(1) == 128
        phases = harvested(workload, 5)
    assert workload.processed(5) == 640
    assert_parts(phases, "ppo_collect", ("policy", "store", "env_step", "gae"))
    assert phases["ppo_collect/env_step"].count == 32
    envs.close()
