"""Where the time goes: the error of the shares on mixes of known parts, and the shares of components.

Parts whose owner is known are timed by themselves, in turns, which gives the shares that their mix must have. Then come
the reference components, and those of rlox and Stable-Baselines3 where installed. Prints tables and judges nothing::

    python benchmarks/shares.py             # a minute
    python benchmarks/shares.py --mixes     # the first table only
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from pytest_rlperf import units
from pytest_rlperf.attribution import NativeOwners, owner_of_code, shares
from pytest_rlperf.report.tables import shares_lines

PACKAGES = ("rlox", "stable-baselines3", "torch", "gymnasium", "numpy")
CALLS = 200
BIG, SMALL, TINY = np.ones((200, 200)), np.ones(1000), np.ones(4)
Part = Callable[[], object]


def seconds_of(call: Part) -> float:
    """Return the seconds that one call takes."""
    start_ns = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start_ns) / 1e9


# --------------------------------------------------------------------------- parts


def arithmetic(steps: int = 1000) -> float:
    """Compute with floats."""
    total = 0.0
    for step in range(steps):
        total = 0.5 * total + step
    return total


def functions() -> None:
    """Call functions that do something."""
    for _ in range(30):
        arithmetic(20)


def tiny_functions() -> None:
    """Call functions that do next to nothing."""
    for _ in range(200):
        arithmetic(0)


def reductions() -> None:
    """Call a method of large arrays."""
    for _ in range(3):
        BIG.sum()


def products() -> None:
    """Multiply arrays of a thousand numbers."""
    for _ in range(40):
        SMALL * SMALL


def tiny_products() -> None:
    """Multiply arrays of four numbers."""
    for _ in range(100):
        TINY * TINY


def stacks() -> None:
    """Concatenate arrays of a thousand numbers."""
    for _ in range(20):
        np.concatenate((SMALL, SMALL))


class Walk:
    """An environment in Python."""

    def reset(self) -> None:
        """Begin again."""

    def step(self, action: float) -> float:
        """Take a step."""
        return action + arithmetic(500)


WALK = Walk()


def walks() -> None:
    """Step an environment."""
    WALK.step(1.0)
    WALK.step(2.0)


def layers() -> Part:
    """Return passes through a layer of PyTorch's."""
    torch = import_module("torch")
    torch.set_num_threads(1)
    weights, rows = torch.ones(64, 64), torch.ones(64, 64)

    def work() -> None:
        for _ in range(3):
            torch.relu(rows @ weights)

    return work


MIXES: tuple[tuple[Part, str, Part, str], ...] = (
    (arithmetic, "python", reductions, "numpy"),
    (arithmetic, "python", products, "numpy"),
    (arithmetic, "python", stacks, "numpy"),
    (functions, "python", reductions, "numpy"),
    (functions, "python", products, "numpy"),
    (walks, "environment", functions, "python"),
    (walks, "environment", products, "numpy"),
    (tiny_functions, "python", reductions, "numpy"),
    (arithmetic, "python", tiny_products, "numpy"),
    (tiny_functions, "python", tiny_products, "numpy"),
)


def mixes() -> Iterator[tuple[Part, str, Part, str]]:
    """Yield two parts with their owners each."""
    yield from MIXES
    try:
        layer = layers()
    except ImportError:
        return
    layer.__name__ = "layers"
    yield arithmetic, "python", layer, "pytorch"
    yield functions, "python", layer, "pytorch"


def profiled(call: Part, owner: str) -> float:
    """Return the owner's share by cProfile as it is, an environment's by the whole time of its steps."""
    natives = NativeOwners()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(CALLS):
        call()
    profile.disable()
    whole_s = own_s = 0.0
    for entry in profile.getstats():
        whole_s += entry.inlinetime
        if owner == "environment":
            own_s += entry.totaltime if entry.code is Walk.step.__code__ else 0.0
        else:
            found = natives.of_text(entry.code) if isinstance(entry.code, str) else owner_of_code(entry.code)
            own_s += entry.inlinetime if found == owner else 0.0
    return own_s / whole_s


def print_mixes() -> None:
    """Print one part's share of each mix, timed by itself and as found."""
    print("Two parts whose owners are known: the first one's share, timed by itself, by cProfile alone, and found\n")
    titles = ("known", 8), ("cProfile", 10), ("found", 8), ("off", 7), ("unattributed", 14)
    print(
        f"{'first part':<15}{'second part':<15}{'owner':<13}" + "".join(f"{title:>{width}}" for title, width in titles)
    )
    for first, owner, second, _ in mixes():

        def mix(first: Part = first, second: Part = second) -> None:
            first()
            second()

        seconds = [(seconds_of(first), seconds_of(second)) for _ in range(CALLS)]
        first_s, second_s = (statistics.median(values) for values in zip(*seconds, strict=True))
        known = first_s / (first_s + second_s)
        table = {share.name: share.share for share in shares(mix, setup=None, calls=CALLS)}
        found, rest = table.get(owner, 0.0), table["unattributed"]
        print(
            f"{first.__name__:<15}{second.__name__:<15}{owner:<13}{units.percent(known, signed=False):>8}"
            f"{units.percent(profiled(mix, owner), signed=False):>10}"
            f"{units.percent(found, signed=False):>8}{100 * (found - known):>+7.1f}"
            f"{units.percent(rest, signed=False):>14}"
        )


# --------------------------------------------------------------------------- components


def reference_components() -> Iterator[tuple[str, Part, int]]:
    """Yield a name, a call and how many calls to look at."""
    reference = import_module("pytest_rlperf.components.reference")
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(10_000, 17)).astype(np.float32)
    buffer = reference.ReplayBuffer(10_000, 17, 6)
    buffer.add(rows, rows[:, :6], rows[:, 0], rows, np.zeros(10_000))
    envs = reference.make_vec_env("CartPole-v1", 8)
    envs.reset(seed=0)
    agent, sac = reference.PPO(envs), reference.SAC(17, 6, buffer)
    rewards, ends = rows[:128, :8], np.zeros((128, 8), dtype=np.float32)
    actions = np.zeros(8, dtype=np.int64)
    yield "reference: vector env's step, 8 CartPoles", lambda: envs.step(actions), 200
    yield "reference: replay buffer's sample of 256", lambda: buffer.sample(256), 200
    yield (
        "reference: GAE of 128 steps in 8 envs",
        lambda: reference.compute_gae(rewards, rewards, ends, rewards[0]),
        200,
    )
    yield "reference: SAC update, batch of 256", lambda: sac.update(256), 30
    yield "reference: PPO rollout of 128 steps in 8 CartPoles", lambda: agent.collect(128), 12


def rlox_components() -> Iterator[tuple[str, Part, int]]:
    """Yield rlox's."""
    rlox: Any = import_module("rlox")
    envs = rlox.VecEnv(64, 0, "CartPole-v1")
    envs.reset_all()
    actions = [0, 1] * 32
    yield "rlox: VecEnv.step_all, 64 CartPoles", lambda: envs.step_all(actions), 300
    column = np.ones(2048)
    yield "rlox: compute_gae of 2048 steps", lambda: rlox.compute_gae(column, column, 0 * column, 0.0, 0.99, 0.95), 300
    ppo = import_module("rlox.algorithms.ppo").PPO("CartPole-v1", n_envs=8, seed=0)
    yield "rlox: PPO's rollout of 128 steps in 8 CartPoles", lambda: ppo.collector.collect(ppo.policy, 128), 12
    sac = import_module("rlox.algorithms.sac").SAC("Pendulum-v1", learning_starts=100, buffer_size=5000, seed=0)
    sac.train(600)
    yield "rlox: SAC._update, batch of 256", lambda: sac._update(600), 30


def stable_baselines3_components() -> Iterator[tuple[str, Part, int]]:
    """Yield Stable-Baselines3's."""
    library: Any = import_module("stable_baselines3")
    sac = library.SAC("MlpPolicy", "Pendulum-v1", learning_starts=100, seed=0, device="cpu")
    sac.learn(300)
    yield "Stable-Baselines3: SAC.train(1, 256)", lambda: sac.train(1, 256), 30
    ppo = library.PPO("MlpPolicy", "CartPole-v1", n_steps=128, seed=0, device="cpu")
    ppo.learn(128)
    callback = ppo._setup_learn(1000, None)[1]
    rollout = ppo.env, callback, ppo.rollout_buffer, 128
    yield "Stable-Baselines3: PPO's rollout of 128 steps in CartPole", lambda: ppo.collect_rollouts(*rollout), 12


def print_components() -> None:
    """Print a table for each component of the installed libraries."""
    for components in (reference_components, rlox_components, stable_baselines3_components):
        try:
            for name, call, calls in components():
                for _ in range(3):
                    call()
                plain_s = statistics.median(seconds_of(call) for _ in range(5))
                print(f"\n{name}: {units.seconds(plain_s)}\n")
                print("\n".join(f"  {line}" for line in shares_lines(shares(call, setup=None, calls=calls))))
        except ImportError as error:
            print(f"\n{components.__name__}: {error}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mixes", action="store_true", help="only mixes of known parts")
    only_mixes: bool = parser.parse_args().mixes
    print(
        f"CPython {platform.python_version()}", *(f", {text}" for text in _versions()), sep="", end="; one thread\n\n"
    )
    print_mixes()
    if not only_mixes:
        print_components()


def _versions() -> Iterator[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue


if __name__ == "__main__":
    main()
