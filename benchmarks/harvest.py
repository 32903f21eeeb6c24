"""Phases of libraries' own code, which has no timers of ours: what is seen from outside, and what seeing it costs.

Of rlox, Stable-Baselines3 and TorchRL whatever is installed is measured: the gradient step of the first two's SAC, cut
where PyTorch tells, and a rollout of TorchRL's, whose profiling ranges are phases. Calls with phases and calls without
take turns; their ratio is of CPU time, which another process's work is no part of. Prints tables and judges nothing::

    python benchmarks/harvest.py            # half a minute
    python benchmarks/harvest.py --quick    # a first look
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Before anything binds a scope, and before TorchRL decides whether it has ranges.
os.environ.setdefault("RLPERF_TIMERS", "standby")
os.environ.setdefault("TORCHRL_PROFILING", "1")

from pytest_rlperf.model.measured import Phase, Probe
from pytest_rlperf.probes import standing_probes
from pytest_rlperf.probes.attach import attached
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import quieten_ranges
from pytest_rlperf.timers import Tree, hierarchical_timer, recording_into

PACKAGES = ("rlox", "stable-baselines3", "torchrl", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class Subject:
    """A measured call: without timers, the same call with its phases, and the probes that record them."""

    title: str
    plain: Callable[[], object]
    told: Callable[[], object]
    probes: tuple[Probe, ...]


# --------------------------------------------------------------------------- libraries


def rlox_sac() -> Subject:
    """Return rlox's SAC update, whose buffer is Rust's."""
    sac = import_module("rlox.algorithms.sac").SAC("Pendulum-v1", learning_starts=100, buffer_size=5000, seed=0)
    sac.train(600)
    return update_of("rlox: SAC._update, batch of 256", sac, lambda: sac._update(600))


def stable_baselines3_sac() -> Subject:
    """Return Stable-Baselines3's SAC update."""
    sac: Any = import_module("stable_baselines3").SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, seed=0)
    sac.learn(300)
    return update_of("Stable-Baselines3: SAC.train(1, 256)", sac, lambda: sac.train(1, 256))


def update_of(title: str, agent: object, update: Callable[[], object]) -> Subject:
    """Return an update that is cut into sections."""
    sections = UpdateSections(agent)
    return Subject(title, update, sections.around(update), (sections,))


def torchrl_rollout() -> Subject:
    """Return a rollout of TorchRL's with a policy, whose ranges are its own."""
    import torch
    from torch import nn

    envs, modules = import_module("torchrl.envs"), import_module("tensordict.nn")
    env = envs.TransformedEnv(envs.GymEnv("Pendulum-v1", device="cpu"), envs.StepCounter())
    net = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 1), nn.Tanh())
    policy = modules.TensorDictModule(net, in_keys=["observation"], out_keys=["action"])

    def rollout() -> object:
        with torch.no_grad():
            return env.rollout(20, policy)

    return Subject("TorchRL: env.rollout(20, policy)", rollout, rollout, standing_probes())


def torchrl_collector() -> Subject:
    """Return a batch of TorchRL's collector."""
    envs, collectors = import_module("torchrl.envs"), import_module("torchrl.collectors")
    env = envs.GymEnv("Pendulum-v1", device="cpu")
    make = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
    batches: Iterator[object] = iter(make(env, None, frames_per_batch=20, total_frames=-1))
    call = lambda: next(batches)  # noqa: E731
    return Subject("TorchRL: a Collector's batch of 20 frames", call, call, standing_probes())


SUBJECTS = {
    "rlox": (rlox_sac,),
    "stable_baselines3": (stable_baselines3_sac,),
    "torchrl": (torchrl_rollout, torchrl_collector),
}

# --------------------------------------------------------------------------- measuring


def measure(subject: Subject, blocks: int, calls: int) -> tuple[tuple[Phase, ...], list[float], list[float]]:
    """Return the phases of a call, and the CPU seconds of a call in each block, with phases and without."""
    tree = Tree()
    whole = hierarchical_timer("call")

    def traced_call() -> None:
        with whole:
            subject.told()

    traced_s: list[float] = []
    plain_s: list[float] = []
    for block in range(blocks + 1):
        turns = [(traced_s, traced_call), (plain_s, subject.plain)]
        for times, call in turns if block % 2 else reversed(turns):
            with seen(tree, subject) if times is traced_s else nullcontext():
                start_s = time.process_time()
                for _ in range(calls):
                    call()
                times.append((time.process_time() - start_s) / calls)
        if block == 0:  # to warm up
            tree.reset()
            traced_s.clear()
            plain_s.clear()
    return tree.phases(blocks * calls), traced_s, plain_s


@contextmanager
def seen(tree: Tree, subject: Subject) -> Iterator[None]:
    """Have a subject's phases seen."""
    with attached(subject.probes), recording_into(tree):
        yield


def show(subject: Subject, phases: tuple[Phase, ...], traced_s: list[float], plain_s: list[float]) -> None:
    """Print the phases of a call with their shares, and what seeing them costs."""
    whole = next(phase for phase in phases if phase.path == "call")
    print(f"\n{subject.title}\n")
    print(f"{'phase':<40}{'a call':>12}{'share':>9}{'entries':>9}")
    show_part(whole, phases, whole.total_s)
    ratios = [traced / plain for traced, plain in zip(traced_s, plain_s, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"\nunaccounted {whole.self_s / whole.total_s:.2%} of a call")
    cost = f"{statistics.median(ratios):.3f} (quartiles {low:.3f} and {high:.3f} of {len(ratios)} blocks)"
    print(f"CPU time with phases over without: {cost}")


def show_part(part: Phase, phases: tuple[Phase, ...], whole_s: float) -> None:
    """Print a phase, what is in it, and what of it is in none."""
    indent = "  " * part.depth
    print_line(indent + part.name, part.total_s, whole_s, f"{part.count:.3g}")
    below = [phase for phase in phases if phase.path.rpartition("/")[0] == part.path]
    for phase in below:
        show_part(phase, phases, whole_s)
    if below:
        print_line(f"{indent}  (unaccounted)", part.self_s, whole_s, "")


def print_line(name: str, part_s: float, whole_s: float, entries: str) -> None:
    """Print a line of the table."""
    print(f"{name:<40}{1e6 * part_s:>9.1f} µs{part_s / whole_s:>9.1%}{entries:>9}".rstrip())


def main() -> None:
    """Measure whatever is installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few calls: a first look")
    quick = parser.parse_args().quick
    import torch

    torch.set_num_threads(1)
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    print(f"CPython {platform.python_version()}, {', '.join(found)}; one thread")
    for package, subjects in SUBJECTS.items():
        try:
            import_module(package)
        except ImportError:
            continue
        for make in subjects:
            quieten_ranges()
            subject = make()
            show(subject, *measure(subject, 3 if quick else 15, 5 if quick else 20))


if __name__ == "__main__":
    main()
