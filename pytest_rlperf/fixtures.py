"""The fixtures: each makes a workload of the component that a test gives it, and lets this process measure it.

The hooks here are for the tests that use them.

PYTEST_DONT_REWRITE: a worker loads it before pytest.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import wraps
from inspect import signature, unwrap
from typing import TYPE_CHECKING, Any

import pytest

from pytest_rlperf.errors import ComponentError, MeasurementError, did_you_mean, for_log, see
from pytest_rlperf.options import check_markers, usage_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_rlperf.model.measured import Measure, Result, Workload


ENGINE: pytest.StashKey[Callable[[Workload, pytest.Item], Result]] = pytest.StashKey()
"""The function that measures a fixture's workload in its test, here or on a run's orders, and returns the result."""

_CALLED = pytest.StashKey[bool]()  # whether a test has measured its component

_OF_OBJECTS = {"gae", "ppo", "ppo_update", "replay", "sac", "train"}  # which call no class, as a function would be

CALLS = {
    "rlperf": "rlperf(function)",
    "rlperf_vecenv_step": "rlperf_vecenv_step(env)",
    "rlperf_replay_sample": "rlperf_replay_sample(buffer)",
    "rlperf_gae": "rlperf_gae(compute_gae)",
    "rlperf_sac_update": "rlperf_sac_update(agent)",
    "rlperf_ppo_collect": "rlperf_ppo_collect(agent)",
    "rlperf_ppo_update": "rlperf_ppo_update(agent)",
    "rlperf_train": "rlperf_train(agent)",
    "rlperf_import": 'rlperf_import("my_library")',
}
"""The fixtures below, each with the call that a test makes."""


def run_once(workload: Workload, item: pytest.Item) -> Result:
    """Check the component, as runs without ``--rlperf`` do, and return a result without figures."""
    __tracebackhide__ = True
    from pytest_rlperf.model.measured import Result

    try:
        workload.check()
        items = workload.processed(1)
    finally:
        workload.close()
    return Result(result_key(item), workload.component, workload.unit, items, workers=())


def is_measured(item: pytest.Item) -> bool:
    """Whether a test uses one of the fixtures below, itself or through another fixture."""
    return not CALLS.keys().isdisjoint(getattr(item, "fixturenames", ()))


def asks_late(item: pytest.Item) -> str:
    """Return the name of a fixture below that a test, or a fixture of its own, asks for only while it runs; else ""."""
    if is_measured(item) or not isinstance(item, pytest.Function):
        return ""
    definitions = (each for all_of_a_name in item._fixtureinfo.name2fixturedefs.values() for each in all_of_a_name)
    for function in (item.function, *(each.func for each in definitions)):
        code = getattr(unwrap(function), "__code__", None)
        if code is not None and "getfixturevalue" in code.co_names:
            named = next((name for name in code.co_consts if isinstance(name, str) and name in CALLS), "")
            if named:
                return named
    return ""


def result_key(item: pytest.Item) -> str:
    """Return the key of a test's result: its node id, or with --pyargs its module's name and the rest.

    Files hold it, so bytes of a path that are not UTF-8 are escaped.
    """
    module = getattr(item, "module", None) if item.config.getoption("pyargs", False) else None
    _, separator, rest = item.nodeid.partition("::")
    key = item.nodeid if module is None else f"{module.__name__}{separator}{rest}"
    return key.encode("utf-8", "backslashreplace").decode()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read a test's markers before its fixtures take their time: a typo fails it in every run, measured or not."""
    item.stash[_CALLED] = False
    if is_measured(item):
        try:
            check_markers(item)
            _refuse_many_examples(item)
        except pytest.UsageError as error:
            raise pytest.fail.Exception(str(error), pytrace=False) from None


def _refuse_many_examples(item: pytest.Item) -> None:
    """Raise UsageError for a test of Hypothesis, which would measure a component for each example."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        raise usage_error(
            f"{item.name}: @given calls a test with many examples, and an rlperf fixture measures one call: use the "
            f"fixture in its own test, and parametrize that test{see('writing-tests.md#which-tests')}"
        )


def claim(item: pytest.Item) -> None:
    """Note that a test measures its component; MeasurementError the second time."""
    __tracebackhide__ = True
    if item.stash.get(_CALLED, False):
        raise MeasurementError(
            f"{item.name} calls an rlperf fixture twice; a test measures one component, so that its verdict is the "
            f"component's: parametrize it, or write two tests{see('writing-tests.md#which-tests')}"
        )
    item.stash[_CALLED] = True


def _measuring(request: pytest.FixtureRequest, component: str) -> Measure:
    """Return a fixture's value: a function that makes a workload of its arguments, and measures it."""
    from pytest_rlperf.components import find_workload

    make = find_workload(component)

    @wraps(make)
    def measure(*args: Any, phases: Any = None, **kwargs: Any) -> Result:
        __tracebackhide__ = True
        claim(request.node)
        try:
            measured = _first(make, args, kwargs, str(request.fixturename))
            if isinstance(measured, type) and component in _OF_OBJECTS:
                name = measured.__qualname__
                raise ComponentError(
                    f"{request.fixturename} measures an object, not the class {name}: make one, "
                    f"{request.fixturename}({name}(…))"
                )
            workload = make(*args, **kwargs)
            if phases is not None:
                workload = _with_phases(workload, phases, measured)
        except ComponentError as error:
            error.is_certain = error.__cause__ is None
            raise
        return request.config.stash.get(ENGINE, run_once)(workload, request.node)

    measure.__name__ = measure.__qualname__ = str(request.fixturename)  # which a failing test's report shows
    return measure


def _first(make: Callable[..., Workload], args: tuple[Any, ...], kwargs: dict[str, Any], fixture: str) -> Any:
    """Return the argument that is measured; ComponentError if the fixture does not take these arguments."""
    __tracebackhide__ = True
    parameters = signature(make)
    try:
        measured, *_ = parameters.bind(*args, **kwargs).arguments.values()
    except TypeError as error:
        known = [*parameters.parameters, "phases"]
        unknown = next((name for name in kwargs if name not in known), "")
        near = did_you_mean(unknown, known) if unknown else ""
        raise ComponentError(f"{fixture}: {error}{near}{see('writing-tests.md#fixtures')}") from None
    return measured


def _with_phases(workload: Workload, phases: Any, measured: Any) -> Workload:
    """Return a workload with timers around the methods that ``phases`` names, looked up from ``measured``."""
    __tracebackhide__ = True
    from msgspec.structs import replace

    from pytest_rlperf.probes import ProbeError
    from pytest_rlperf.probes.functions import probes_for

    if not isinstance(phases, Mapping):
        raise ComponentError(f"phases={phases!r}: a mapping of names to methods, like {{'critic': 'update_critic'}}")
    try:
        probes = probes_for(phases, getattr(measured, "__self__", measured))
    except ProbeError as error:
        raise ComponentError(str(error)) from None
    return replace(workload, probes=tuple(probes), harvest=None)


def unmet(item: pytest.Item) -> str:
    """Return why a test lacks the fixture below that it names, or nearly names, and the edit that helps; else ""."""
    if not isinstance(item, pytest.Function):
        return ""
    missing = [name for name in item.fixturenames if name not in item._fixtureinfo.name2fixturedefs]
    near = next((name for name in missing if name != "request" and did_you_mean(name, CALLS)), "")
    if near:
        return f"there is no fixture {near!r}{did_you_mean(near, CALLS)}{see('writing-tests.md#fixtures')}"
    parameters = () if is_measured(item) else signature(item.function).parameters
    named = next((name for name in parameters if name in CALLS), "")
    edit = f"in a class that is not a unittest.TestCase, write def {item.name}(self, {named})"
    return named and f"{item.name} does not get the fixture {named!r}: {edit}{see('writing-tests.md#limits')}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure that the test lacks a fixture of ours, and the edit that helps."""
    report = yield
    advice = unmet(item) if report.failed else ""
    if advice:
        report.sections.append(("rlperf", advice))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Warn of a test that passes, has a fixture in its own signature or, in a worker, any, and never called it."""
    yield
    if isinstance(item, pytest.Function) and not item.stash[_CALLED]:
        names = item.fixturenames if ENGINE in item.config.stash else item._fixtureinfo.argnames
        asked = next((name for name in names if name in CALLS), None)
        if asked is not None:
            from pytest_rlperf.report.wording import uncalled

            item.warn(pytest.PytestWarning(for_log(uncalled({item.nodeid: CALLS[asked]}))))


@pytest.fixture
def rlperf(request: pytest.FixtureRequest) -> Measure:
    """Measure any callable: ``rlperf(fn, items=1024, unit="transition", setup=…, check=…)``.

    ``fn`` takes no arguments. One call processes ``items`` items, whose name is ``unit``. ``setup`` runs before each
    call and is not timed. ``check`` receives what ``fn`` returned, once and untimed, and raises if it is wrong.

    ``phases`` names parts of the call, here and for every other fixture: ``{"critic": "update_critic", "sample":
    "buffer.sample"}``. A part is a method, by its path from the measured object, or a function.
    """
    return _measuring(request, "thunk")


@pytest.fixture
def rlperf_vecenv_step(request: pytest.FixtureRequest) -> Measure:
    """Measure an env's step: ``rlperf_vecenv_step(env)``, or a function that makes an env or steps ``num_envs`` envs.

    The fixture knows the vector envs of many libraries. It takes any other that has ``reset()``, ``step(actions)``,
    ``num_envs``, and a space or ``sample_actions()`` to draw actions from. A single env has an action space and no
    ``num_envs``. A functional env of JAX (the interface of gymnax or of Brax) is mapped over ``num_envs`` states, 64
    by default.

    An item is a step of one env; for PettingZoo's parallel and AEC envs it is a step of one agent. Actions are drawn
    beforehand and obey action masks. Calls that only reset an env do not count as its steps.

    Raises ComponentError if a value that a vector env's step returns does not have a row for each env, or if a reward
    of another env is not finite.
    """
    return _measuring(request, "vecenv")


@pytest.fixture
def rlperf_replay_sample(request: pytest.FixtureRequest) -> Measure:
    """Measure ``buffer.sample(batch_size)``: ``rlperf_replay_sample(buffer, batch_size=256)``, or a function for it.

    An item is one of the ``batch_size`` rows. You can leave ``batch_size`` out if the buffer has one itself.

    Raises ComponentError if an array of the batch does not have ``batch_size`` rows.
    """
    return _measuring(request, "replay")


@pytest.fixture
def rlperf_gae(request: pytest.FixtureRequest) -> Measure:
    """Measure a GAE function: ``rlperf_gae(compute_gae)``, by default on 128 steps of 8 envs.

    The function gets a random rollout of float32 arrays of shape (n_steps, n_envs), the last values of shape (n_envs,),
    gamma and lambda, by the names of its parameters. ``dones[t]`` is true if the episode ended with step t. If the
    function also takes ``next_done``, ``dones[t]`` is true if step t is the first one of an episode. A function without
    parameters computes GAE on its own data. An item is one step of one env.

    With ``backend="torch"`` the arrays are tensors. With a ``device`` they are on that device, and calls use several
    rollouts in turn.

    Raises ComponentError if the advantages, which are the first array returned, differ from a float64 computation.
    """
    return _measuring(request, "gae")


@pytest.fixture
def rlperf_sac_update(request: pytest.FixtureRequest) -> Measure:
    """Measure one SAC gradient step: ``rlperf_sac_update(agent, batch_size=256)``, or a function that does one.

    The fixture calls ``agent.update(batch_size)``, with the agent's own ``batch_size`` if you give none, or
    ``agent.update()`` if it takes nothing. An item is one update. If the fixture cannot see what an update trains, use
    ``rlperf(update, unit="update", check=…)``.

    Raises ComponentError if an update changes nothing that the fixture can see, or makes a parameter NaN or infinite.
    """
    return _measuring(request, "sac")


@pytest.fixture
def rlperf_ppo_collect(request: pytest.FixtureRequest) -> Measure:
    """Measure one PPO rollout: ``rlperf_ppo_collect(agent, n_steps=128)``, or a function, with ``items=`` env steps.

    The fixture calls ``agent.collect(n_steps)``, with the agent's own ``n_steps`` if you give none. An item is one step
    of one env.

    Raises ComponentError if an array of the rollout holds NaN or infinity, or does not have ``n_steps`` rows. If the
    agent's env has ``num_envs``, an array may also have ``n_steps × num_envs`` rows or the shape ``(num_envs, n_steps,
    …)``. One additional row is allowed, and an array named last, next or final may have any size.
    """
    return _measuring(request, "ppo")


@pytest.fixture
def rlperf_ppo_update(request: pytest.FixtureRequest) -> Measure:
    """Measure one PPO update: ``rlperf_ppo_update(agent, n_steps=128)``, or a function that does one.

    An update is all epochs and minibatches. The fixture calls ``agent.collect(n_steps)`` once, untimed, with the
    agent's own ``n_steps`` if you give none. Then it calls ``agent.update(rollout)``, ``learn`` or ``train``, without
    the rollout if that takes none. Every call begins with this rollout and with the parameters that collected it. If an
    update uses up the rollout, pass a ``setup`` that restores it: it runs before each call and is not timed.

    Raises ComponentError if an update changes nothing that the fixture can see, or makes a parameter NaN or infinite.
    """
    return _measuring(request, "ppo_update")


@pytest.fixture
def rlperf_train(request: pytest.FixtureRequest) -> Measure:
    """Measure a whole iteration of training: ``rlperf_train(agent, n_steps=128)``, or a function, with ``items=``.

    An iteration collects ``n_steps`` steps of every env (the agent's own number if you give none) and updates, as the
    library's own training does, with its own threads and processes. An item is one step of one env. An agent of your
    own needs ``collect(n_steps)`` and ``update(rollout)``. The test has the machine to itself. Its tolerance is 10 %
    unless a marker sets another one.

    Raises ComponentError if an iteration changes nothing that the fixture can see, or makes a parameter NaN or
    infinite.
    """
    return _measuring(request, "train")


@pytest.fixture
def rlperf_import(request: pytest.FixtureRequest) -> Measure:
    """Measure an import: ``rlperf_import("my_library")`` starts a new interpreter, which imports the module and ends.

    The interpreter has the variables and the path of the side that is measured. The phases are the slowest modules that
    the import loads, each within the module that imported it.

    Raises ComponentError if the import fails.
    """
    return _measuring(request, "imports")
