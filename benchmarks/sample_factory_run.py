"""Train with Sample Factory on our ``Timing`` and its own at once, and compare what they print.

Both see the same scopes by the same readings of one clock, so their texts must be equal byte for byte. Needs an
environment with sample-factory 2.1; prints both texts of each component, and ends with 1 where any differ::

    python benchmarks/sample_factory_run.py                 # about 20 seconds of CartPole-v1, on the CPU
    python benchmarks/sample_factory_run.py --steps=4000    # a first look
"""

from __future__ import annotations

import argparse
import importlib
import logging
import pickle
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from pytest_rlperf.compat import sample_factory as compat


class OneReading:
    """A clock that gives both timers one reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the reading."""
        return self.now

    def read(self) -> None:
        """Take the next one."""
        self.now = time.time()


CLOCK = OneReading()
MADE: list[Both] = []


class BothScopes:
    """A scope of each timer, entered and left at one moment."""

    def __init__(self, theirs: Any, ours: Any) -> None:
        self._scopes = theirs, ours

    def __enter__(self) -> None:
        CLOCK.read()
        for scope in self._scopes:
            scope.__enter__()

    def __exit__(self, *error: object) -> None:
        CLOCK.read()
        for scope in self._scopes:
            scope.__exit__(*error)


class Both(compat.Timing):
    """Our Timing, for Sample Factory to use, which drives Sample Factory's own beside itself."""

    __slots__ = ("theirs",)

    their_class: type[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "theirs", self.their_class(*args, **kwargs))
        MADE.append(self)

    def add_time(self, key: Any) -> Any:
        """Return a scope of both."""
        return BothScopes(self.theirs.add_time(key), super().add_time(key))

    def timeit(self, key: Any) -> Any:
        """Return a scope of both."""
        return BothScopes(self.theirs.timeit(key), super().timeit(key))

    def time_avg(self, key: Any, average: int = 10) -> Any:
        """Return a scope of both."""
        return BothScopes(self.theirs.time_avg(key, average), super().time_avg(key, average))


@contextmanager
def in_place() -> Iterator[None]:
    """Have Sample Factory's modules, none of which are loaded yet, find ours where its own was."""
    theirs = importlib.import_module("sample_factory.utils.timing")
    Both.their_class = theirs.Timing
    vars(theirs).update(Timing=Both, time=SimpleNamespace(time=CLOCK))
    vars(compat)["_clock"] = CLOCK
    yield
    vars(theirs)["Timing"] = Both.their_class  # pickle looks for it there


def train(steps: int, directory: str) -> None:
    """Train APPO on CartPole-v1 in this process."""
    example = importlib.import_module("sf_examples.train_gym_env")
    run_rl = importlib.import_module("sample_factory.train").run_rl
    importlib.import_module("sample_factory.utils.utils").log.setLevel(logging.ERROR)
    example.register_custom_components()
    cfg = example.parse_custom_args(
        [
            "--algo=APPO",
            "--env=CartPole-v1",
            "--experiment=rlperf",
            f"--train_dir={directory}",
            "--serial_mode=True",
            "--async_rl=False",
            "--num_workers=1",
            "--num_envs_per_worker=2",
            "--device=cpu",
            f"--train_for_env_steps={steps}",
        ]
    )
    run_rl(cfg)


def compare(both: Both) -> bool:
    """Print a component's trees, and return whether all its texts are equal."""
    texts = [
        (str(both.theirs), str(both)),
        (both.theirs.flat_str(), both.flat_str()),
        (pickle.loads(pickle.dumps(both.theirs)).tree_str(), pickle.loads(pickle.dumps(plain(both))).tree_str()),  # noqa: S301
    ]
    entries = sum(timing.count for _, timing in both.snapshot().root.walk())
    equal = all(theirs == ours for theirs, ours in texts)
    print(f"\nSample Factory's\n{texts[0][0]}\npytest_rlperf's, {entries} entries: {'equal' if equal else 'DIFFERENT'}")
    print(texts[0][1])
    return equal


def plain(both: Both) -> compat.Timing:
    """Return our part alone, as a user has it."""
    alone = compat.Timing()
    alone.clear()
    alone.update(both)
    alone.__setstate__(both._root)
    return alone


def main() -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40_000, help="env steps to train for")
    steps = parser.parse_args().steps
    packages = ", ".join(f"{name} {version(name)}" for name in ("sample-factory", "torch", "gymnasium", "numpy"))
    print(f"CPython {platform.python_version()}, {packages}; CartPole-v1, {steps} env steps, serial mode")
    with in_place(), tempfile.TemporaryDirectory() as directory:
        train(steps, directory)
    equal = [compare(both) for both in MADE if len(both) > 1]
    print(f"\n{sum(equal)} of {len(equal)} components: tree, flat text and pickled tree equal byte for byte")
    return 0 if equal and all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
