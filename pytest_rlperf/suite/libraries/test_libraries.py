"""The five components of every library that is installed; what the reference's tests measure already is theirs.

A test here and one of the reference's by the same name and sizes are one row of the table that the run ends with.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from pytest_rlperf import Measure
from pytest_rlperf.components.libraries import BASIS, libraries
from pytest_rlperf.components.samples import BATCH_SIZE, IN_AGENT, IN_BUFFER

Build: TypeAlias = Callable[..., Any]


def built(component: str) -> pytest.MarkDecorator:
    """Run a test on every library that has a builder of a component."""
    having = [(library, component) for library in libraries() if getattr(library.samples, component)]
    return pytest.mark.parametrize("build", having, indirect=True, ids=[library.name for library, _ in having])


@pytest.fixture
def build(request: pytest.FixtureRequest) -> Build:
    """Return the builder of a library's component; where the library is not installed the test is skipped."""
    library, component = request.param
    for module, requirement in (("gymnasium", BASIS), ("torch", BASIS), (library.module, library.requirement)):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install '{requirement}'")
    found: Build = getattr(library.samples, component)
    return found


@pytest.mark.parametrize("num_envs", [8, 64])
@built("vecenv")
def test_vecenv_step_synthetic(rlperf_vecenv_step: Measure, build: Build, num_envs: int) -> None:
    """One step of every env, in one process, of a cheap environment with 17 observations and 6 actions."""
    env = build(num_envs)
    if inspect.isfunction(env):
        rlperf_vecenv_step(env, num_envs=num_envs)
    else:
        rlperf_vecenv_step(lambda: env)


@pytest.mark.parametrize("num_envs", [8, 64])
@built("native_vecenv")
def test_vecenv_step(rlperf_vecenv_step: Measure, build: Build, num_envs: int) -> None:
    """One step of every env of a library's own CartPole, on one thread."""
    rlperf_vecenv_step(lambda: build(num_envs))


@built("replay")
def test_replay_sample(rlperf_replay_sample: Measure, build: Build) -> None:
    """One batch of a ring buffer, in the arrays that the library hands out."""
    rlperf_replay_sample(build(IN_BUFFER), batch_size=BATCH_SIZE)


@pytest.mark.parametrize(("n_steps", "n_envs"), [(128, 8), (2048, 64)])
@built("gae")
def test_gae(rlperf_gae: Measure, build: Build, n_steps: int, n_envs: int) -> None:
    """Advantages of a rollout in the library's own layout."""
    rlperf_gae(build(n_steps, n_envs), n_steps=n_steps, n_envs=n_envs)


@built("sac")
def test_sac_update(rlperf_sac_update: Measure, build: Build) -> None:
    """One gradient step of critics, actor and temperature, and of the targets."""
    rlperf_sac_update(build(IN_AGENT), batch_size=BATCH_SIZE)


@built("ppo")
def test_ppo_collect_synthetic(rlperf_ppo_collect: Measure, build: Build) -> None:
    """One rollout of 128 steps of 8 cheap environments, with its advantages."""
    collect(rlperf_ppo_collect, build(8, 128))


@built("native_ppo")
def test_ppo_collect(rlperf_ppo_collect: Measure, build: Build) -> None:
    """One rollout of 128 steps of 8 of the library's own CartPoles, with its advantages."""
    collect(rlperf_ppo_collect, build(8, 128))


def collect(measure: Measure, agent: object) -> None:
    """Measure an agent's rollout of 128 steps of 8 envs, or a function's."""
    if inspect.isfunction(agent):
        measure(agent, items=8 * 128)
    else:
        measure(agent, n_steps=128)
