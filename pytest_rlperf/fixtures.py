"""The fixtures: each turns what a test points at into a workload and hands it to the engine of this process.

PYTEST_DONT_REWRITE: a worker has it loaded before pytest is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from pytest_rlperf.options import check_markers

if TYPE_CHECKING:
    from pytest_rlperf.model import Measure, Result, Workload


class Engine(Protocol):
    """What a fixture's call does with its workload: measure it here, for a coordinator, or just run it once."""

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Return the result, or raise what makes the test fail."""


ENGINE = pytest.StashKey[Engine]()


class RunOnce:
    """The engine of a run without ``--rlperf``: the component runs once, unmeasured, and is checked."""

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Check the component and return a result without figures."""
        __tracebackhide__ = True
        from pytest_rlperf.model import Result

        try:
            workload.check()
        finally:
            workload.close()
        return Result(
            nodeid=result_key(item),
            component=workload.component,
            unit=workload.unit,
            items=workload.items,
            workers=(),
            phases=(),
            traced_call_s=0.0,
            notes=(),
        )


def is_measured(item: pytest.Item) -> bool:
    """Whether a test uses one of the fixtures below, itself or through another fixture."""
    return not NAMES.isdisjoint(getattr(item, "fixturenames", ()))


def result_key(item: pytest.Item) -> str:
    """Return what a test's result is stored under: its node id, or with --pyargs its module's name and the rest."""
    if not item.config.getoption("pyargs", False):
        return item.nodeid
    module = getattr(item, "module", None)
    _, separator, rest = item.nodeid.partition("::")
    return item.nodeid if module is None else f"{module.__name__}{separator}{rest}"


class _Measurement:
    """One test's one call of a fixture."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._engine = request.config.stash.get(ENGINE, None) or RunOnce()
        self._item: pytest.Item = request.node
        check_markers(self._item)  # a typo in a marker is told in every run, not only where it would count
        self._used = False

    def __call__(self, workload: Callable[[], Workload]) -> Result:
        __tracebackhide__ = True
        if self._used:
            from pytest_rlperf.errors import MeasurementError

            raise MeasurementError(
                f"{self._item.name} calls an rlperf fixture a second time; a test measures one component, so that its "
                "verdict is the component's: parametrize it, or write two tests"
            )
        self._used = True
        return self._engine.measure(workload(), self._item)


@pytest.fixture
def _rlperf_measurement(request: pytest.FixtureRequest) -> _Measurement:
    return _Measurement(request)


@pytest.fixture
def rlperf(_rlperf_measurement: _Measurement) -> Measure:
    """Measure any callable: ``rlperf(fn, items=1024, unit="transition", setup=…, check=…)``.

    ``items`` is how many things of ``unit`` one call processes. ``setup`` runs untimed before each call. ``check`` is
    given what ``fn`` returned, once, untimed, and raises where that is wrong.
    """

    def measure(
        fn: Callable[[], Any],
        *,
        items: float = 1,
        unit: str = "call",
        setup: Callable[[], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
    ) -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.thunk import thunk_workload

            return thunk_workload(fn, items=items, unit=unit, setup=setup, check=check)

        return _rlperf_measurement(make)

    return measure


@pytest.fixture
def rlperf_vecenv_step(_rlperf_measurement: _Measurement) -> Measure:
    """Measure a vector env's step: ``rlperf_vecenv_step(env)``, or a thunk making one, or stepping ``num_envs``."""

    def measure(env: Any, num_envs: int | None = None) -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.vecenv import vecenv_workload

            return vecenv_workload(env, num_envs)

        return _rlperf_measurement(make)

    return measure


@pytest.fixture
def rlperf_replay_sample(_rlperf_measurement: _Measurement) -> Measure:
    """Measure a replay buffer's sample: ``rlperf_replay_sample(buffer, batch_size=256)``, or a thunk's batch."""

    def measure(buffer: Any, batch_size: int) -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.replay import replay_workload

            return replay_workload(buffer, batch_size)

        return _rlperf_measurement(make)

    return measure


@pytest.fixture
def rlperf_gae(_rlperf_measurement: _Measurement) -> Measure:
    """Measure a GAE function: ``rlperf_gae(compute_gae, n_steps=128, n_envs=8, backend="numpy")``."""

    def measure(function: Callable[..., Any], n_steps: int, n_envs: int, backend: str = "numpy") -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.gae import gae_workload

            return gae_workload(function, n_steps, n_envs, backend)

        return _rlperf_measurement(make)

    return measure


@pytest.fixture
def rlperf_sac_update(_rlperf_measurement: _Measurement) -> Measure:
    """Measure one SAC gradient step: ``rlperf_sac_update(agent, batch_size=256)``, or a thunk doing one."""

    def measure(agent: Any, batch_size: int | None = None) -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.sac import sac_workload

            return sac_workload(agent, batch_size)

        return _rlperf_measurement(make)

    return measure


@pytest.fixture
def rlperf_ppo_collect(_rlperf_measurement: _Measurement) -> Measure:
    """Measure one PPO rollout: ``rlperf_ppo_collect(agent, n_steps=128)``, or a thunk with ``items=``."""

    def measure(agent: Any, n_steps: int | None = None, items: float | None = None) -> Result:
        __tracebackhide__ = True

        def make() -> Workload:
            __tracebackhide__ = True
            from pytest_rlperf.components.ppo import ppo_workload

            return ppo_workload(agent, n_steps, items)

        return _rlperf_measurement(make)

    return measure


NAMES = frozenset(
    {"rlperf", "rlperf_vecenv_step", "rlperf_replay_sample", "rlperf_gae", "rlperf_sac_update", "rlperf_ppo_collect"}
)
