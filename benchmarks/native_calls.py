"""Native calls of one 8 × 128 rollout of rlox's PPO, by phase and by the module they are of.

It needs rlox, and counts in a process of its own, as a worker does::

    OMP_NUM_THREADS=1 python benchmarks/native_calls.py                       # the synthetic env, of gymnasium
    OMP_NUM_THREADS=1 python benchmarks/native_calls.py --env CartPole-v1     # rlox's own, of Rust
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("RLPERF_TIMERS", "standby")  # before anything binds a timer

from turns import print_table

from pytest_rlperf.components.ppo import ppo_workload
from pytest_rlperf.measure.counting_pass import REPETITIONS, count
from pytest_rlperf.suite.libraries.test_rlox import rlox_native_ppo, rlox_ppo

N_ENVS, N_STEPS = 8, 128
LIMIT_S = 600.0
FAMILY = "native_calls:"


def by_phase(env: str) -> tuple[dict[str, dict[str, int]], tuple[str, ...]]:
    """Return the native calls of a rollout by module within each phase, of the last repetition, and notes."""
    make = rlox_native_ppo if env == "CartPole-v1" else rlox_ppo
    workload = ppo_workload(make(N_ENVS, N_STEPS), N_STEPS, None)
    workload.check()
    tally = count(workload, REPETITIONS, LIMIT_S)
    workload.close()
    found: dict[str, dict[str, int]] = {}
    for counted in tally.repetitions[-1]:
        if counted.name.startswith(FAMILY):
            found.setdefault(counted.path, {})[counted.name.removeprefix(FAMILY)] = counted.value
    return found, tally.notes


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=("synthetic", "CartPole-v1"), default="synthetic", help="default: synthetic")
    arguments = parser.parse_args()
    found, notes = by_phase(arguments.env)
    modules = sorted(found[""], key=lambda module: -found[""][module])
    rows = [
        [path or "whole call", str(sum(counts.values())), *(str(counts.get(module, 0)) for module in modules)]
        for path, counts in found.items()
    ]
    title = f"Native calls of one rollout of rlox's PPO, {N_ENVS} × {N_STEPS} steps, {arguments.env} env"
    print_table(title, ["", "all", *modules], rows)
    print(*(f"   note: {note}" for note in notes), sep="\n")


if __name__ == "__main__":
    main()
