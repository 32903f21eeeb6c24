"""rlox's profiling report: its tables of whole trainings, primitives, policy calls, updates, crossings and layers."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import outcome, result
from example import OK, Example
from library_checks import harvested

from pytest_rlperf.components.ppo import ppo_workload, train_workload
from pytest_rlperf.components.updates import sac_workload
from pytest_rlperf.report.components import render_components
from pytest_rlperf.wire import Count
from pytest_rlperf.worker.counting import count
from pytest_rlperf.worker.shares import ProfilerBusyError, owner_of_native, refuse_company, shares

pytestmark = pytest.mark.torch


@pytest.fixture
def ppo() -> Any:
    """Return a PPO agent of rlox in two envs of Rust."""
    algorithms = pytest.importorskip("rlox.algorithms.ppo")
    return algorithms.PPO("CartPole-v1", n_envs=2, n_steps=16, n_epochs=2, batch_size=16)


def test_end_to_end_by_phases(ppo: Any) -> None:
    """`rlperf_train` counts env steps and divides collecting from updating; the callback has their three phases."""
    from pytest_rlperf.compat.rlox import TimingCallback

    workload = train_workload(ppo, 16)
    workload.check()
    assert (workload.unit, workload.processed(1)) == ("env step", 32.0)
    assert {"train", "train/collect"} <= set(harvested(workload, 1))

    callback = TimingCallback()
    algorithm = type(ppo)("CartPole-v1", n_envs=2, n_steps=16, n_epochs=2, batch_size=16, callbacks=[callback])
    algorithm.train(3 * 32)
    assert callback.counts == {"env_step": 48, "gae_compute": 3, "gradient_update": 12, "collect": 3}
    assert sum(callback.summary().values()) == pytest.approx(100.0)


PRIMITIVES = {  # theirs, and ours
    "VecEnv.step_all(64)": "test_rlox::test_rlox_vecenv_step[64]",
    "ReplayBuffer.push": "test_primitives::test_rlox_replay_push",
    "ReplayBuffer.push_batch(8)": "test_primitives::test_rlox_replay_push_batch[8]",
    "ReplayBuffer.sample(256)": "test_rlox::test_rlox_replay_sample",
    "GAE 8 × 128": "test_rlox::test_rlox_gae[128-8]",
    "token KL 32 × 2048": "test_primitives::test_rlox_token_kl[32-2048]",
}
POLICY_CALLS = {
    "act and log-prob": "test_primitives::test_rlox_policy_act[8]",
    "value": "test_primitives::test_rlox_policy_value[8]",
    "tensor conversion": "test_primitives::test_rlox_policy_convert[8]",
}


@pytest.mark.parametrize("cells", [PRIMITIVES, POLICY_CALLS], ids=["primitives", "policy calls"])
def test_micro_benchmarks_are_cells_of_the_suite(tmp_path: Path, cells: dict[str, str]) -> None:
    """The suite has each of their rows at their size, and the cell's check accepts what rlox computes."""
    pytest.importorskip("rlox")
    pytest.importorskip("gymnasium")
    keys = [f"pytest_rlperf.suite.libraries.{key}" for key in cells.values()]
    run = Example(tmp_path).pytest("--pyargs", *keys, "-v", code=OK)
    passed = set(re.findall(r"::(\S+) PASSED", run.out))
    assert passed == {key.partition("::")[2] for key in cells.values()}


def test_sac_update_by_its_parts() -> None:
    """An update of theirs, one function of Python, is divided into the six rows of their table."""
    algorithms = pytest.importorskip("rlox.algorithms.sac")
    rlox = pytest.importorskip("rlox")
    buffer = rlox.ReplayBuffer(100, 3, 1)
    agent = algorithms.SAC("Pendulum-v1", buffer=buffer, batch_size=8, hidden=8)
    for _ in range(16):
        buffer.push(np.zeros(3, np.float32), np.zeros(1, np.float32), 1.0, False, False, np.zeros(3, np.float32))
    workload = sac_workload(agent, 8)
    workload.check()
    harvested(workload, 1)
    parts = {path.split("/")[1] for path in harvested(workload, 2) if "/" in path}
    assert parts >= {"actor", "critic", "target_q", "polyak", "alpha", "sample"}


def test_crossings_into_rust_are_exact_counts(ppo: Any) -> None:
    """A rollout calls Rust once for each step of the envs and once for GAE, every time."""
    workload = ppo_workload(ppo, 16)
    workload.check()
    for counts in count(workload, Count(2, 60.0)).repetitions:
        values = {(found.path, found.name): found.value for found in counts}
        assert values["ppo_collect", "native_calls:rlox"] == 17
        assert (
            values["ppo_collect/env_step", "native_calls:rlox"] == values["ppo_collect/env_step", "env_steps"] / 2 == 16
        )
        assert values["ppo_collect/gae", "native_calls:rlox"] == 1


def test_time_by_layer(ppo: Any) -> None:
    """A call's time is divided among Rust, PyTorch and Python, which add up to it."""
    try:
        refuse_company()
    except ProfilerBusyError as busy:
        pytest.skip(str(busy))
    workload = ppo_workload(ppo, 16)
    workload.check()
    found = {
        share.name: share.share for share in shares(workload.call, setup=None, calls=8, clock_ns=time.perf_counter_ns)
    }
    assert sum(found.values()) == pytest.approx(1.0)
    # Steps of envs in Rust are the environment's, the rest of rlox's functions its own.
    assert {"rlox", "environment", "pytorch", "pytorch (Python)", "python"} <= set(found)
    assert owner_of_native("<method 'sample' of 'builtins.ReplayBuffer' objects>") == "rlox"


def test_all_of_these_side_by_side() -> None:
    """A run of the suite ends with components by libraries, items/s and each one's share of the row's best."""
    suite = "pytest_rlperf.suite.libraries.test_"
    figures = {
        f"{suite}rlox::test_rlox_gae[128-8]": 8e6,
        f"{suite}sb3::test_sb3_gae[128-8]": 2e6,
        "pytest_rlperf.suite.test_gae::test_gae[128-8]": 4e6,
        f"{suite}primitives::test_rlox_replay_push": 1e6,
    }
    outcomes = [outcome(result(key, 1 / items_per_s)) for key, items_per_s in figures.items()]
    assert render_components(outcomes, [], width=80) == (
        "items/s       reference   rlox    sb3\n"
        "─────────────────────────────────────\n"
        "replay_push           –  1.00M      –\n"
        "  one by one\n"
        "gae               4.00M  8.00M  2.00M\n"
        "  128×8            50 %   best   25 %\n"
        "\n"
        "Below each figure is its share of the row's best. Items are transitions.\n"
    )
