"""How far the reference kernels and some workloads move when neighbours load the machine, side by side in one run.

Every subject takes 15 ms turns, first alone and then beside each load; the table gives each one's median call as a
multiple of its own alone. Run it on an otherwise quiet machine: ``python benchmarks/kernels.py``.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from pytest_rlperf.components.reference import SAC, ReplayBuffer, compute_gae, make_vec_env
from pytest_rlperf.measure.kernels import interpreter_kernel, memory_kernel

SLICE_S = 0.015
LOADS = {
    "alone again": "",
    "one busy core": "while True: pass",
    "copies of 128 MB": "a = bytearray(1 << 27)\nwhile True: a = bytearray(a)",
    "reads at random": (
        "import numpy as np\na = np.ones((1 << 20, 16), np.float32)\ng = np.random.default_rng(0)\n"
        "while True: a[g.integers(0, 1 << 20, 4096)]"
    ),
}


def subjects() -> dict[str, Callable[[], object]]:
    """Return what takes turns: the kernels, and components of each size and kind."""
    import torch

    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    rows = 100_000

    def normal(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return generator.normal(size=shape).astype(np.float32)

    buffer = ReplayBuffer(rows, 17, 6)
    buffer.add(normal(rows, 17), normal(rows, 6), normal(rows), normal(rows, 17), generator.random(rows) < 0.01)
    agent = SAC(17, 6, buffer)
    rewards, values, last = normal(128, 8), normal(128, 8), normal(8)
    dones = np.zeros((128, 8), np.float32)
    envs = make_vec_env("CartPole-v1", 8)
    envs.reset(seed=0)
    actions = envs.action_space.sample()
    return {
        "interpreter kernel": interpreter_kernel(),
        "memory kernel": memory_kernel(),
        "replay sample": lambda: buffer.sample(256),
        "GAE 128x8": lambda: compute_gae(rewards, values, dones, last),
        "vec env step": lambda: envs.step(actions),
        "SAC update": lambda: agent.update(256),
    }


def turn_s(call: Callable[[], object]) -> float:
    """Run ``call`` for a slice; return the median CPU seconds of a call, so that waiting for a core does not count."""
    taken = []
    end = time.perf_counter() + SLICE_S
    while time.perf_counter() < end:
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def measure(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return each subject's median turn over ``seconds`` of turns."""
    turns: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            turns[name].append(turn_s(call))
    return {name: statistics.median(values) for name, values in turns.items()}


@contextmanager
def load(code: str) -> Iterator[None]:
    """Run a neighbour beside the body."""
    process = subprocess.Popen([sys.executable, "-c", code]) if code else None
    try:
        time.sleep(0.5)  # until the neighbour is at work
        yield
    finally:
        if process is not None:
            process.kill()
            process.wait()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="measuring time beside each load")
    seconds = parser.parse_args().seconds
    calls = subjects()
    measure(calls, 1.0)
    alone = measure(calls, seconds)
    print(f"{'':<20}" + "".join(f"{name:>20}" for name in ("alone", *LOADS)))
    moved = {}
    for name, code in LOADS.items():
        with load(code):
            moved[name] = measure(calls, seconds)
    for subject, call_s in alone.items():
        cells = "".join(f"{moved[name][subject] / call_s:>19.2f}x" for name in LOADS)
        print(f"{subject:<20}{call_s * 1e6:>17.1f} us{cells}")


if __name__ == "__main__":
    main()
