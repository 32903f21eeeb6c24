"""Phases of code as it is, in real runs: which are shown, what is told, and that nothing stays in place."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from builders import source
from example import FAILED, OK, Example, Run
from wording import Wording

MEASURED = ("--rlperf", "--rlperf-max-time=6")  # a worker needs some of this time for phases
QUICK = ("-o", "rlperf_pairs=2..6", "--rlperf-max-time=8", "--rlperf-tolerance=50%")
PARTS = ("sample", "target_q", "critic", "actor", "alpha", "polyak")


def example_of(tmp_path: Path, tests: str, agent: str = "agent") -> Example:
    """Return tests of an agent without timers, whose methods take a while."""
    files = {
        "agent.py": source(f"phases/{agent}.py"),
        "test_it.py": f"import agent as library\n{textwrap.dedent(tests)}",
    }
    return Example(tmp_path, files)


def phases_of(run: Run) -> dict[str, dict[str, Any]]:
    return {name: {phase["path"]: phase for phase in test["result"]["phases"]} for name, test in run.tests.items()}


@pytest.mark.slow
def test_every_fixture_takes_phases(tmp_path: Path) -> None:
    """Also of a bound method, of a function by its module, and of what is no agent."""
    example = example_of(
        tmp_path,
        """
        import numpy as np

        class Rows:
            def sample(self, size):
                return self.draw(size)
            def draw(self, size):
                library.busy(2)
                return np.zeros((size, 3))

        def test_bound(rlperf):
            rlperf(library.Agent().update, phases={"critic": "update_critic", "polyak": "agent:polyak"})

        def test_buffer(rlperf_replay_sample):
            rlperf_replay_sample(batch_size=4, buffer=Rows(), phases={"draw": "draw"})

        def scan(rewards, values):
            return library.busy(3)

        def gae(rewards, values, dones, last_values):
            from pytest_rlperf.components.reference.gae import compute_gae
            scan(rewards, values)
            return compute_gae(rewards, values, dones, last_values)

        def test_gae(rlperf_gae):
            rlperf_gae(gae, 8, 2, phases={"scan": scan})
        """,
    )
    phases = phases_of(example.pytest(*MEASURED, code=OK))
    assert {test: [path for path in found if path.count("/") < 2] for test, found in phases.items()} == {
        "test_bound": ["critic", "polyak"],
        "test_buffer": ["sample", "sample/draw"],
        "test_gae": [
            "gae",
            "gae/scan",
            *(path for path in phases["test_gae"] if path.startswith("gae/") and path != "gae/scan"),
        ],
    }


def test_nothing_is_in_place_of_plain_calls(tmp_path: Path) -> None:
    """Calls that are timed run the methods themselves; only the fewer that make phases run them timed."""
    example = example_of(
        tmp_path,
        """
        import pytest

        def is_original(agent):
            return (
                not {"update_critic"} & set(vars(agent))
                and type(agent.buffer) is library.Buffer
                and library.Agent.update_critic.__module__ == "agent"
                and not hasattr(library.polyak, "__wrapped__")
            )

        def test_update(rlperf):
            agent = library.Agent()
            seen = {True: 0, False: 0}

            def call():
                seen[is_original(agent)] += 1
                agent.update()

            phases = {"critic": agent.update_critic, "sample": "test_it:HELD.buffer.sample", "polyak": "agent:polyak"}
            result = rlperf(call, phases=phases)
            assert is_original(agent)
            if result.measured:
                assert seen[True] > seen[False] > 0, seen

        HELD = library.Agent()
        """,
    )
    phases = phases_of(example.pytest(*MEASURED, code=OK))
    assert set(phases["test_update"]) == {"critic", "polyak"}


WRONG_NAMES = {
    '{"critic": "update_critik"}': "update_critic",
    '{"polyak": "agent:poliak"}': "polyak",
    '{"a/b": "update_critic"}': "'/'",
    '["update_critic"]': "update_critic",
}


def test_a_wrong_name_is_an_error_of_its_test(tmp_path: Path, wording: Wording) -> None:
    """The error lists the names that exist, before anything runs."""
    tests = """
        def update(agent, phases, rlperf_sac_update):
            agent.update = lambda *_: print("has", "run")
            rlperf_sac_update(agent, 4, phases=phases)
        """ + "".join(
        f"""
        def test_{number}(rlperf_sac_update):
            update(library.Agent(), {phases}, rlperf_sac_update)
        """
        for number, phases in enumerate(WRONG_NAMES)
    )
    run = example_of(tmp_path, tests).pytest(code=FAILED)
    assert run.counts == f"{len(WRONG_NAMES)} failed"
    errors = [run.error(f"test_{number}") for number in range(len(WRONG_NAMES))]
    for error, name in zip(errors, WRONG_NAMES.values(), strict=True):
        assert name in error
    assert errors == wording
    assert "has run" not in run.text


def sections_of(tmp_path: Path, tests: str) -> dict[str, list[str]]:
    tests = f"import torch\n\ntorch.set_num_threads(1)\n{textwrap.dedent(tests)}"
    phases = phases_of(example_of(tmp_path, tests, "torch_agent").pytest(*MEASURED, code=OK))
    return {test: [path.partition("/")[2] for path in paths if path.count("/") == 1] for test, paths in phases.items()}


@pytest.mark.slow
@pytest.mark.torch
def test_an_update_with_phases_is_not_harvested(tmp_path: Path) -> None:
    """Of an agent with timers of its own, or named phases, only those are seen."""
    tests = """
        def test_own(rlperf_sac_update):
            rlperf_sac_update(library.Agent(own=True), 16)

        def test_named(rlperf_sac_update):
            rlperf_sac_update(library.Agent(), 16, phases={"actor": "update_actor", "net": "critic_target"})
    """
    assert sections_of(tmp_path, tests) == {"test_own": ["mine"], "test_named": ["net", "actor"]}


@pytest.mark.slow
def test_a_live_comparison_blames_a_harvested_phase(tmp_path: Path) -> None:
    """A slowdown is found in a phase that the code itself has no timer for."""
    learner = source("phases/learner.py")
    test = """
        from mylib import Learner

        def test_work(rlperf):
            rlperf(Learner().work, phases={"actor": "update_actor", "critic": "update_critic"})
        """
    example = Example(tmp_path, {"mylib.py": learner, "test_it.py": test})
    example.commit()
    example.write({"mylib.py": learner.replace("STEPS = 400", "STEPS = 2400")})
    run = example.pytest("--rlperf-against=HEAD", *QUICK, code=FAILED)
    assert run.statuses == {"test_work": "SLOWER"}
    assert "critic +" in run.words
    parts = {part["path"]: part["change_s"] for part in run.tests["test_work"]["live"]["contributions"]}
    assert max(parts, key=lambda path: parts[path]) == "critic"
