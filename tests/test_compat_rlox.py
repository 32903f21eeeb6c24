from __future__ import annotations

import copy
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
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


class Hooks:
    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks = callbacks

    def on_training_start(self) -> None:
        for callback in self.callbacks:
            callback.on_training_start()

    def on_rollout_end(self) -> None:
        for callback in self.callbacks:
            callback.on_rollout_end()

    def on_train_batch(self, **kwargs: Any) -> None:
        for callback in self.callbacks:
            callback.on_train_batch(**kwargs)

    def on_step(self, **kwargs: Any) -> bool:
        return all(callback.on_step(**kwargs) for callback in self.callbacks)

    def on_training_end(self) -> None:
        for callback in self.callbacks:
            callback.on_training_end()


class Env:
    """An environment that takes no attributes, as compiled ones do."""

    __slots__ = ("clock", "fails")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.fails = False

    def step_all(self, actions: int) -> int:
        self.clock.spend("env_step", 1, ends=True)
        if self.fails:
            raise OSError("the simulator has gone")
        return actions


class PythonEnv(Env):
    """An environment that takes attributes, and copies."""


class Collector:
    def __init__(self, clock: Clock, env: Env) -> None:
        self.clock, self.env = clock, env

    def collect(self, steps: int) -> None:
        for step in range(steps):
            self.clock.spend("collect", 0.5)
            assert self.env.step_all(step) == step
        library = sys.modules["rlox"]
        assert library.compute_gae_batched(lam=0.95) == 0.95
        self.clock.spend("collect", 0.25, ends=True)


class Loss:
    clip = 0.2

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __call__(self, batch: int) -> int:
        self.clock.spend("gradient_update", 2)
        return batch


class Optimizer:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def step(self) -> None:
        self.clock.spend("gradient_update", 4, ends=True)


class OnPolicy:
    def __init__(self, clock: Clock, callbacks: list[Any], env: Env | None = None) -> None:
        self.clock = clock
        self.callbacks = Hooks(callbacks)
        self.collector = Collector(clock, Env(clock) if env is None else env)
        self.loss_fn = Loss(clock)
        self.optimizer = Optimizer(clock)
        self.within: Callable[[str], object] = lambda place: None

    def train(self, updates: int) -> None:
        self.callbacks.on_training_start()
        for _ in range(updates):
            self.collector.collect(3)
            self.within("rollout")
            self.callbacks.on_rollout_end()
            for batch in range(2):
                self.clock.spend("other", 0.125)
                assert self.loss_fn(batch) == batch
                self.clock.spend("gradient_update", 8)
                self.within("backward")
                self.optimizer.step()
                self.clock.spend("other", 0.125)
                self.callbacks.on_train_batch(loss=0.0)
            self.callbacks.on_step(algo=self)
        self.callbacks.on_training_end()


class OffPolicy:
    def __init__(self, clock: Clock, callbacks: list[Any], env: Env) -> None:
        self.clock = clock
        self.callbacks = Hooks(callbacks)
        self.env = env

    def train(self, steps: int) -> None:
        self.callbacks.on_training_start()
        for step in range(steps):
            self.clock.spend("other", 0.125)
            self.env.step_all(step)
            if not self.callbacks.on_step(algo=self):
                break
            self._update(step)
            self.callbacks.on_train_batch()
        self.callbacks.on_training_end()

    def _update(self, step: int) -> None:
        self.clock.spend("gradient_update", 16, ends=True)


@pytest.fixture
def library(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Install a library that computes advantages, and see that it is left as it was."""
    library = types.ModuleType("rlox")

    def compute_gae_batched(lam: float) -> float:
        clock.spend("gae_compute", 0.0625, ends=True)
        return lam

    vars(library)["compute_gae_batched"] = compute_gae_batched
    monkeypatch.setitem(sys.modules, "rlox", library)
    yield library
    assert vars(library)["compute_gae_batched"] is compute_gae_batched


def untouched(algorithm: Any) -> bool:
    """Whether nothing in an algorithm has been replaced."""
    owners = [algorithm, getattr(algorithm, "collector", None), getattr(algorithm, "optimizer", None)]
    members = [value for owner in owners if owner is not None for value in vars(owner).values()]
    return not any(map(is_proxy, members))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("env", [Env, PythonEnv])
def test_on_policy_labels_time_what_they_say(clock: Clock, env: type[Env]) -> None:
    """Each label has exactly the time of what it names, and all of them the whole; trainings add up."""
    callback = TimingCallback()
    assert callback.summary() == {}
    algorithm = OnPolicy(clock, [callback], env(clock))
    for updates in (1, 3):
        algorithm.train(updates)
        assert untouched(algorithm)
        clock.check(callback)
        clock.now += 1000
    assert clock.counts == {"env_step": 12, "gae_compute": 4, "gradient_update": 8, "collect": 4, "other": 0}
    assert clock.truth["env_step"] == 12


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("env", [Env, PythonEnv])
def test_off_policy_labels_time_what_they_say(clock: Clock, env: type[Env]) -> None:
    """The update is the update and the step the step, and neither is the other."""
    callback = TimingCallback()
    algorithm = OffPolicy(clock, [callback], env(clock))
    algorithm.train(5)
    assert untouched(algorithm)
    clock.check(callback)
    assert callback.counts == {"env_step": 5, "gradient_update": 5}
    assert "gae_compute" not in callback.summary()


@pytest.mark.usefixtures("library")
def test_several_callbacks_see_the_same(clock: Clock) -> None:
    """Two callbacks of one training do not hide anything from each other, and both leave it as it was."""
    first, second = TimingCallback(), TimingCallback()
    algorithm = OnPolicy(clock, [first, second])
    algorithm.train(2)
    clock.check(first)
    clock.check(second)
    assert untouched(algorithm)


def test_time_of_other_callbacks_is_not_the_phases(clock: Clock, library: types.ModuleType) -> None:
    """Time within hooks, between phases and in calls of others belongs to no phase."""
    callback = TimingCallback()

    class Slow(TimingCallback):
        def on_rollout_end(self, **kwargs: Any) -> None:
            clock.spend("other", 64)

        on_train_batch = on_rollout_end

    algorithm = OnPolicy(clock, [Slow(), callback])

    def elsewhere(place: str) -> None:
        # The same function, called by another thread meanwhile, is not the training's.
        thread = threading.Thread(target=lambda: library.compute_gae_batched(0.5))
        thread.start()
        thread.join()
        phase = "other" if place == "rollout" else "gradient_update"
        clock.truth["gae_compute"] -= 0.0625
        clock.counts["gae_compute"] -= 1
        clock.truth[phase] += 0.0625

    algorithm.within = elsewhere
    algorithm.train(2)
    clock.check(callback)


@pytest.mark.usefixtures("library")
def test_everything_is_put_back_at_once_where_a_phase_fails(clock: Clock) -> None:
    """A training that fails in what is timed leaves nothing behind, and its time is known."""
    callback = TimingCallback()
    algorithm = OnPolicy(clock, [callback])
    algorithm.train(1)
    algorithm.collector.env.fails = True
    with pytest.raises(OSError, match="simulator"):
        algorithm.train(1)
    assert untouched(algorithm)
    clock.counts["collect"] += 1  # a collection that failed was one, too
    clock.now += 1000
    clock.check(callback)
    algorithm.collector.env.fails = False
    algorithm.train(1)
    clock.check(callback)


@pytest.mark.parametrize("found_by", ["summary", "use", "close", "training"])
def test_everything_is_put_back_soon_where_something_else_fails(
    clock: Clock, library: types.ModuleType, found_by: str
) -> None:
    """A failure outside of phases is noticed at the next occasion, and the time since then belongs to nothing."""
    callback = TimingCallback()
    algorithm = OnPolicy(clock, [callback])

    def fail(place: str) -> None:
        raise KeyboardInterrupt

    algorithm.within = fail
    with pytest.raises(KeyboardInterrupt):
        algorithm.train(1)
    clock.now += 1000
    if found_by == "summary":
        clock.check(callback)
    elif found_by == "use":
        library.compute_gae_batched(0.5)
        clock.truth["gae_compute"] -= 0.0625
        clock.counts["gae_compute"] -= 1
    elif found_by == "close":
        callback.close()
    else:
        algorithm.within = lambda place: None
        algorithm.train(1)
    assert untouched(algorithm)
    clock.check(callback)


@pytest.mark.usefixtures("library")
def test_what_is_replaced_looks_as_it_did(clock: Clock) -> None:
    """During training, settings can be read and set, classes are what they were, and copies are of the real thing."""
    copies: list[OnPolicy] = []

    class Curious(TimingCallback):
        def on_train_batch(self, **kwargs: Any) -> None:
            loss: Any = algorithm.loss_fn
            env: Any = algorithm.collector.env
            assert isinstance(env, Env)
            assert isinstance(loss, Loss)
            assert not untouched(algorithm)
            loss.clip = 0.1
            env.fails = False
            algorithm.callbacks, hooks = Hooks([]), algorithm.callbacks
            copies.append(copy.deepcopy(algorithm))
            algorithm.callbacks = hooks
            pickled = pickle.loads(pickle.dumps((algorithm.optimizer, env)))  # noqa: S301 - our own
            assert [type(part) for part in pickled] == [Optimizer, Env]
            assert not is_proxy(vars(pickled[0]).get("step"))

    algorithm = OnPolicy(clock, [TimingCallback(), Curious()])
    algorithm.within = print
    algorithm.train(1)
    assert algorithm.loss_fn.clip == 0.1
    for other in copies:
        assert untouched(other)
        assert other.collector.collect.__self__ is other.collector  # type: ignore[attr-defined]
        other.optimizer.step()
        assert other.optimizer.clock is not clock
        other.train(1)


def test_a_function_that_somebody_replaces_meanwhile_stays(clock: Clock, library: types.ModuleType) -> None:
    """A replacement over the proxy is kept at the end, and its calls reach the original untimed."""
    callback = TimingCallback()
    algorithm = OnPolicy(clock, [callback])
    original = library.compute_gae_batched
    under: list[Any] = []

    def replace(place: str) -> None:
        if not under:
            under.append(library.compute_gae_batched)
            vars(library)["compute_gae_batched"] = lambda *given: under[0](*given)

    algorithm.within = replace
    algorithm.train(1)
    counted = callback.counts["gae_compute"]
    assert is_proxy(under[0])
    assert library.compute_gae_batched is not under[0]
    now = clock.now
    library.compute_gae_batched(0.5)
    assert clock.now > now
    assert callback.counts["gae_compute"] == counted
    vars(library)["compute_gae_batched"] = original


@pytest.mark.usefixtures("library")
def test_unknown_algorithms_are_told(clock: Clock) -> None:
    """An algorithm with unknown updates gets a warning, and nothing counts as an update."""

    class Unknown(OnPolicy):
        def __init__(self, clock: Clock, callbacks: list[Any]) -> None:
            super().__init__(clock, callbacks)
            del self.optimizer

        def train(self, updates: int) -> None:
            self.callbacks.on_training_start()
            self.collector.collect(updates)
            self.callbacks.on_training_end()

    callback = TimingCallback()
    algorithm = Unknown(clock, [callback])
    with pytest.warns(RuntimeWarning, match="Unknown.*'other'"):
        algorithm.train(2)
    clock.check(callback)
    with pytest.warns(RuntimeWarning, match="trains"):
        callback.on_training_start()
    clock.now += 7
    callback.on_training_end()
    assert callback.seconds["other"] == 7


@pytest.mark.usefixtures("library")
def test_algorithm_can_be_given(clock: Clock) -> None:
    """A training loop that is no method gives the algorithm to the hook."""
    callback = TimingCallback()
    algorithm = OnPolicy(clock, [])
    callback.on_training_start(algo=algorithm)
    algorithm.collector.collect(3)
    assert callback.on_step(algo=algorithm)
    callback.on_eval()
    assert callback.seconds["env_step"] == 3
    callback.on_training_end()
    assert untouched(algorithm)
    clock.check(callback)


def part(name: str) -> Any:
    return pytest.importorskip(f"rlox.{name}")


@pytest.fixture
def spent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Have all that rlox's algorithms call take its time by the clock, as whoever is called sees it."""
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
