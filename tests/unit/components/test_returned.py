"""Calls that only start work: what they return is an error of the test."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builders import ONE_CALL
from virtual_gpu import VirtualGPU
from wording import Wording

from pytest_rlperf.components.calls import thunk_workload
from pytest_rlperf.components.checks import finished
from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.updates import replay_workload, sac_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.devices import driving
from pytest_rlperf.errors import ComponentError
from pytest_rlperf.model.measured import Workload


async def train() -> int:
    return 1


async def stream() -> AsyncIterator[int]:
    yield 1


def batches() -> Iterator[int]:
    yield 1


def of_class(module: str, name: str, **members: Any) -> Any:
    return type(name, (), {"__module__": module, **members})()


def pending() -> Any:
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


def submitted() -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(int)


def applied(method: str) -> Any:
    with ThreadPool(1) as pool:
        return pool.map_async(int, "1") if method == "map_async" else pool.imap(int, "1")


CODE: dict[str, Callable[[], object]] = {
    "a coroutine of train": train,
    "an async generator of stream": stream,
    "a generator of batches": batches,
    "a map": lambda: map(int, "1"),
    "multiprocessing.pool.IMapIterator": lambda: applied("imap"),
}
HANDLES: dict[str, Callable[[], object]] = {
    "_asyncio.Future": pending,
    "concurrent.futures._base.Future": submitted,
    "multiprocessing.pool.MapResult": lambda: applied("map_async"),
    "dask.delayed.Delayed": lambda: of_class("dask.delayed", "Delayed", __dask_graph__=lambda self: {}),
    "distributed.client.Future": lambda: of_class("distributed.client", "Future"),
    "ray._raylet.ObjectRef": lambda: of_class("ray._raylet", "ObjectRef"),
    "cupy.ndarray": lambda: of_class("cupy", "ndarray"),
    "mlx.core.array": lambda: of_class("mlx.core", "array"),
    "theirs.Task": lambda: of_class("theirs", "Task", __await__=None),
    "theirs.Array": lambda: of_class("theirs", "Array", block_until_ready=lambda self: self),
    "theirs.Work": lambda: of_class("theirs", "Work", wait=lambda self: None),
}


@pytest.mark.parametrize("name", [*CODE, *HANDLES])
def test_what_stands_for_work(name: str) -> None:
    """The error names the object and what is to be done, also for a member of containers; Python warns of nothing."""
    make, why = (CODE[name], "has not run yet: run") if name in CODE else (HANDLES[name], "not be done yet: wait")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ComponentError, match=rf"^fn\(\) returned {re.escape(name)}, .* {why}"):
            finished(make(), "fn()")
        with pytest.raises(ComponentError, match=r"^fn\(\) returned .* at \['losses'\]\[1\], whose"):
            finished({"losses": [1.0, make()]}, "fn()")
        gc.collect()


def test_what_is_finished() -> None:
    """Values are returned as they are, a driven device's arrays too; a setup may start what the call waits for."""
    endless: list[object] = []
    endless.append(endless)
    for value in (None, 3, "text", np.ones(3), endless, range(3), zip("a", "b", strict=True), {"a": (1, [2])}):
        assert finished(value, "fn()") is value
    eager = of_class("xarray", "Dataset", __dask_graph__=lambda self: None)
    assert finished(eager, "fn()") is eager
    array = of_class("cupy", "ndarray", __dlpack_device__=lambda self: (2, 0))
    with driving(VirtualGPU("cupy cuda:0")):
        assert finished(array, "fn()") is array
    callable_workload(int, setup=submitted).check()


class AsyncEnv:
    """A vector env with a step that has to be awaited."""

    num_envs = 2
    action_space = SimpleNamespace(sample=lambda: np.zeros(1))

    def reset(self) -> Any:
        return np.zeros((2, 1))

    async def step(self, actions: Any) -> Any:
        return np.zeros((2, 1)), np.zeros(2), np.zeros(2, bool), {}


class AsyncAgent:
    """An agent, buffer and collector, all of whose methods have to be awaited or iterated over."""

    async def update(self, batch_size: int) -> None:
        """Update, once awaited."""

    def sample(self, batch_size: int) -> Iterator[Any]:
        yield np.zeros((batch_size, 1))

    def collect(self, n_steps: int) -> Iterator[Any]:
        yield from np.zeros((n_steps, 1))


async def gae(rewards: Any, values: Any, dones: Any, last_values: Any, gamma: float, lam: float) -> Any:
    return rewards


def callable_workload(fn: Callable[[], object], **given: Any) -> Workload:
    return thunk_workload(fn, items=1, unit="call", **{"setup": None, "check": None, **given})


@pytest.mark.parametrize(
    "make",
    [
        lambda: callable_workload(train),
        lambda: callable_workload(int, setup=train),
        lambda: callable_workload(int, check=lambda _: batches()),
        lambda: vecenv_workload(AsyncEnv()),
        lambda: vecenv_workload(train, 2),
        lambda: replay_workload(AsyncAgent(), 4),
        lambda: replay_workload(batches, 4),
        lambda: gae_workload(gae, 8, 2, "numpy"),
        lambda: sac_workload(AsyncAgent(), 4),
        lambda: ppo_workload(AsyncAgent(), 4, None),
        lambda: ppo_workload(batches, None, 4),
    ],
)
def test_every_component(make: Callable[[], Workload], wording: Wording) -> None:
    """A component of any kind whose call only starts work is an error before it is timed."""
    with wording.raises(ComponentError):
        make().check()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("options", [(), pytest.param(ONE_CALL, marks=pytest.mark.slow)])
def test_a_run(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    """The test fails in an ordinary run too; one of pytest-benchmark's fails where this plugin measures it."""
    pytester.makepyfile(
        """
        async def train():
            pass

        def batches():
            yield 1

        def test_train(rlperf):
            rlperf(train)

        def test_batches(benchmark):
            benchmark(batches)
        """
    )
    brief = ("-p", "pytest_benchmark.plugin", "--benchmark-max-time=0.01")
    result = pytester.runpytest("-p", "no:cacheprovider", *brief, *options)
    fails = {"test_train": "fn() returned a coroutine of train"}
    if options:
        fails["test_batches"] = "the benchmarked function returned a generator of batches"
    result.assert_outcomes(failed=len(fails), passed=2 - len(fails))
    result.stdout.fnmatch_lines([f"E * {text}, *" for text in fails.values()])
