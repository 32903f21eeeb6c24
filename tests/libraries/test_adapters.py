"""Every adapter keeps its component's contract: one suite over the components that the shipped suite's tests make.

A library is here by its module in ``pytest_rlperf.components.libraries``; where it is not installed, its tests are
skipped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
from library_checks import assert_counts, builder, harvested, libraries_with
from wording import Wording

from pytest_rlperf.components.checks import arrays_in
from pytest_rlperf.components.contracts import Roller, Updater
from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.libraries import adapter_for
from pytest_rlperf.components.ppo import ppo_update_workload, ppo_workload, train_workload
from pytest_rlperf.components.updates import counted_steps, replay_workload, sac_workload, trainable
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload
from pytest_rlperf.probes.functions import replace_method
from pytest_rlperf.suite.work import BATCH_SIZE

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:.*torchrl:FutureWarning")]

Build: TypeAlias = Callable[..., Any]
N_ENVS, N_STEPS, TRANSITIONS = 3, 16, 4 * BATCH_SIZE
SIZED = {
    *("torchrl_replay", "sb3_sac", "rlox_sac", "skrl_sac", "tianshou_sac"),
    *("sb3_ppo", "rlox_ppo", "torchrl_ppo", "skrl_ppo_update", "tianshou_ppo_update"),
}
"""Builders of objects that have the size of their batches or rollouts."""
EPISODE = 5  # steps, so that many episodes end in a test


def built(*components: str) -> pytest.MarkDecorator:
    """Run a test on every library that has a builder of one of the components."""
    having = [(library, name) for name in components for library in libraries_with(name)]
    ids = [f"{library.name}-{name}" for library, name in having]
    return pytest.mark.parametrize("build", having, indirect=True, ids=ids)


@pytest.fixture
def build(request: pytest.FixtureRequest) -> Build:
    library, component = request.param
    for module in ("gymnasium", "torch", library.module):
        pytest.importorskip(module)
    return builder(library, component)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def envs(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the steps and resets of all synthetic envs from now on; their episodes are short."""
    pytest.importorskip("gymnasium")
    from pytest_rlperf.components.reference.ppo import SyntheticEnv

    seen = SimpleNamespace(steps=0, resets=0)
    step, reset = SyntheticEnv.step, SyntheticEnv.reset

    def counted_step(self: Any, action: Any) -> Any:
        assert self._steps < EPISODE, "stepped after its end"
        seen.steps += 1
        return step(self, action)

    def counted_reset(self: Any, **kwargs: Any) -> Any:
        seen.resets += 1
        return reset(self, **kwargs)

    monkeypatch.setattr(SyntheticEnv.__init__, "__defaults__", (17, 6, EPISODE))
    monkeypatch.setattr(SyntheticEnv, "step", counted_step)
    monkeypatch.setattr(SyntheticEnv, "reset", counted_reset)
    return seen


def stepping(env: Any) -> Workload:
    """Return the workload of a library's vector env, or of the function that steps it."""
    return vecenv_workload(env, N_ENVS) if inspect.isfunction(env) else vecenv_workload(lambda: env)


@built("vecenv")
def test_env_steps_are_those_of_the_envs(build: Build, envs: SimpleNamespace) -> None:
    """Resets are no steps, in whichever call they happen, and no env is stepped after its episode's end."""
    workload = stepping(build(N_ENVS))
    assert (workload.items, workload.unit, workload.component) == (N_ENVS, "env step", "vecenv_step")
    assert_counts(workload, lambda: envs.steps)
    assert envs.resets > 20
    workload.close()


@built("vecenv", "native_vecenv")
def test_phases_of_a_step(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes actions that were drawn before, and steps."""
    gymnasium = pytest.importorskip("gymnasium")
    workload = stepping(build(N_ENVS))
    workload.check()
    for space in (gymnasium.spaces.Box, gymnasium.spaces.Discrete, gymnasium.spaces.MultiDiscrete):
        monkeypatch.setattr(space, "sample", lambda *_: pytest.fail("draws an action within a call"))
    phases = harvested(workload, 3)
    assert {"action", "env_step"} <= {path for path in phases if "/" not in path} <= {"action", "env_step", "reset"}
    assert phases["env_step"].count == 1
    workload.close()


@built("replay")
def test_a_batch(build: Build) -> None:
    """A batch has as many transitions as it should, it is one phase, and the next one is another."""
    workload = replay_workload(build(TRANSITIONS), BATCH_SIZE)
    workload.check()
    assert (workload.items, workload.unit, workload.processed(3)) == (BATCH_SIZE, "transition", 3 * BATCH_SIZE)
    assert {path: phase.count for path, phase in harvested(workload, 3).items()} == {"sample": 1}
    first, second = (arrays_in(workload.call())[0][1] for _ in range(2))
    assert not bool((first == second).all())


def halved(sample: Callable[..., Any]) -> Callable[..., Any]:

    def half(value: Any) -> Any:
        return value // 2 if isinstance(value, int) and value == BATCH_SIZE else value

    def sampled(*args: Any, **kwargs: Any) -> Any:
        return sample(*map(half, args), **{name: half(value) for name, value in kwargs.items()})

    return sampled


@built("replay")
def test_half_a_batch(build: Build) -> None:
    """A buffer that draws fewer transitions than it should is faster, and wrong."""
    holder = SimpleNamespace(buffer=build(TRANSITIONS))
    replace_method(holder, holder.buffer, "sample", halved)
    with pytest.raises(ComponentError, match=rf"wrong size: .* has shape \({BATCH_SIZE // 2}.*expected {BATCH_SIZE}"):
        replay_workload(holder.buffer, BATCH_SIZE).check()


@built("gae")
@pytest.mark.parametrize(("n_steps", "n_envs"), [(64, N_ENVS), (2, 1)])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_advantages(build: Build, n_steps: int, n_envs: int, backend: str) -> None:
    """They are float64's, of one env and of several, and calls leave the rollout as it was."""
    workload = gae_workload(build(n_steps, n_envs), n_steps, n_envs, backend)
    workload.check()
    assert (workload.items, workload.unit) == (n_steps * n_envs, "transition")
    assert {path: phase.count for path, phase in harvested(workload, 3).items()} == {"gae": 1}
    workload.check()


def updater_of(agent: Any) -> Updater:
    """Return an agent's adapter; where it has none, the test is skipped."""
    make = adapter_for(lambda library: library.sac, agent)
    if make is None:
        pytest.skip("has no adapter")
    made: Updater = make(agent, BATCH_SIZE)
    return made


@built("sac")
def test_an_update(build: Build) -> None:
    """It is one step of every optimizer, cut into its parts from outside."""
    workload = sac_workload(build(TRANSITIONS), BATCH_SIZE)
    workload.check()
    assert (workload.items, workload.unit, workload.processed(2)) == (1, "update", 2)
    with counted_steps() as steps:
        phases = harvested(workload, 3)
    parts = {path.split("/")[1]: phase.count for path, phase in phases.items() if path.count("/") == 1}
    assert {"sample", "target_q"} <= parts.keys()
    if len(steps) > 3:  # else one optimizer trains all parts
        assert parts.keys() == {"sample", "target_q", "critic", "actor", "alpha", "polyak"}
    assert parts["sample"] == 1
    assert sum(phase.count for path, phase in phases.items() if path.endswith("/step")) == len(steps) / 3


@built("replay", "sac", "ppo", "ppo_update")
def test_a_size_that_an_object_has_need_not_be_given(build: Build) -> None:
    """A batch's or a rollout's: what the object itself has is measured, and without a size it is asked for."""
    component = build.__name__.partition("_")[2]
    made_by: dict[str, tuple[Build, str]] = {
        "replay": (replay_workload, "batch_size"),
        "sac": (sac_workload, "batch_size"),
        "ppo": (ppo_workload, "n_steps"),
        "ppo_update": (ppo_update_workload, "n_steps"),
    }
    workload, name = made_by[component]
    made = build(TRANSITIONS) if name == "batch_size" else build(N_ENVS, N_STEPS)
    if inspect.isfunction(made):
        pytest.skip("a function has no size")
    if build.__name__ in SIZED:
        workload(made).check()
        return
    with pytest.raises(ComponentError, match=f"also needs {name}="):
        workload(made)


@built("sac")
def test_optimizer_steps(build: Build, wording: Wording) -> None:
    """An adapter knows how many there are, and an update that takes more is no gradient step."""
    torch = pytest.importorskip("torch")
    agent = build(TRANSITIONS)
    updater = updater_of(agent)
    with counted_steps() as steps:
        updater.update()
    assert len(steps) == updater.steps
    step = torch.optim.Adam.step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", lambda self: (step(self), step(self)))
        with wording.raises(ComponentError):
            sac_workload(agent, BATCH_SIZE).check()


@built("sac")
def test_an_update_that_learns_nothing(build: Build, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """All but the optimizers' steps is no update."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: None)
    with wording.raises(ComponentError):
        sac_workload(build(TRANSITIONS), BATCH_SIZE).check()


@built("sac")
def test_an_update_of_half_a_batch(build: Build) -> None:
    """The buffer sees how much an update draws."""
    agent = build(TRANSITIONS)
    updater = updater_of(agent)
    for buffer in updater.buffers:
        replace_method(updater.owner, buffer, "sample", halved)
    with pytest.raises(ComponentError, match=f"{BATCH_SIZE // 2}.* transitions, expected .*{BATCH_SIZE}"):
        sac_workload(agent, BATCH_SIZE).check()


def collecting(agent: Any) -> Workload:
    """Return the workload of a library's agent, or of the function that collects."""
    return (
        ppo_workload(agent, None, N_ENVS * N_STEPS) if inspect.isfunction(agent) else ppo_workload(agent, N_STEPS, None)
    )


@built("ppo")
def test_env_steps_of_a_rollout(build: Build, envs: SimpleNamespace) -> None:
    """A rollout is of as many env steps as its envs have taken."""
    workload = collecting(build(N_ENVS, N_STEPS))
    before = envs.steps
    workload.check()
    assert workload.processed(1) == envs.steps - before
    for calls in (1, 1, 3):
        before = envs.steps
        for _ in range(calls):
            if workload.setup is not None:
                workload.setup()
            workload.call()
        assert workload.processed(calls) == envs.steps - before
    assert envs.resets > N_ENVS


@built("ppo", "native_ppo")
def test_phases_of_a_rollout(build: Build) -> None:
    """Policy, envs, storing and GAE are seen from outside, by the steps that they are of."""
    agent = build(N_ENVS, N_STEPS)
    if inspect.isfunction(agent):
        pytest.skip("a function collects, of which no phases are known")
    workload = collecting(agent)
    workload.check()
    phases = harvested(workload, 3)
    assert {"policy", "env_step", "store", "gae"} <= {path.split("/")[1] for path in phases if "/" in path}
    assert (phases["ppo_collect/env_step"].count, phases["ppo_collect/gae"].count) == (N_STEPS, 1)


def roller_of(agent: Any) -> Roller:
    """Return an agent's adapter; where it has none, the test is skipped."""
    make = adapter_for(lambda library: library.ppo, agent)
    if make is None:
        pytest.skip("has no adapter")
    made: Roller = make(agent, N_STEPS)
    return made


@built("ppo")
def test_a_rollout_of_another_policy(build: Build, wording: Wording) -> None:
    """A rollout that was made before the policy changed is none of the policy's."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)  # of the networks' parameters, and of the noise below
    agent = build(N_ENVS, N_STEPS)
    roller = roller_of(agent)
    rollout = roller.collect()
    roller.check(rollout)
    with torch.no_grad():
        for policy in policies_of(agent):
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter))
    with wording.raises(ComponentError):
        roller.check(rollout)


def policies_of(agent: Any) -> list[Any]:
    """Return the policies of an agent, a trainer of agents, or a collector."""
    held = [getattr(agent, name, None) for name in ("policy", "agents", "_orig_policy")]
    held.append(getattr(held[1], "policy", None))
    found = [each for each in held if hasattr(each, "parameters")]
    assert found
    return found


@built("ppo")
def test_a_rollout_without_numbers(build: Build, wording: Wording) -> None:
    """A reward that is no number is found."""
    agent = build(N_ENVS, N_STEPS)
    roller = roller_of(agent)
    rollout = roller.collect()
    rewards = next(array for path, array in arrays_in(rollout) if "reward" in path)
    rewards[0] = float("nan")
    with wording.raises(ComponentError):
        roller.check(rollout)


def learner_from(build: Build) -> Any:
    """Return an agent that learns; where the builder's only collects, the test is skipped."""
    agent = build(N_ENVS, N_STEPS)
    if adapter_for(lambda library: library.learn, agent) is None and not hasattr(agent, "update"):
        pytest.skip("collects alone")
    return agent


@built("ppo", "ppo_update")
def test_a_ppo_update(build: Build) -> None:
    """It is the same work every time, in parts that are seen from outside or have timers."""
    torch = pytest.importorskip("torch")
    agent = learner_from(build)
    workload = ppo_update_workload(agent, N_STEPS, None)
    workload.check()
    assert (workload.items, workload.unit, workload.component) == (1, "update", "ppo_update")
    assert workload.setup is not None
    begun, counts = [], []
    for _ in range(3):
        workload.setup()
        begun.append([tensor.detach().clone() for tensor in trained_by(agent)])
        with counted_steps() as steps:
            workload.call()
        counts.append(len(steps))
    assert len(set(counts)) == 1
    assert all(torch.equal(first, last) for first, last in zip(begun[0], begun[-1], strict=True))
    phases = harvested(workload, 2)
    assert {"forward", "backward", "step"} <= {path.split("/")[1] for path in phases if "/" in path}
    assert phases["ppo_update/step"].count == counts[0]


def trained_by(agent: Any) -> list[Any]:
    return [tensor for _, (_, tensor) in sorted(trainable(agent).items())]


@built("ppo", "ppo_update")
def test_a_ppo_update_that_learns_nothing(build: Build, monkeypatch: pytest.MonkeyPatch, wording: Wording) -> None:
    """All but the optimizers' steps is no update."""
    torch = pytest.importorskip("torch")
    workload = ppo_update_workload(learner_from(build), N_STEPS, None)
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self, closure=None: None)
    with wording.raises(ComponentError):
        workload.check()


@built("ppo", "ppo_update")
def test_a_whole_iteration(build: Build, envs: SimpleNamespace, wording: Wording) -> None:
    """It takes the env steps that its envs take, in two parts, with nothing else on the machine."""
    agent = learner_from(build)
    has_rewards = type(agent).__name__ != "TorchRLPPO"  # that are among a rollout's own names
    workload = train_workload(agent, N_STEPS, None if has_rewards else N_ENVS * N_STEPS)
    if type(agent).__module__.startswith("skrl."):
        with wording.raises(ComponentError):
            workload.check()
        return
    before = envs.steps
    workload.check()
    assert workload.processed(1) == envs.steps - before
    before = envs.steps
    phases = harvested(workload, 2)
    assert workload.processed(2) == envs.steps - before
    assert phases["train/collect"].count == 1
    assert (workload.unit, workload.component, workload.whole_machine) == ("env step", "train", True)
