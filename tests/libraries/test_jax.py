"""JAX's calls, which return before their work is done: timed until it is, in virtual time, and in JAX where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from example import Example
from msgspec.structs import replace
from virtual_jax import DISPATCH_S, VirtualArray, VirtualJax, loaded
from wording import Wording

from pytest_rlperf.devices import clock_for, devices_of
from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.model.device import Pace
from pytest_rlperf.model.measured import SliceKind, SliceRecord, Workload
from pytest_rlperf.timers import hierarchical_timer
from pytest_rlperf.wire import WarmUp
from pytest_rlperf.worker.device_state import Jax
from pytest_rlperf.worker.meter import Meter
from pytest_rlperf.worker.rounds import Clocks

WORK_S = 0.075


@pytest.fixture
def jax() -> Iterator[VirtualJax]:
    with loaded(VirtualJax(devices=2)) as module:
        yield module


def workload_of(call: Callable[[], object], pace: Pace = Pace.LATENCY) -> Workload:
    return Workload("callable", call, 1.0, "call", check=call, holds=(call,), pace=pace)


def metered(jax: VirtualJax, workload: Workload) -> Meter:
    idle = {kind: lambda: jax.clock.advance(50e-6) for kind in (SliceKind.INTERPRETER, SliceKind.MEMORY)}
    meter = Meter(workload, lambda: idle, Clocks(jax.clock, jax.clock, 76.0))
    meter.check()
    meter.warm_up(WarmUp(1.0))
    return meter


def taken(jax: VirtualJax, call: Callable[[], object], pace: Pace = Pace.LATENCY) -> SliceRecord:
    return metered(jax, workload_of(call, pace)).take(SliceKind.PLAIN)


def test_a_call_is_timed_until_its_output_is_ready(jax: VirtualJax) -> None:
    """A call returns after its dispatch, 5 µs; host and device overlap in calls that follow each other."""

    def step() -> VirtualArray:
        jax.clock.advance(30e-6)
        return jax.compute(100e-6)

    record = taken(jax, step)
    assert record.call_s == pytest.approx(30e-6 + DISPATCH_S + 100e-6)
    assert record.device is not None
    assert (record.device.device, record.device.pace) == ("jax cpu:0", Pace.LATENCY)
    assert taken(jax, step, Pace.STEADY).call_s == pytest.approx(100e-6, rel=0.01)


def test_the_wait_for_a_pure_function_is_for_its_output_alone(jax: VirtualJax) -> None:
    """Where the output has all that a call makes, no other computation is run to wait for."""
    meter = metered(jax, workload_of(lambda: {"params": [jax.compute(WORK_S)], "loss": (jax.compute(0.0),)}))
    before = jax.computations
    record = meter.take(SliceKind.PLAIN)
    setups = record.calls  # each of which waits too, with no output to wait for
    assert jax.computations - before == 2 * record.calls + setups


def test_a_call_that_compiles_tells_how_long_a_start_takes_and_the_next_one_how_long_a_call_does(
    jax: VirtualJax,
) -> None:
    """Compiling would be taken for a call's work, and leave no time for others; items are the second call's alone."""
    uncounted: list[float] = []
    compiling_s = [20.0]

    def collect() -> VirtualArray:
        jax.clock.advance(compiling_s.pop() if compiling_s else 0.0)
        uncounted.append(8.0)
        return jax.compute(WORK_S)

    def steps() -> float:
        counted = sum(uncounted)
        uncounted.clear()
        return counted

    workload = replace(workload_of(collect), count=steps)
    meter = Meter(workload, dict, Clocks(jax.clock, jax.clock, 76.0))
    first_s, second_s = meter.check()
    assert first_s == pytest.approx(20.0 + WORK_S, rel=0.01)
    assert second_s == pytest.approx(WORK_S, rel=0.01)
    assert workload.processed(1) == 8.0
    assert meter.warm_up(WarmUp(0.0)).call_s == pytest.approx(WORK_S, rel=0.01)


class Agent:
    """An agent that keeps the parameters which an update makes."""

    def __init__(self, jax: VirtualJax, returns: str) -> None:
        self._jax = jax
        self._returns = returns
        self.params = jax.compute(0.0)

    def update(self) -> object:
        loss, self.params = self._jax.compute(0.0), self._jax.compute(WORK_S)
        loss.donate() if self._returns == "a donated array" else None
        return loss if "array" in self._returns else None


@pytest.mark.parametrize("returns", ["nothing", "an array", "a donated array"])
def test_what_a_call_keeps_is_waited_for(jax: VirtualJax, returns: str) -> None:
    """Parameters that stay in the agent are a call's work as much as the loss that it returns."""
    assert taken(jax, Agent(jax, returns).update).call_s == pytest.approx(WORK_S, rel=0.01)
    assert taken(jax, Agent(jax, returns).update, Pace.STEADY).call_s == pytest.approx(WORK_S, rel=0.01)


def test_donated_buffers_are_not_waited_for_again(jax: VirtualJax) -> None:
    """The output of one call goes into the next, which takes its memory."""
    state = [jax.compute(0.0)]

    def step() -> VirtualArray:
        (before,) = state
        before.donate()
        state[:] = [jax.compute(WORK_S)]
        return state[0]

    for pace in Pace:
        assert taken(jax, step, pace).call_s == pytest.approx(WORK_S, rel=0.01)


@pytest.mark.parametrize("place", ["output", "module", "closure", "donated"])
def test_arrays_are_found(jax: VirtualJax, place: str) -> None:
    """In the output, in what the call refers to, or in a place that nothing leads to."""
    module: Any = ModuleType("theirs")
    held = jax.compute(0.0)
    if place == "donated":
        held.donate()

    def kept() -> None:
        module.state = jax.compute(WORK_S)

    calls: dict[str, Callable[[], object]] = {
        "output": lambda: {"advantages": jax.compute(WORK_S)},
        "module": kept,
        "closure": lambda: (held, module.step())[1],
        "donated": lambda: (held, module.step())[1],
    }
    module.step = lambda: (jax.compute(WORK_S), None)[1]
    assert taken(jax, calls[place]).call_s == pytest.approx(DISPATCH_S + WORK_S, rel=0.01)


def test_a_computation_that_fails_is_an_error_of_the_test(jax: VirtualJax, wording: Wording) -> None:
    """The error comes with the wait, and names the device and the cause."""
    call = workload_of(lambda: jax.compute(WORK_S, error="INTERNAL: CpuCallback error: no such file"))
    meter = Meter(call, dict, Clocks(jax.clock, jax.clock, 76.0))
    with wording.raises(MeasurementError):
        meter.check()


def test_code_compiled_within_a_slice_disturbs_it(jax: VirtualJax) -> None:
    """A function that is traced again for another shape is a slice to take again."""
    compiles = [False]

    def step() -> VirtualArray:
        if compiles.pop() if compiles else False:
            jax.compile()
        return jax.compute(WORK_S)

    meter = metered(jax, workload_of(step))
    compiles.append(True)
    record = meter.take(SliceKind.PLAIN)
    assert record.device is not None
    assert (record.device.retaken, record.device.disturbances) == (1, ())
    assert record.device.flags == {
        "model": "virtual",
        "jax_default_matmul_precision": "None",
        "jax_enable_x64": "False",
        "jax_disable_jit": "False",
    }


def test_phases_wait_at_their_edges(jax: VirtualJax) -> None:
    """A phase has the work that it starts, as far as one device's order shows it."""

    def update() -> VirtualArray:
        with hierarchical_timer("critic"):
            loss = jax.compute(0.25 * WORK_S)
        with hierarchical_timer("actor"):
            return jax.compute(0.75 * WORK_S) if loss else loss

    record = metered(jax, workload_of(update)).take(SliceKind.TRACED)
    spans_s = {phase.path: phase.on_device.span_s for phase in record.phases if phase.on_device is not None}
    assert spans_s == {
        "critic": pytest.approx(0.25 * WORK_S, rel=0.01),
        "actor": pytest.approx(0.75 * WORK_S, rel=0.01),
    }


def test_arrays_of_jax_are_ready_when_a_round_ends() -> None:
    """All that a call made is ready: what it returns, keeps, or has donated to the next call."""
    jax: Any = pytest.importorskip("jax")
    jnp = jax.numpy

    long = jax.jit(lambda x: jax.lax.fori_loop(0, 200_000, lambda _, y: 0.999 * y + 1, x))
    donating = jax.jit(lambda x: jax.lax.fori_loop(0, 200_000, lambda _, y: 0.999 * y + 1, x), donate_argnums=0)
    agent = SimpleNamespace(state=donating(jnp.ones(8)), kept=jnp.ones(8))

    def pure() -> Any:
        return {"y": long(agent.kept)}

    def stateful() -> Any:
        agent.state = donating(agent.state)
        return jnp.mean(agent.kept)

    def lost() -> None:
        agent.state = donating(agent.state)

    for call in (pure, stateful, lost):
        clock = clock_for(devices_of([call]))
        driver: Any = clock.__dict__["driver"]
        kept = driver.keeping(call)
        for _ in range(6):
            for _ in range(3):
                kept()
            made = [agent.state, *jax.tree_util.tree_leaves(driver._output)]
            driver.synchronize()
            assert all(array.is_ready() for array in made)
        assert driver._returns_all == (call is pure)


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_jax_is_measured(pytester: pytest.Pytester, alone: None) -> None:
    """A function of NumPy's arrays is found by its output, and its report has both paces and the settings."""
    pytester.makepyfile(
        """
        import jax
        import numpy as np

        def test_scale(rlperf):
            scale, rows = jax.jit(lambda x: 2 * x), np.ones((64, 64), np.float32)
            rlperf(lambda: scale(rows))
        """
    )
    result = pytester.runpytest_subprocess(
        "--rlperf", "--rlperf-max-time=5", "-v", "-p", "no:cacheprovider", timeout=120
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*device *jax cpu:0*", "*latency (judged) *", "*settings *model=cpu, jax_default*"])


@pytest.mark.skipif(find_spec("jax") is None, reason="needs jax")
def test_a_side_has_a_compilation_cache_of_its_own(tmp_path: Path, alone: None) -> None:
    """Also where JAX, which reads its variable when it is imported, was imported before the fork."""
    test = """
        import os, jax
        from planner import plan

        def test_plan(rlperf):
            cache = jax.config.jax_compilation_cache_dir
            assert cache == os.environ["JAX_COMPILATION_CACHE_DIR"] != os.environ["SHARED"]
            with open(os.environ["SEEN"], "a") as file:
                print(cache, file=file)
            rlperf(lambda: plan(1.0))
        """
    shared = tmp_path / "shared"
    example = Example(tmp_path, {"planner.py": "import jax\nplan = jax.jit(lambda x: x * 2)\n", "test_plan.py": test})
    example.commit()
    example.write({"planner.py": "import jax\nplan = jax.jit(lambda x: x + x)\n"})
    example.env |= {"SEEN": str(tmp_path / "seen"), "SHARED": str(shared), "JAX_COMPILATION_CACHE_DIR": str(shared)}
    run = example.pytest(
        "--rlperf-against=HEAD", "-o", "rlperf_pairs=2..2", "--rlperf-max-time=2", "--rlperf-tolerance=90%"
    )
    assert run.statuses.keys() == {"test_plan"}, run.text
    assert "ERROR" not in run.statuses.values(), run.text
    assert len(set((tmp_path / "seen").read_text(encoding="utf-8").splitlines())) == 2
    assert not shared.exists()


def test_arrays_and_compilations_of_jax() -> None:
    """Keys, tracers and deleted arrays have the places they have, and what is compiled is counted."""
    jax: Any = pytest.importorskip("jax")
    jnp = jax.numpy

    library = Jax()
    gone = jnp.ones(3)
    gone.delete()
    traced: list[object] = []

    def tracing(x: Any) -> Any:
        traced.append(x)
        return x

    jax.jit(tracing)(jnp.ones(5))
    assert library.recompiles() >= 1
    assert devices_of([gone]) == devices_of([jax.random.key(0)]) == ("jax cpu:0",)
    assert devices_of(traced) == ()
    assert devices_of([jax]) == ()
