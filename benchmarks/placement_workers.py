"""The workers of ``placement.py``: fresh processes that take up one workload after another.

Unlike the plugin's own workers they are no pytest sessions, so that hundreds of measurements fit in minutes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil

from pytest_rlperf.components.gae import gae_workload
from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.components.replay import replay_workload
from pytest_rlperf.components.sac import sac_workload
from pytest_rlperf.components.thunk import thunk_workload
from pytest_rlperf.components.vecenv import vecenv_workload
from pytest_rlperf.measure.placement import place, usable_cpus
from pytest_rlperf.measure.slices import Meter
from pytest_rlperf.model.counting import Tally
from pytest_rlperf.model.measured import Shape, SliceKind, SliceRecord, Usage, Warm, Workload

CPUS = usable_cpus()
PADDING_MOST = 4096  # bytes of environment, so that stacks begin at different addresses

# --------------------------------------------------------------------------- workloads


def _gymnasium(num_envs: int, mode: str) -> Workload:
    import gymnasium

    return vecenv_workload(lambda: gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode=mode))


def _loop() -> Workload:
    def spin() -> int:
        state = 1
        for _ in repeat(None, 2000):
            state = (48271 * state) % 2147483647
        return state

    return thunk_workload(spin, items=2000, unit="step", setup=None, check=None)


def _gae() -> Workload:
    from pytest_rlperf.components.reference import compute_gae

    return gae_workload(compute_gae, n_steps=128, n_envs=8, backend="numpy")


def _buffer(rows: int) -> Any:
    import torch

    from pytest_rlperf.components.reference import ReplayBuffer

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    obs, actions, next_obs = (generator.normal(size=(rows, width)).astype(np.float32) for width in (17, 6, 17))
    buffer = ReplayBuffer(rows, 17, 6)
    buffer.add(obs, actions, generator.normal(size=rows).astype(np.float32), next_obs, generator.random(rows) < 0.01)
    return buffer


def _sac() -> Workload:
    from pytest_rlperf.components.reference import SAC

    return sac_workload(SAC(17, 6, _buffer(10_000)), batch_size=256)


def _ppo() -> Workload:
    import torch

    from pytest_rlperf.components.reference import PPO, make_vec_env

    torch.set_num_threads(1)
    return ppo_workload(PPO(make_vec_env("CartPole-v1", 8)), n_steps=128, items=None)


def _matmul() -> Workload:
    import torch

    torch.set_num_threads(2)
    left, right = torch.rand(256, 256), torch.rand(256, 256)
    return thunk_workload(lambda: left @ right, items=1, unit="product", setup=None, check=None)


# In this order, so that gymnasium forks before torch is loaded, and torch has two threads at the end alone.
WORKLOADS: dict[str, tuple[str, Callable[[], Workload]]] = {
    "async": ("AsyncVectorEnv(2)", lambda: _gymnasium(2, "async")),
    "loop": ("tight Python loop", _loop),
    "vecenv": ("SyncVectorEnv ×8 step", lambda: _gymnasium(8, "sync")),
    "gae": ("GAE 128×8", _gae),
    "replay": ("replay sample 256", lambda: replay_workload(_buffer(100_000), batch_size=256)),
    "ppo": ("PPO collect 128×8", _ppo),
    "sac": ("SAC update 256", _sac),
    "matmul": ("torch matmul, 2 threads", _matmul),
}

# --------------------------------------------------------------------------- workers


class Stage:
    """The code of a worker: one workload at a time, made and measured on request."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._meter: Meter | None = None

    def prepare(self, name: str) -> None:
        """Make a workload anew, in place of the last one."""
        if self._meter is not None:
            self._meter.thaw()
        place(CPUS)  # threads and children to come inherit it
        random.seed(self._seed)
        self._meter = Meter(WORKLOADS[name][1](), lambda: {})
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(self._seed)

    def check(self) -> float:
        """Run the component once and check it; return the seconds that took."""
        assert self._meter is not None
        return self._meter.check()

    def warm_up(self, shape: Shape | None, limit_s: float) -> Warm:
        """Warm up, without kernels."""
        assert self._meter is not None
        return self._meter.warm_up(shape, limit_s, kernels=False)

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take a slice."""
        assert self._meter is not None
        return self._meter.take(kind)

    def place(self, cpus: Sequence[int]) -> None:
        """Keep this process on ``cpus``, with all its threads and children."""
        place(cpus)
        for child in psutil.Process().children(recursive=True):
            child.cpu_affinity(list(cpus))


def work(connection: Connection[Any, Any], seed: int) -> None:
    """Do what the other end of ``connection`` says, until there is none."""
    stage = Stage(seed)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(stage, name)(*arguments))
    if stage._meter is not None:
        stage._meter.thaw()


class Worker:
    """A fresh process with a stage, its own hash seed and its own memory layout: a worker for blocks of pairs."""

    checked_s: float | None = None
    tally: Tally | None = None

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.seed = seed
        self._connection, there = multiprocessing.Pipe()
        os.environ["PLACEMENT_PADDING"] = "." * random.randrange(PADDING_MOST)
        self._process = multiprocessing.get_context("spawn").Process(target=work, args=(there, seed))
        self._process.start()
        there.close()

    def start(self, *order: object) -> None:
        """Give an order."""
        self._connection.send(order)

    def answer(self) -> Any:
        """Wait until it is done."""
        return self._connection.recv()

    def ask(self, *order: object) -> Any:
        """Give an order and wait for it."""
        self.start(*order)
        return self.answer()

    def start_check(self) -> None:
        """Begin to run the component once."""
        self.start("check")

    def wait_checked(self) -> tuple[float, float]:
        """Wait for that."""
        return self.answer(), 0.0

    def start_count(self, repetitions: int, limit_s: float) -> None:
        """Nothing is counted here."""
        raise NotImplementedError

    def wait_counted(self) -> Tally:
        """Nothing is counted here."""
        raise NotImplementedError

    def warm_up(self, shape: Shape | None, limit_s: float, long: bool | None = None, *, kernels: bool = True) -> Warm:
        """Warm up."""
        warm: Warm = self.ask("warm_up", shape, limit_s)
        return warm

    def take(self, kind: SliceKind) -> SliceRecord:
        """Take a slice."""
        record: SliceRecord = self.ask("take", kind)
        return record

    def place(self, cpus: Collection[int]) -> None:
        """Stay on ``cpus``."""
        self.ask("place", list(cpus))

    def usage(self) -> Usage:
        """Return nothing of interest: placement is about time."""
        return Usage(0, 0, 0, 0, 0, 0, 0, 1, 1)

    def cpu_s(self) -> float:
        """Return the CPU seconds used so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        """Let the process end; multiprocessing waits for it when this one does."""
        self._connection.close()


def ask_both(workers: tuple[Worker, Worker], *order: object) -> list[Any]:
    """Give both workers of a pair an order, and wait for both."""
    for worker in workers:
        worker.start(*order)
    return [worker.answer() for worker in workers]


@contextlib.contextmanager
def processes(index: int) -> Iterator[tuple[Worker, Worker]]:
    """Make the pair of fresh processes with an index."""
    workers = Worker(2 * index, seed=1000 + index), Worker(2 * index + 1, seed=1000 + index)
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()
