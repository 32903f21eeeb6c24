from __future__ import annotations

from typing import Any

import pytest
from library_checks import assert_parts, example, harvested

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import sac_workload

gymnasium: Any = pytest.importorskip("gymnasium")
torch: Any = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]


@pytest.fixture
def script() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(example("cleanrl"), "test_cleanrl.py", "exec"), names)  # noqa: S102 - the project's own code
    return names


def test_phases_of_an_update_without_timers(script: dict[str, Any]) -> None:
    """Networks, optimizers and buffer are found among the variables of the function."""
    workload = sac_workload(script["make_sac_update"](256), None)
    workload.check()
    phases = harvested(workload, 20)
    assert_parts(phases, "sac_update", ("sample", "target_q", "critic", "actor", "alpha", "polyak"))
    for name in ("critic", "actor", "alpha"):
        assert phases[f"sac_update/{name}/backward"].count == phases[f"sac_update/{name}/step"].count == 1


def test_phases_of_a_rollout_with_timers(script: dict[str, Any]) -> None:
    """The phases shown are the script's timers; the env is reset before and never again."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([script["make_env"]("CartPole-v1")] * 4, autoreset_mode=mode)
    collect = script["make_collect"](envs, 32)
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
