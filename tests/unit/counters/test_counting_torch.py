"""Counts of PyTorch, of environments and of the reference components."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import counts
import numpy as np
import pytest
from builders import source

from pytest_rlperf.components.libraries import environments
from pytest_rlperf.counters import tally
from pytest_rlperf.model.measured import Tally
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import Ranges
from pytest_rlperf.timers import hierarchical_timer

pytestmark = pytest.mark.torch
torch: Any
gymnasium: Any
ppo: Any
sac: Any

OUTER = hierarchical_timer("outer")
INNER = hierarchical_timer("inner")
OBS_DIM, ACT_DIM, BATCH = 5, 2, 8


def count(call: Callable[[], object], **given: Any) -> Tally:
    given = {"setup": None, "probes": (Ranges(),), "repetitions": 2, "environments": environments(), **given}
    return tally(call, **given)


def exact(found: Tally) -> dict[tuple[str, str], int]:
    assert found.notes == ()
    return counts.exact(found)


def state() -> list[object]:
    optimizer: Any = sys.modules["torch.optim.optimizer"]
    environments = (gymnasium.Env, gymnasium.vector.VectorEnv, gymnasium.vector.SyncVectorEnv, gymnasium.Wrapper)
    return [
        [sys.getprofile(), threading.getprofile(), tracemalloc.is_tracing(), gc.isenabled(), gc.get_freeze_count() > 0],
        [dict(optimizer._global_optimizer_pre_hooks), dict(optimizer._global_optimizer_post_hooks)],
        [vars(kind)["step"] for kind in environments],
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._profiler_enabled(),
    ]


@pytest.fixture(autouse=True, scope="module")
def _with_pytorch() -> None:
    """Load PyTorch for the tests: pytest, which only collects them, takes seconds less without."""
    global torch, gymnasium, ppo, sac
    torch, gymnasium = pytest.importorskip("torch"), pytest.importorskip("gymnasium")
    from pytest_rlperf.components.reference import ppo, sac


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Find everything after each test as it was before."""
    before = state()
    yield
    assert state() == before


def test_operations_are_counted_by_name_and_phase() -> None:
    """Forward and backward are counted apart; operations with gradients, and in float64, are counted too."""
    weights = torch.ones(3, requires_grad=True)

    def call() -> None:
        with OUTER:
            loss = (weights * 2.0).sum()
            with INNER:
                torch.autograd.backward(loss)
        (torch.ones(3, dtype=torch.float64) + 1.0).detach()

    found = exact(count(call))
    assert found["", "ops:aten::sum"] == found["outer", "ops:aten::sum"] == 1
    assert ("outer/inner", "ops:aten::sum") not in found
    assert found["outer", "ops:aten::mul"] == found["outer/inner", "ops:aten::mul"] + 1 == 2
    assert found["outer", "ops_backward"] == found["outer/inner", "ops_backward"] == found["", "ops_backward"] > 0
    assert found["outer", "ops"] == 2 + found["outer/inner", "ops"]
    assert found["", "grad_ops"] == found["outer/inner", "grad_ops"] + 2  # the loss's own gradient is made like it
    assert found["", "float64_ops"] == 3
    assert ("outer", "float64_ops") not in found


def test_memory_of_tensors_is_counted_by_phase() -> None:
    """PyTorch's own memory is not Python's: 4000 bytes for a thousand floats, for as long as they live."""
    kept = [torch.empty(500) for _ in range(2)]

    def call() -> None:
        kept[0] = torch.empty(500)
        with OUTER:
            rows = torch.empty(1000)
            with INNER:
                rows = rows.clone()
                del rows

    found = exact(count(call))
    assert (found["", "tensor_net_bytes"], found["", "tensor_allocations"]) == (0, 3)
    assert (found["outer", "tensor_peak_bytes"], found["outer", "tensor_allocations"]) == (8000, 2)
    assert (found["outer/inner", "tensor_peak_bytes"], found["outer/inner", "tensor_net_bytes"]) == (4000, -4000)


def test_tensors_that_only_the_collector_frees_are_counted() -> None:
    """A thousand floats in a cycle wait for it; those that are dropped, or kept, do not."""
    kept: list[Any] = [None]

    def call() -> None:
        cycle: list[Any] = [torch.empty(1000)]
        cycle.append(cycle)
        torch.empty(700)
        kept[0] = torch.empty(500)

    found = [each.value for counts in count(call).repetitions for each in counts if each.name == "tensor_garbage_bytes"]
    assert found == [4000, 4000]


def test_copies_to_a_device_are_counted() -> None:
    """A copy to another device than the host is one, and between two tensors of the host none."""
    rows = torch.ones(3)

    def call() -> None:
        with OUTER:
            rows.to("meta")
        rows.to(torch.float64)

    found = exact(count(call))
    assert found["", "copies_to_device"] == found["outer", "copies_to_device"] == found["", "pageable_copies"] == 1
    assert ("", "copies_to_host") not in found


def test_a_step_of_a_vector_env_counts_as_many_as_it_has() -> None:
    """Those of the environments within are not counted again, and a wrapped one is one."""
    envs, env = ppo.make_vec_env(ppo.SYNTHETIC_ID, 3), gymnasium.make(ppo.SYNTHETIC_ID)
    envs.reset(seed=0)
    env.reset(seed=0)
    actions = envs.action_space.sample()

    def call() -> None:
        with OUTER:
            envs.step(actions)
        env.step(actions[0])

    call()  # in their first step environments are checked by gymnasium
    found = exact(count(call))
    assert [found[path, "env_steps"] for path in ("", "outer")] == [4, 3]
    envs.close()
    env.close()


def test_compiled_code_is_counted_by_its_graphs_and_breaks() -> None:
    """A break makes two graphs of one; operations are left out, as counting them would run them uncompiled."""

    def smooth(rows: Any) -> Any:
        return (rows * 2.0).sin()

    def broken(rows: Any) -> Any:
        rows = rows * 2.0
        torch._dynamo.graph_break()
        return rows.sin()

    rows = torch.ones(3)
    for function, graphs, breaks in ((smooth, 1, 0), (broken, 2, 1)):
        compiled = torch.compile(function, backend="eager")
        compiled(rows)

        def call(compiled: Callable[[Any], Any] = compiled) -> None:
            with OUTER:
                compiled(rows)

        found = count(call)
        (note,) = found.notes
        assert "torch.compile" in note
        counts = {(each.path, each.name): each.value for each in found.repetitions[0]}
        assert [counts["", name] for name in ("graphs", "graph_breaks", "recompiles")] == [graphs, breaks, 0]
        assert counts["outer", "graphs"] == graphs
        assert ("", "ops") not in counts
        assert counts["", "tensor_allocations"] >= 2


def test_what_probes_look_at_is_not_counted() -> None:
    """The probe that finds an update's sections sums up target networks, which is no operation of the update's."""
    generator = np.random.default_rng(0)
    buffer = sac.ReplayBuffer(64, OBS_DIM, ACT_DIM)
    rows, actions = (generator.normal(size=(64, size)).astype(np.float32) for size in (OBS_DIM, ACT_DIM))
    buffer.add(rows, actions, rows[:, 0], rows, rows[:, 0] > 1.0)
    agent = sac.SAC(OBS_DIM, ACT_DIM, buffer, hidden=8, seed=0)
    agent.update(BATCH)
    plain = exact(count(lambda: agent.update(BATCH), probes=[]))
    found = count(lambda: agent.update(BATCH), probes=[UpdateSections(agent)]).repetitions[0]
    probed = {(each.path, each.name): each.value for each in found}
    assert [probed["", name] for name in ("ops", "ops_backward")] == [plain["", "ops"], plain["", "ops_backward"]]


PROGRAM = source("counting_torch/program.py")


@pytest.mark.slow
def test_counts_of_the_reference_components_are_the_same_in_every_process() -> None:
    """Whatever the seed and the order of hashes: every count of all five, in every repetition."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(seed)],
            env={**os.environ, "RLPERF_TIMERS": "standby", "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in (1, 2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    one, other = (json.loads(out) for out, _ in outputs)
    assert one == other
    assert all(one[i] == one[i + 1] for i in range(0, len(one), 2))
    assert sum(map(len, one)) > 500


def test_sections_of_an_update_are_counted_one_by_one() -> None:
    """An update without timers, which is cut where PyTorch tells, has its counts in the parts it is cut into."""
    agent = Plain()
    sections = UpdateSections(agent)
    timer, update = hierarchical_timer("update"), sections.around(agent.update)

    def call() -> None:
        with timer:
            update()

    one = exact(count(call, probes=[sections]))
    assert one["update/critic", "ops:aten::_local_scalar_dense"] == 1
    assert ("update/actor", "ops:aten::_local_scalar_dense") not in one
    assert one["update/actor/step", "optimizer_steps"] == one["update/critic/step", "optimizer_steps"] == 1
    assert one["update", "python_calls"] >= one["update/critic", "python_calls"] > 0


class Plain:
    """An actor-critic without timers, which waits for its critic's loss."""

    def __init__(self) -> None:
        self.actor, self.critic = torch.nn.Linear(4, 2), torch.nn.Linear(6, 1)
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), 0.1)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), 0.1)
        self.obs = torch.ones(8, 4)

    def update(self) -> None:
        acted = self.actor(self.obs).detach()
        loss = self.critic(torch.cat([self.obs, acted], 1)).square().mean()
        loss.item()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        value = -self.critic(torch.cat([self.obs, self.actor(self.obs)], 1)).mean()
        self.actor_optimizer.zero_grad()
        value.backward()
        self.actor_optimizer.step()
