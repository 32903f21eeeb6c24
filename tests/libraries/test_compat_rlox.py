from __future__ import annotations

from typing import Any

import pytest

from pytest_rlperf.compat import rlox as compat
from pytest_rlperf.compat.rlox import TimingCallback
from pytest_rlperf.probes.functions import is_proxy

PHASES = ("env_step", "gae_compute", "gradient_update", "collect", "other")


class Clock:
    """Stands for ``time``; what passes is also kept by what it passed for."""

    def __init__(self) -> None:
        self.now = 100.0
        self.truth = dict.fromkeys(PHASES, 0.0)
        self.counts = dict.fromkeys(PHASES, 0)

    def perf_counter(self) -> float:
        return self.now

    def spend(self, phase: str, seconds: float, *, ends: bool = False) -> None:
        self.now += seconds
        self.truth[phase] += seconds
        self.counts[phase] += ends

    def check(self, callback: TimingCallback) -> None:
        spent = {phase: seconds for phase, seconds in self.truth.items() if seconds}
        assert {phase: seconds for phase, seconds in callback.seconds.items() if seconds} == pytest.approx(spent)
        assert dict(callback.counts) == {phase: count for phase, count in self.counts.items() if count}
        total = sum(spent.values())
        assert sum(callback.summary().values()) == pytest.approx(100)
        assert callback.summary()["env_step"] == pytest.approx(spent["env_step"] / total * 100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the clock by one that only the test moves."""
    clock = Clock()
    monkeypatch.setattr(compat, "time", clock)
    return clock


def untouched(algorithm: Any) -> bool:
    """Whether nothing in an algorithm has been replaced."""
    owners = [algorithm, getattr(algorithm, "collector", None), getattr(algorithm, "optimizer", None)]
    members = [value for owner in owners if owner is not None for value in vars(owner).values()]
    return not any(map(is_proxy, members))


def part(name: str) -> Any:
    return pytest.importorskip(f"rlox.{name}")


@pytest.fixture
def spent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let all that rlox's algorithms call take its time by the clock, as whoever is called sees it."""
    real = pytest.importorskip("rlox")
    torch = pytest.importorskip("torch")
    control = pytest.importorskip("gymnasium.envs.classic_control")
    loss_class = part("losses").PPOLoss

    def takes(owner: Any, name: str, phase: str, seconds: float, *, ends: bool = True) -> None:
        original = getattr(owner, name)

        def slow(*args: Any, **kwargs: Any) -> Any:
            clock.spend(phase, seconds, ends=ends)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    takes(part("collectors").RolloutCollector, "collect", "collect", 0.25)
    takes(part("off_policy_collector").OffPolicyCollector, "collect_step", "collect", 0.25)
    takes(real, "compute_gae_batched", "gae_compute", 0.0625)
    takes(part("gym_vec_env").GymVecEnv, "step_all", "env_step", 0.5)
    takes(control.PendulumEnv, "step", "env_step", 0.5, ends=False)
    takes(part("algorithms.sac").SAC, "_update", "gradient_update", 16)
    takes(part("batch").RolloutBatch, "sample_minibatches", "other", 0.125, ends=False)
    takes(torch.optim.Adam, "step", "gradient_update", 4, ends=False)
    loss_of = loss_class.__call__

    def slow_loss(*args: Any, **kwargs: Any) -> Any:
        clock.spend("gradient_update", 2, ends=True)
        loss, metrics = loss_of(*args, **kwargs)
        loss.register_hook(lambda gradient: clock.spend("gradient_update", 8))
        return loss, metrics

    monkeypatch.setattr(loss_class, "__call__", slow_loss)
    return clock


def train(clock: Clock, algorithm: Any, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train, with the standard library's clock replaced, too."""
    with monkeypatch.context() as patch:
        patch.setattr("time.perf_counter", clock.perf_counter)
        algorithm.train(steps)


def test_ppo_of_rlox(spent: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """PPO's labels have the time of the work that they name; the original's have that of other work."""
    callback, original = TimingCallback(), part("callbacks").TimingCallback()
    given = {"n_envs": 2, "n_steps": 8, "n_epochs": 2, "batch_size": 8, "callbacks": [original, callback]}
    algorithm = part("algorithms.ppo").PPO("Pendulum-v1", **given)
    train(spent, algorithm, 3 * 16, monkeypatch)
    assert untouched(algorithm)
    spent.check(callback)
    assert callback.counts == {"env_step": 24, "gae_compute": 3, "gradient_update": 12, "collect": 3}
    seconds = callback.seconds
    assert set(original.summary()) <= set(callback.summary())
    assert sum(original._phase_times.values()) == pytest.approx(sum(seconds.values()))
    # The library has the first minibatch of each rollout for the computation of advantages.
    assert seconds["gae_compute"] == 3 * 0.0625
    assert original._phase_times["gae_compute"] == pytest.approx(3 * (2 + 8 + 4 + 0.125))


def test_ppo_of_rlox_with_a_compiled_environment(spent: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are timed where the environment is compiled, too, and it is back in its place afterwards."""
    callback = TimingCallback()
    algorithm = part("algorithms.ppo").PPO(
        "CartPole-v1", n_envs=2, n_steps=8, n_epochs=1, batch_size=16, callbacks=[callback]
    )
    env = algorithm.collector.env
    assert not hasattr(env, "__dict__"), "it takes attributes, so this shows nothing"
    train(spent, algorithm, 3 * 16, monkeypatch)
    assert algorithm.collector.env is env
    assert callback.counts == {"env_step": 24, "gae_compute": 3, "gradient_update": 3, "collect": 3}
    assert callback.seconds["gradient_update"] == spent.truth["gradient_update"]


@pytest.mark.parametrize("n_envs", [1, 2])
def test_sac_of_rlox(spent: Clock, monkeypatch: pytest.MonkeyPatch, n_envs: int) -> None:
    """SAC's step and update are each under their own name; the original has them the other way round."""
    callback, original = TimingCallback(), part("callbacks").TimingCallback()
    given = {"learning_starts": 4, "batch_size": 4, "hidden": 8, "n_envs": n_envs}
    algorithm = part("algorithms.sac").SAC("Pendulum-v1", callbacks=[original, callback], **given)
    train(spent, algorithm, 12, monkeypatch)
    assert untouched(algorithm)
    if n_envs == 1:
        spent.counts["env_step"] = 12
    spent.check(callback)
    assert callback.counts["gradient_update"] == 8
    assert sum(original._phase_times.values()) == pytest.approx(sum(callback.seconds.values()))
    assert original._phase_times["env_step"] > callback.seconds["gradient_update"] > 8 * 16
    assert original._phase_times["gradient_update"] < 16


def test_callback_has_all_hooks_of_rlox() -> None:
    """Whatever rlox calls on a callback is there, and so is what the original callback offers."""
    callbacks = part("callbacks")
    names = {name for name in dir(callbacks.TimingCallback) if not name.startswith("_")}
    assert {"on_step", "summary"} <= names
    assert names <= set(dir(TimingCallback))
    assert callbacks.CallbackList([TimingCallback()]).on_step(reward=0.0)
