from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from library_checks import assert_counts, harvested
from wording import Wording

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import replay_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

pytest.importorskip("torchrl")

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl import collectors
from torchrl.collectors import Collector
from torchrl.data import (
    Composite,
    LazyTensorStorage,
    OneHot,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase, GymEnv, SerialEnv
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor
from torchrl.objectives.value import GAE
from torchrl.objectives.value.functional import generalized_advantage_estimate, vec_generalized_advantage_estimate

# The warnings are TorchRL's own, about itself.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torchrl:FutureWarning")]


class Blinking(EnvBase):  # type: ignore[misc]
    """Has episodes of one to five steps, and tells of its steps and resets as what is observed."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = OneHot(3)
        self.reward_spec = Unbounded((1,))
        self.n_steps = self.n_resets = self.left = 0

    def _reset(self, tensordict: Any, **_: Any) -> Any:
        self.n_resets += 1
        self.left = random.randint(1, 5)
        return TensorDict({"observation": self.observed()}, [])

    def _step(self, tensordict: Any) -> Any:
        assert self.left > 0, "stepped after its end"
        self.n_steps += 1
        self.left -= 1
        ends = {name: torch.tensor([self.left == 0]) for name in ("done", "terminated")}
        return TensorDict({"observation": self.observed(), "reward": torch.ones(1), **ends}, [])

    def _set_seed(self, seed: int | None) -> None:
        random.seed(seed)

    def observed(self) -> Any:
        return torch.tensor([self.n_steps, self.n_resets], dtype=torch.float32)


@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_real_steps_of_a_vector_env_of_gymnasium(num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRL takes the calls that only reset one of gymnasium's envs for steps, which pay nothing in CartPole."""
    monkeypatch.setattr("gymnasium.vector.AsyncVectorEnv", pytest.importorskip("gymnasium").vector.SyncVectorEnv)
    env = GymEnv("CartPole-v1", num_envs=num_envs, max_episode_steps=12)
    step, rewards = env.step_and_maybe_reset, [0.0]

    def seen(tensordict: Any) -> Any:
        results = step(tensordict)
        rewards[0] += float(results[0]["next", "reward"].sum())
        return results

    env.step_and_maybe_reset = seen
    workload = vecenv_workload(env)
    assert_counts(workload, lambda: rewards[0])
    for _ in range(201):
        workload.call()
    assert (workload.processed(201) < 201 * num_envs) == (num_envs > 1)


def test_an_env_that_is_not_reset(wording: Wording) -> None:
    """A step of an episode after its end is an error, where one ends within a hundred steps."""

    class Endless(Blinking):
        def maybe_reset(self, tensordict: Any) -> Any:
            self.left = self.left or 5
            return tensordict

    workload = vecenv_workload(Endless())
    with wording.raises(ComponentError):
        workload.check()


def transitions(rows: int = 96) -> Any:
    """Return random transitions of three observations and two actions."""
    following = {"observation": torch.randn(rows, 3), "reward": torch.randn(rows, 1)}
    ends = {name: torch.zeros(rows, 1, dtype=torch.bool) for name in ("done", "terminated")}
    first = {"observation": torch.randn(rows, 3), "action": torch.rand(rows, 2) * 2 - 1}
    return TensorDict({**first, "next": {**following, **ends}}, [rows])


def filled(kind: Any = TensorDictReplayBuffer, storage: Any = LazyTensorStorage, **options: Any) -> Any:
    buffer = kind(storage=storage(96), **options)
    buffer.extend(transitions())
    return buffer


def test_buffers_that_return_no_sampled_batches(wording: Wording) -> None:
    """Prefetched batches are not sampled."""
    with wording.raises(ComponentError):
        replay_workload(filled(prefetch=3, batch_size=16), 16)
    for drop_last, batch_size in ((True, 36), (False, 32)):
        sampler = SamplerWithoutReplacement(drop_last=drop_last)
        workload = replay_workload(filled(sampler=sampler, batch_size=batch_size), batch_size)
        for _ in range(7):
            workload.check()


def gae(**options: Any) -> Any:
    return GAE(**{"gamma": 0.9, "lmbda": 0.8, "value_network": None, **options})


@pytest.mark.parametrize(
    "make",
    [
        lambda: generalized_advantage_estimate,
        lambda: vec_generalized_advantage_estimate,
        gae,
        lambda: gae(vectorized=True),
        lambda: gae(average_gae=True),
        lambda: gae(time_dim=0),
        lambda: gae(time_dim=-1, auto_reset_env=True),
        lambda: gae(differentiable=True),
    ],
)
@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (3, 2)])
def test_gae(make: Callable[[], Any], n_steps: int, n_envs: int) -> None:
    """Every way TorchRL has of computing it gives float64's advantages, also standardized."""
    workload = gae_workload(make(), n_steps, n_envs, "numpy")
    workload.check()
    assert workload.items == n_steps * n_envs
    assert list(harvested(workload, 3)) == ["gae"]
    workload.check()  # calls leave the rollout as it was


def make_policy(**options: Any) -> Any:
    net = TensorDictModule(MLP(2, 3, num_cells=[64, 64]), in_keys=["observation"], out_keys=["logits"])
    return ProbabilisticActor(
        net, in_keys=["logits"], distribution_class=OneHotCategorical, **{"return_log_prob": True, **options}
    )


@pytest.fixture
def make_collector() -> Iterator[Callable[..., Any]]:
    """Return what makes a collector of eight steps of each of three envs."""
    made: list[Any] = []

    def make(kind: Any = Collector, policy: Any = None, **options: Any) -> Any:
        options = {"frames_per_batch": 24, "total_frames": -1, "auto_register_policy_transforms": False} | options
        made.append(kind(SerialEnv(3, Blinking), make_policy() if policy is None else policy, **options))
        return made[-1]

    yield make
    for collector in made:
        collector.shutdown()


def test_a_rollout_of_a_stale_policy(make_collector: Any, wording: Wording) -> None:
    """Log-probabilities are those of the policy that the collector was given, as it is now."""
    policy = make_policy()
    collector = make_collector(policy=policy)
    collector._wrapped_policy = copy.deepcopy(policy)  # as on another device
    workload = ppo_workload(collector, 8, None)
    workload.check()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    with wording.raises(ComponentError):
        workload.check()
    TensorDict.from_module(collector._wrapped_policy).data.update_(TensorDict.from_module(policy).data)
    workload.check()


class Half(Collector):  # type: ignore[misc]
    def rollout(self) -> Any:
        return super().rollout()[:, ::2]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Half, {}),
        (Collector, {"policy": make_policy(return_log_prob=False)}),
        (Collector, {"frames_per_batch": 12}),
        (Collector, {"total_frames": 240}),
        (Collector, {"init_random_frames": 24}),
        (Collector, {"replay_buffer": filled()}),
        (Collector, {"trajs_per_batch": 2, "traj_format": "cat"}),
    ],
)
def test_a_collector_that_is_no_rollout_of_a_policy(
    make_collector: Any, kind: Any, options: dict[str, Any], wording: Wording
) -> None:
    """Rollouts that are not full, not finite or not the policy's, and collectors of others, are errors."""
    with wording.raises(ComponentError):
        ppo_workload(make_collector(kind, **options), 8, None).check()


def test_a_collector_with_processes_of_its_own(wording: Wording) -> None:
    """It collects between calls, so it is an error that names another way."""
    collector = object.__new__(collectors.MultiAsyncCollector)
    collector.closed = True
    with wording.raises(ComponentError):
        ppo_workload(collector, 8, None)
