"""Feeds changed files to every reader of this package for so many seconds, and prints what was tried and found.

::

    python benchmarks/fuzz/run.py                        # all readers, 18 s each
    python benchmarks/fuzz/run.py baseline --seconds 600
    python benchmarks/fuzz/run.py --inputs 1000000 --seconds 7200   # of each reader, in two hours at the most
    python benchmarks/fuzz/run.py --inputs 1000000 --every 10   # every tenth accepted input is shown and written again
    python benchmarks/fuzz/run.py run --seconds 600 --guided   # by coverage: needs `pip install atheris`

Without ``--guided`` inputs are files changed at random, by a seed: the same seed makes the same inputs. With it atheris
keeps the inputs that reach new code, and changes these. An input that takes over ``--limit`` seconds of processor time,
another exception than the documented one, and memory over ``--memory`` are finds: printed with the input, and the exit
code is 1.
"""

from __future__ import annotations

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from mutations import MOST_BYTES, mutated

_FINDS_MOST = 5
_HEADING = f"{'reader':<22}{'inputs':>10}{'accepted':>10}{'seconds':>9}{'slowest':>11}{'memory':>10}  finds"


class TooSlow(BaseException):
    """An input takes more processor time than it may."""


class Tried(NamedTuple):
    """How many inputs a reader was given and how many it accepted, the CPU seconds of the slowest, and the finds."""

    inputs: int
    accepted: int
    slowest_s: float
    finds: list[str]


def fuzz(name: str, arguments: argparse.Namespace) -> Tried:
    """Give a reader inputs, so many and for so many seconds at the most; use what it makes of each ``--every``th."""
    from targets import TARGETS

    target, random = TARGETS[name], Random(arguments.seed)
    finds: list[str] = []
    seeds = list(target.seeds)
    for found in seeds:
        target.read(found)  # and what is loaded once
    tried, accepted, slowest, end = 0, 0, 0.0, time.perf_counter() + arguments.seconds
    while tried != arguments.inputs and time.perf_counter() < end and len(finds) < _FINDS_MOST:
        data = mutated(random.choice(seeds), random)
        if random.random() < 0.1:
            data = mutated(data, random)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, arguments.limit)
        try:
            accepted += target.read(data, further=accepted % arguments.every == 0)
        except (Exception, TooSlow):
            signal.setitimer(signal.ITIMER_PROF, 0)
            finds.append(f"{data[:2000]!r}\n{traceback.format_exc(limit=-10)}")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        tried, slowest = tried + 1, max(slowest, time.process_time() - began)
    return Tried(tried, accepted, slowest, finds)


def guide(name: str, seconds: float, seed: int, limit: float) -> None:
    """Have atheris look for inputs that reach new code; it ends the process."""
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    with atheris.instrument_imports(include=["pytest_rlperf"]):
        from targets import TARGETS
    target = TARGETS[name]

    def change(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        changed = mutated(data or random.choice(target.seeds), random) if random.random() < 0.7 else data
        return bytes(atheris.Mutate(changed[:most], most)) if changed is data else changed[:most]

    with tempfile.TemporaryDirectory() as directory:
        for number, found in enumerate(target.seeds):
            (Path(directory) / str(number)).write_bytes(found)
        options = [
            f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-timeout={limit:.0f}", "-rss_limit_mb=2048",
            f"-max_len={MOST_BYTES}", "-verbosity=0", "-print_final_stats=1", "-close_fd_mask=0", directory,
        ]  # fmt: skip
        atheris.Setup([sys.argv[0], *options], target.read, custom_mutator=change)
        atheris.Fuzz()


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def main() -> int:
    """Run every reader in a process of its own, whose memory is its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--seconds", type=float, default=18.0)
    parser.add_argument("--inputs", type=int, help="end after so many, if the time lasts")
    parser.add_argument("--every", type=int, default=1, help="show, judge and write one of so many accepted inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=5.0)
    parser.add_argument("--memory", type=float, default=500.0, help="MB that a reader's process may have")
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone and arguments.guided:
        guide(arguments.alone, arguments.seconds, arguments.seed, arguments.limit)
    if arguments.alone:
        signal.signal(signal.SIGPROF, _stop)
        began = time.perf_counter()
        tried = fuzz(arguments.alone, arguments)
        seconds = time.perf_counter() - began
        megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        finds = [*tried.finds, *([f"{megabytes:.0f} MB of memory"] if megabytes > arguments.memory else [])]
        row = f"{arguments.alone:<22}{tried.inputs:>10,}{tried.accepted:>10,}{seconds:>9,.0f}"
        print(f"{row}{tried.slowest_s * 1e3:>8.0f} ms{megabytes:>7.0f} MB  {len(finds)}", *finds, sep="\n")
        return 1 if finds else 0
    from targets import TARGETS

    print(_HEADING, flush=True)
    options = [arg for arg in sys.argv[1:] if arg not in arguments.readers]
    codes = [
        subprocess.run([sys.executable, __file__, *options, "--alone", name], check=False).returncode
        for name in arguments.readers or TARGETS
    ]
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
