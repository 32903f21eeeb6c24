from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from library_checks import assert_counts, harvested
from wording import Wording

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.replay import replay_workload
from pytest_rlperf.components.sac import sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError

tianshou: Any = pytest.importorskip("tianshou")
gymnasium: Any = pytest.importorskip("gymnasium")
torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Which of Tianshou's names mypy finds depends on whether it is installed.
base: Any = pytest.importorskip("tianshou.algorithm.algorithm_base")
data: Any = pytest.importorskip("tianshou.data")
venvs: Any = pytest.importorskip("tianshou.env")
optim: Any = pytest.importorskip("tianshou.algorithm.optim")
sac_module: Any = pytest.importorskip("tianshou.algorithm.modelfree.sac")
discrete_sac: Any = pytest.importorskip("tianshou.algorithm.modelfree.discrete_sac")
reinforce: Any = pytest.importorskip("tianshou.algorithm.modelfree.reinforce")
ppo_module: Any = pytest.importorskip("tianshou.algorithm.modelfree.ppo")
trainer_module: Any = pytest.importorskip("tianshou.trainer")
common: Any = pytest.importorskip("tianshou.utils.net.common")
continuous: Any = pytest.importorskip("tianshou.utils.net.continuous")
discrete: Any = pytest.importorskip("tianshou.utils.net.discrete")

from brief_env import BriefEnv  # noqa: E402 - where gymnasium is installed

ADAM = optim.AdamOptimizerFactory(lr=1e-3)


def vector_env(num_envs: int = 4, kind: Any = venvs.DummyVectorEnv, make: Any = BriefEnv, **kwargs: Any) -> Any:
    return kind([make] * num_envs, **kwargs)


@contextmanager
def forbidden(monkeypatch: pytest.MonkeyPatch, *places: tuple[Any, str]) -> Iterator[None]:
    """Have what must not be within a call fail while the body runs."""

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("within a call")

    with monkeypatch.context() as patch:
        for holder, name in places:
            patch.setattr(holder, name, fail)
        yield


@pytest.mark.parametrize("kind", [venvs.DummyVectorEnv, venvs.SubprocVectorEnv, venvs.ShmemVectorEnv])
def test_real_steps_of_a_vector_env(kind: Any) -> None:
    """Every call steps every env, none after its end, and resets are counted as no steps."""
    workload = vecenv_workload(lambda: vector_env(3, kind))
    env: Any = workload.call.__self__.env  # type: ignore[attr-defined]
    assert_counts(workload, lambda: sum(env.get_env_attr("n_steps")))
    assert sum(env.get_env_attr("n_resets")) > 20
    assert workload.items == 3.0
    workload.close()
    assert env.is_closed


def test_real_steps_of_an_env_that_waits_for_some_only() -> None:
    """With ``wait_num``, a call is of the envs that came back; those that have not yet are counted when they do."""
    env = vector_env(4, venvs.SubprocVectorEnv, wait_num=2)
    workload = vecenv_workload(env)
    came_back: list[int] = []
    step = env.step

    def watched(*args: Any) -> Any:
        stepped = step(*args)
        came_back.append(len(stepped[4]))
        return stepped

    env.step = watched
    assert workload.items == 2.0
    assert_counts(workload, lambda: sum(came_back))
    while env.waiting_id:
        watched(None)
    assert sum(env.get_env_attr("n_steps")) == sum(came_back)
    env.close()


def test_a_wrapped_vector_env() -> None:
    """A wrapper is stepped as what it wraps."""
    env = vector_env(3)
    assert_counts(vecenv_workload(venvs.VectorEnvNormObs(env)), lambda: sum(env.get_env_attr("n_steps")))


class ResetsAll(venvs.DummyVectorEnv):  # type: ignore[misc]
    def reset(self, env_id: Any = None, **kwargs: Any) -> Any:
        return super().reset(None, **kwargs)


class Narrow(venvs.DummyVectorEnv):  # type: ignore[misc]
    """Loses one env's part of one of the arrays that a step returns."""

    lost = 0

    def step(self, *args: Any) -> Any:
        stepped = list(super().step(*args))
        stepped[self.lost] = stepped[self.lost][1:]
        return stepped


@pytest.mark.parametrize(
    "lost",
    [
        0,
        1,
        2,
        4,
    ],
)
def test_a_step_that_loses_an_env(lost: int, wording: Wording) -> None:
    """An array that lacks an env is named, with the rows it was to have."""
    with wording.raises(ComponentError):
        vecenv_workload(vector_env(kind=type("Losing", (Narrow,), {"lost": lost}))).check()


def test_a_reset_that_is_not_of_what_ended() -> None:
    """Resets are by id: one of more envs than were asked for would be another benchmark."""
    random.seed(0)  # by which one env ends first
    with pytest.raises(ComponentError, match=r"reset\(\[\d\]\) returned \(4,\) rows, expected \(1,\)"):
        vecenv_workload(vector_env(kind=ResetsAll)).check()


def filled(buffer: Any, rows: int = 40, obs: Any = None) -> Any:
    """Return a buffer with ``rows`` transitions in each of its parts."""
    parts = getattr(buffer, "buffer_num", None)
    one = np.ones(parts) if parts else np.float64(1)
    for _ in range(rows):
        seen = {"obs": np.zeros((parts, 3)) if parts else np.zeros(3)} if obs is None else {"obs": obs}
        buffer.add(
            data.Batch(
                **seen, act=one, rew=one, terminated=one > 1, truncated=one > 1, obs_next=seen["obs"], info={"i": one}
            )
        )
    return buffer


@pytest.mark.parametrize(
    "make",
    [
        lambda: filled(data.ReplayBuffer(100)),
        lambda: filled(data.ReplayBuffer(100, stack_num=4, ignore_obs_next=True)),
        lambda: filled(data.ReplayBuffer(100), obs={"image": np.zeros((4, 4)), "speed": 1.0}),
        lambda: filled(data.PrioritizedReplayBuffer(100, alpha=0.6, beta=0.4)),
        lambda: filled(data.VectorReplayBuffer(100, 4)),
        lambda: filled(data.PrioritizedVectorReplayBuffer(100, 4, alpha=0.6, beta=0.4)),
    ],
)
def test_a_batch_has_as_many_rows_as_it_was_asked_for(make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every array, whatever the buffer; nothing is allocated in a call, which is at the first ``add``."""
    workload = replay_workload(make(), 16)
    workload.check()
    modules = [sys.modules[f"tianshou.data.buffer.{name}"] for name in ("buffer_base", "manager")]
    places = [(module, name) for module in modules for name in ("create_value", "alloc_by_keys_diff")]
    with forbidden(monkeypatch, *places):
        assert list(harvested(workload, 5)) == ["sample"]
    assert workload.processed(5) == 80.0


def test_an_empty_buffer(wording: Wording) -> None:
    """Nothing can be drawn from it, which is an error before anything is drawn."""
    with wording.raises(ComponentError):
        replay_workload(data.VectorReplayBuffer(100, 4), 16)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("sizes", [(64, 4), (7, 1), (1, 3)])
def test_advantages_are_those_of_the_reference(
    backend: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Tianshou's own layout, where a part of the buffer is an env; values are of the backend asked for."""
    workload = gae_workload(ppo_module.PPO.compute_episodic_return, *sizes, backend)
    workload.check()
    assert list(harvested(workload, 3)) == ["gae"]
    assert workload.items == sizes[0] * sizes[1]
    given: list[str] = []
    to_numpy = base.to_numpy

    def watched(value: Any) -> Any:
        given.append(type(value).__module__)
        return to_numpy(value)

    monkeypatch.setattr(base, "to_numpy", watched)
    workload.call()
    assert given == [backend, backend]


def test_an_instance_s_gae_is_the_same() -> None:
    """It is a static method, which may be given from an algorithm of the user's as well."""
    gae_workload(on_policy().compute_episodic_return, 16, 2, "numpy").check()


def test_numba_has_compiled_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the workload compiles; neither a check nor a call does, nor do they fill a buffer."""
    numba = pytest.importorskip("numba")
    fresh = numba.njit(base._gae.py_func)
    monkeypatch.setattr(base, "_gae", fresh)
    workload = gae_workload(base.Algorithm.compute_episodic_return, 16, 2, "numpy")
    compiled = len(fresh.signatures)
    assert compiled == 1
    with forbidden(monkeypatch, (data.VectorReplayBuffer, "add"), (data.VectorReplayBuffer, "__getitem__")):
        workload.check()
        workload.call()
    assert len(fresh.signatures) == compiled


def off_policy(kind: Any = sac_module.SAC, *, auto_alpha: bool = True, rows: int = 64, hidden: int = 16) -> Any:
    """Return the trainer of a small SAC of a kind, whose collector's buffer has ``rows`` transitions."""
    is_discrete = issubclass(kind, discrete_sac.DiscreteSAC)
    space = gymnasium.spaces.Discrete(3) if is_discrete else gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    env = vector_env(make=lambda: BriefEnv(space))

    def net(**kwargs: Any) -> Any:
        return common.Net(state_shape=(2,), hidden_sizes=[hidden, hidden], **kwargs)

    if is_discrete:
        actor = discrete.DiscreteActor(preprocess_net=net(), action_shape=3, softmax_output=False)
        policy = discrete_sac.DiscreteSACPolicy(actor=actor, action_space=space)
        critic = discrete.DiscreteCritic(preprocess_net=net(), last_size=3)
    else:
        actor = continuous.ContinuousActorProbabilistic(
            preprocess_net=net(), action_shape=(2,), unbounded=True, conditioned_sigma=True
        )
        policy = sac_module.SACPolicy(actor=actor, action_space=space)
        critic = continuous.ContinuousCritic(preprocess_net=net(action_shape=(2,), concat=True))
    algorithm = kind(
        policy=policy,
        policy_optim=ADAM,
        critic=critic,
        critic_optim=ADAM,
        alpha=sac_module.AutoAlpha(-1.0, 0.0, ADAM) if auto_alpha else 0.2,
    )
    collector = data.Collector(algorithm, env, data.VectorReplayBuffer(1000, len(env)))
    if rows:
        collector.collect(n_step=rows, random=True, reset_before_collect=True)
    return algorithm.create_trainer(trainer_module.OffPolicyTrainerParams(training_collector=collector))


@pytest.mark.parametrize("kind", [sac_module.SAC, discrete_sac.DiscreteSAC])
@pytest.mark.parametrize("auto_alpha", [True, False])
def test_a_sac_update(kind: Any, auto_alpha: bool) -> None:
    """One gradient step of every part, whose phases are seen from outside and account for it."""
    trainer = off_policy(kind, auto_alpha=auto_alpha, hidden=128)
    workload = sac_workload(trainer, 256)
    workload.check()
    workload.call()
    phases = harvested(workload, 20)
    sections = [path.partition("/")[2] for path in phases if path.count("/") == 1]
    assert sections == ["sample", "target_q", "critic", "actor", *["alpha"][: int(auto_alpha)], "polyak"]
    steps = {path: phase.count for path, phase in phases.items() if path.endswith("/step")}
    assert steps == {
        "sac_update/critic/step": 2.0,
        "sac_update/actor/step": 1.0,
        **({"sac_update/alpha/step": 1.0} if auto_alpha else {}),
    }
    assert workload.processed(20) == 20.0


def test_an_update_is_within_a_training_step() -> None:
    """As a trainer has it, and no longer than the update."""
    trainer = off_policy()
    policy = trainer.algorithm.policy
    seen: list[bool] = []
    policy.register_forward_hook(lambda *_: seen.append(policy.is_within_training_step))
    sac_workload(trainer, 32).call()
    assert seen
    assert all(seen)
    assert not policy.is_within_training_step


class HalfBatch(sac_module.SAC):  # type: ignore[misc]
    def _update_with_batch(self, batch: Any) -> Any:
        return super()._update_with_batch(batch[: len(batch) // 2])


class ForgetsAlpha(sac_module.SAC):  # type: ignore[misc]
    def _update_with_batch(self, batch: Any) -> Any:
        self.alpha.update = lambda _: None
        return super()._update_with_batch(batch)


@pytest.mark.parametrize(
    "kind",
    [
        HalfBatch,
        ForgetsAlpha,
    ],
)
def test_an_update_that_is_wrong(kind: Any, wording: Wording) -> None:
    """Half a batch, a part that is not updated, and no update at all are different errors."""
    with wording.raises(ComponentError):
        sac_workload(off_policy(kind), 32).check()


def test_what_cannot_update(wording: Wording) -> None:
    """Parts on two devices, nothing collected, an algorithm without its trainer and one that is no SAC are errors."""
    trainer = off_policy()
    trainer.algorithm.critic2.to("meta")
    with wording.raises(ComponentError):
        sac_workload(trainer, 32).check()
    with wording.raises(ComponentError):
        sac_workload(off_policy(rows=0), 32).check()
    with wording.raises(ComponentError):
        sac_workload(off_policy().algorithm, 32)
    trainer = off_policy()
    trainer.algorithm = base.RandomActionPolicy(trainer.algorithm.policy.action_space)
    with wording.raises(ComponentError):
        sac_workload(trainer, 32)


def on_policy(num_envs: int = 4) -> Any:
    space = gymnasium.spaces.Discrete(3)
    net = common.Net(state_shape=(2,), hidden_sizes=[16])
    actor = discrete.DiscreteActor(preprocess_net=net, action_shape=3)
    policy = reinforce.DiscreteActorPolicy(actor=actor, action_space=space)
    return ppo_module.PPO(policy=policy, critic=discrete.DiscreteCritic(preprocess_net=net), optim=ADAM)


def collecting(kind: Any = data.Collector, num_envs: int = 4, size: int = 400, **kwargs: Any) -> Any:
    return kind(on_policy(), vector_env(num_envs), data.VectorReplayBuffer(size, num_envs), **kwargs)


def test_a_rollout() -> None:
    """Full, of the env steps that were really taken, and emptied before the next; its phases account for it."""
    collector = collecting()
    workload = ppo_workload(collector, 16, None)
    workload.check()
    assert (workload.processed(1), workload.items) == (64.0, 64.0)
    before = sum(collector.env.get_env_attr("n_steps"))
    phases = harvested(workload, 10)
    assert workload.processed(10) == sum(collector.env.get_env_attr("n_steps")) - before == 640.0
    assert len(collector.buffer) == 64
    parts = ["policy", "env_step", "store", "store/stats", "store/add", "reset", "episodes", "episodes/stats"]
    assert list(phases) == ["ppo_collect", *(f"ppo_collect/{part}" for part in parts)]
    assert [phases[f"ppo_collect/{part}"].count for part in parts[:5]] == [16.0] * 5


def test_seeds_decide_a_rollout() -> None:
    """With the generators of Python and PyTorch seeded alike, two rollouts are the same."""
    seen = []
    for _ in range(2):
        random.seed(5)
        torch.manual_seed(5)
        collector = collecting()
        ppo_workload(collector, 8, None).check()
        seen.append(collector.buffer[:].obs.tolist())
    assert seen[0] == seen[1]


def test_phases_leave_nothing_behind() -> None:
    """After a recording the collector's env, buffer and statistics are as they were."""
    collector = collecting()
    workload = ppo_workload(collector, 4, None)
    harvested(workload, 1)
    assert "step" not in vars(collector.env)
    assert "add" not in vars(collector.buffer)
    assert not hasattr(collector.collect_stats_class.update_at_step_batch, "__wrapped__")


def test_a_rollout_of_one_env_and_of_a_full_buffer() -> None:
    """A plain buffer will do for one env, and one that the rollout just fills."""
    collector = data.Collector(on_policy(), vector_env(1), data.ReplayBuffer(16))
    workload = ppo_workload(collector, 16, None)
    workload.check()
    assert workload.processed(1) == 16.0


def test_a_rollout_of_an_on_policy_trainer(wording: Wording) -> None:
    """A trainer's collector is measured, once its policy is known to be the one that is trained."""
    algorithm = on_policy()
    collector = data.Collector(algorithm, vector_env(), data.VectorReplayBuffer(400, 4))
    params = trainer_module.OnPolicyTrainerParams(training_collector=collector)
    ppo_workload(algorithm.create_trainer(params), 8, None).check()
    with wording.raises(ComponentError):
        ppo_workload(on_policy().create_trainer(params), 8, None)


def test_a_call_neither_resets_all_nor_empties_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are done before, and nothing is allocated; actions are sampled, as within a training step."""
    collector = collecting()
    workload = ppo_workload(collector, 8, None)
    workload.check()
    assert workload.setup is not None
    workload.setup()
    seen: list[bool] = []
    policy = collector.policy
    policy.register_forward_hook(lambda *_: seen.append(policy.is_within_training_step))
    modules = sys.modules["tianshou.data.buffer.manager"]
    with forbidden(monkeypatch, (collector, "reset"), (collector.buffer, "reset"), (modules, "create_value")):
        workload.call()
    assert seen == [True] * 8
    assert not policy.is_within_training_step


class Random(data.Collector):  # type: ignore[misc]
    def _collect(self, **kwargs: Any) -> Any:
        return super()._collect(**{**kwargs, "random": True})


class Overruled(data.Collector):  # type: ignore[misc]
    def _compute_action_policy_hidden(self, *args: Any, **kwargs: Any) -> Any:
        batch = super()._compute_action_policy_hidden(*args, **kwargs)
        batch.act = (batch.act + 1) % 3
        return batch


class Short(data.Collector):  # type: ignore[misc]
    def collect(self, n_step: int) -> Any:
        return super().collect(n_step=n_step // 2)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (Random, 400),
        (Overruled, 400),
        (Short, 400),
        (data.Collector, 16),
    ],
)
def test_a_rollout_that_is_wrong(kind: Any, size: int, wording: Wording) -> None:
    """Actions that are not the policy's, and rollouts that are short or do not fit the buffer, are errors."""
    with wording.raises(ComponentError):
        ppo_workload(collecting(kind, size=size), 8, None).check()


@pytest.mark.filterwarnings("ignore:Using async setting")
def test_an_async_collector(wording: Wording) -> None:
    """It collects more than the number of steps given, so the error names another way."""
    env = vector_env(4, wait_num=2)
    collector = data.AsyncCollector(on_policy(), env, data.VectorReplayBuffer(400, 4))
    with wording.raises(ComponentError):
        ppo_workload(collector, 8, None)
