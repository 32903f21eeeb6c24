"""The card that the project was designed by: a pytest plugin, five components, phases, baselines, gating, layout."""

from __future__ import annotations

import html
import inspect
import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from builders import ONE_CALL
from example import FAILED, OK, Example
from library_checks import harvested

from pytest_rlperf import fixtures
from pytest_rlperf.components import find_workload
from pytest_rlperf.devices import driving

ROOT = Path(__file__).parents[2]


def test_a_pytest_plugin_and_its_packages() -> None:
    """Installing it is enough for `pytest --rlperf`, and it needs the packages of the card."""
    (plugin,) = [entry for entry in metadata.entry_points(group="pytest11") if entry.value == "pytest_rlperf.plugin"]
    assert plugin.name == "rlperf"
    needed = metadata.requires("pytest-rlperf") or []
    always = {each.partition(">")[0].strip() for each in needed if "extra" not in each}
    assert {"pytest", "pytest-benchmark", "numpy", "scipy"} <= always
    extra = {each.partition(">")[0].strip() for each in needed if each.endswith(("extra == 'rl'", 'extra == "rl"'))}
    assert extra == {"torch", "gymnasium"}


COMPONENTS = {
    "rlperf_vecenv_step": "rlperf_vecenv_step(lambda: make_vec_env('CartPole-v1', 2))",
    "rlperf_replay_sample": "rlperf_replay_sample(filled(100), batch_size=8)",
    "rlperf_gae": "rlperf_gae(compute_gae, n_steps=8, n_envs=2)",
    "rlperf_sac_update": "rlperf_sac_update(SAC(17, 6, filled(100)), batch_size=8)",
    "rlperf_ppo_collect": "rlperf_ppo_collect(PPO(make_vec_env('CartPole-v1', 2)), n_steps=8)",
}
PROJECT = """
    from pytest_rlperf.components.reference.gae import compute_gae
    from pytest_rlperf.components.reference.ppo import PPO, make_vec_env
    from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer
    from pytest_rlperf.suite.work import random_transitions

    def filled(transitions):
        buffer = ReplayBuffer(transitions, 17, 6)
        buffer.add(*random_transitions(transitions))
        return buffer
    """


@pytest.fixture(scope="module")
def phases() -> dict[str, set[str]]:
    """Return the phases of a component of each kind, which have loaded all of PyTorch that they need."""
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    from pytest_rlperf.components.reference.gae import compute_gae
    from pytest_rlperf.components.reference.ppo import PPO, make_vec_env
    from pytest_rlperf.components.reference.sac import SAC, ReplayBuffer
    from pytest_rlperf.suite.work import random_transitions

    buffer = ReplayBuffer(100, 17, 6)
    buffer.add(*random_transitions(100))
    given: dict[str, tuple[Any, ...]] = {
        "vecenv": (lambda: make_vec_env("CartPole-v1", 2),),
        "replay": (buffer, 8),
        "gae": (compute_gae, 8, 2),
        "sac": (SAC(17, 6, buffer), 8),
        "ppo": (PPO(make_vec_env("CartPole-v1", 2)), 8),
    }
    found = {}
    for component, arguments in given.items():
        workload = find_workload(component)(*arguments)
        workload.check()
        found[component] = set(harvested(workload, 1))
        workload.close()
    return found


@pytest.mark.torch
@pytest.mark.usefixtures("alone", "phases")  # or what a run in place loads of PyTorch would be loaded twice
def test_fixtures_of_the_five_components(pytester: pytest.Pytester) -> None:
    """Each has the name of the card, and takes a component of the reference."""
    tests = "".join(f"\n    def test_{name}({name}):\n        {call}\n" for name, call in COMPONENTS.items())
    pytester.makepyfile(test_it=PROJECT + tests)
    run = pytester.inline_run("-p", "no:cacheprovider")
    assert run.ret == OK
    passed, *others = run.listoutcomes()
    assert others == [[], []]
    assert [report.nodeid for report in passed] == [f"test_it.py::test_{name}" for name in COMPONENTS]
    assert fixtures.CALLS.keys() >= COMPONENTS.keys()


@pytest.mark.torch
def test_hierarchical_timings_of_each(phases: dict[str, set[str]]) -> None:
    """The phases of each lie within each other, a component's own at the top."""
    parts = {
        "vecenv": "env_step",
        "replay": "sample/gather",
        "gae": "gae",
        "sac": "sac_update/critic/backward",
        "ppo": "ppo_collect/env_step",
    }
    assert {component: part for component, part in parts.items() if part not in phases[component]} == {}


def test_latencies_that_wait_for_the_device(pytestconfig: pytest.Config) -> None:
    """A call on a device lasts until the device is done; `device=` names it, and `pytest -m gpu` has the real ones."""
    from slice_bench import KERNEL_S, LAUNCH_S, Bench

    from pytest_rlperf.model.measured import SliceKind

    bench = Bench()
    with driving(bench.gpu):
        bench.warm()
        taken = bench.meter.take(SliceKind.PLAIN)
    assert taken.call_s == pytest.approx(LAUNCH_S + 3 * KERNEL_S, rel=0.01)  # launching alone takes 15 µs
    assert "device" in inspect.signature(find_workload("gae")).parameters
    assert any(line.startswith("gpu:") for line in pytestconfig.getini("markers"))


def test_compared_with_stored_baselines_and_the_run_fails(tmp_path: Path) -> None:
    """JSON of one run is what the next compares with; more work is SLOWER, by an interval, and exit 1.

    It is a hundred times the work, as a tenth of a second on a busy machine may leave three times of it UNDECIDED.
    """
    example = Example(
        tmp_path,
        {
            "work.py": "TIMES = 1\n\ndef work():\n    return sum(range(200 * TIMES))\n",
            "test_it.py": "from work import work\n\ndef test_work(rlperf):\n    rlperf(work)\n",
        },
    )
    example.pytest("--rlperf-save-baseline", "--rlperf-max-time=0.1", code=OK)
    (baseline,) = (example.root / "baselines").rglob("*.json")
    assert "test_it.py::test_work" in json.loads(baseline.read_text(encoding="utf-8"))["results"]
    example.write({"work.py": "TIMES = 100\n\ndef work():\n    return sum(range(200 * TIMES))\n"})
    run = example.pytest("--rlperf", "--rlperf-max-time=0.1", "-v", code=FAILED)
    assert run.statuses == {"test_work": "SLOWER"}
    estimate = run.tests["test_work"]["verdict"]["estimate"]
    assert 2 < estimate["low"] <= estimate["ratio"] <= estimate["high"]
    assert "test_work" in run.section("rlperf")


def test_gating_on_github_and_a_summary(tmp_path: Path) -> None:
    """`rlperf init --github` writes a workflow that measures pull requests, and a job has the table in its summary."""
    summary = tmp_path / "summary.md"
    learner = """
        def compute_gae(rewards, values, dones, last_values, gamma=0.99, lam=0.95):
            advantages, following, next_values = rewards.copy(), 0.0, last_values
            for t in reversed(range(len(rewards))):
                delta = rewards[t] + gamma * (1 - dones[t]) * next_values - values[t]
                following = advantages[t] = delta + gamma * lam * (1 - dones[t]) * following
                next_values = values[t]
            return advantages
        """
    example = Example(tmp_path, {"pyproject.toml": "[project]\nname = 'it'\nversion = '1'\n", "learner.py": learner})
    example.rlperf("init", "--github", code=OK)
    workflow = (example.root / ".github" / "workflows" / "gate.yml").read_text(encoding="utf-8")
    assert "pull_request" in workflow
    assert "--rlperf" in workflow
    example.pytest(*ONE_CALL, code=OK, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert "test_perf.py" in html.unescape(summary.read_text(encoding="utf-8"))
    assert (ROOT / "action.yml").exists()


@pytest.mark.parametrize("name", ["pyproject.toml", "pytest_rlperf", "tests", "baselines", "conftest.py", ".github"])
def test_top_level(name: str) -> None:
    """The repository is laid out as the card has it."""
    assert (ROOT / name).exists()
