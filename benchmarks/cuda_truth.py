"""Whether what pytest-rlperf tells of a GPU is true: one command for a machine that has one, and one table.

In this process kernels of known lengths are timed, waits and copies that are known are looked for; then pytest is run
in a repository of its own, on kernels that are known to take longer and on the reference components. It exits with 1
where something is not as expected, and with 2 where there is no GPU::

    python benchmarks/cuda_truth.py                       # all of it; whole runs of pytest take most of the time
    python benchmarks/cuda_truth.py --only recording      # the checks with this in their names
    python benchmarks/cuda_truth.py --out DIR             # keeps the runs of pytest there
    python benchmarks/cuda_truth.py --virtual             # on the virtual GPU, in virtual time: a second
    python benchmarks/cuda_truth.py --virtual --live      # also live pairs on it, in real time: two minutes
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar

if "RLPERF_TIMERS" not in os.environ:
    # Here timers are needed; the runs of pytest that are started decide for themselves.
    os.environ["RLPERF_TIMERS"] = "standby"
    import_module("pytest_rlperf.timers")
    del os.environ["RLPERF_TIMERS"]

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # where the virtual GPU is

from cuda_truth_bench import Bench, Finding
from cuda_truth_checks import CHECKS
from cuda_truth_devices import Cuda, Gpu, NotPossibleError, Virtual
from cuda_truth_runs import KERNEL_RUNS, KERNEL_S, REFERENCE_RUNS, Project, References

from pytest_rlperf import __version__
from pytest_rlperf.devices import driving

DEVICE = "cuda:0"
_VIRTUAL_HZ = 1.5e9  # of the one that is driven in real time

T = TypeVar("T")
Step = Callable[[], Finding]


class Row(NamedTuple):
    """One line of the table; ``met`` is ``yes``, ``no`` or ``not possible``."""

    check: str
    expected: str
    found: str
    met: str


def row_of(name: str, step: Step) -> Row:
    """Make a check; what fails in it is a finding, and no reason to leave out the others."""
    try:
        finding = step()
    except NotPossibleError as error:
        return Row(name, "", str(error), "not possible")
    except Exception as error:
        return Row(name, "", " ".join(f"{type(error).__name__}: {error}".split()), "no")
    return Row(name, finding.expected, finding.found, "yes" if finding.met else "no")


def steps_on(gpu: Gpu, folder: Path, *, live: bool) -> Iterator[tuple[str, Step]]:
    """Yield every check by its name; ``live`` has the virtual GPU in runs of pytest, too."""
    is_virtual = isinstance(gpu, Virtual)
    for name, check in CHECKS.items():
        yield name, partial(check, gpu)
    if is_virtual and not live:
        yield from ((name, _needs_a_gpu) for name in (*KERNEL_RUNS, *REFERENCE_RUNS))
        return

    @cache
    def project() -> Project:
        cycles = round(_VIRTUAL_HZ * KERNEL_S) if is_virtual else Bench(gpu).cycles(KERNEL_S)
        return Project(folder, "virtual:0" if is_virtual else DEVICE, cycles)

    @cache
    def references() -> References:
        return References(project())

    for name, run in KERNEL_RUNS.items():
        yield name, partial(_made, run, project)
    for name, read in REFERENCE_RUNS.items():
        yield name, _needs_a_gpu if is_virtual else partial(_made, read, references)


def _made(check: Callable[[T], Finding], make: Callable[[], T]) -> Finding:
    """Check what is only made when it comes to it."""
    return check(make())


def _needs_a_gpu() -> Finding:
    raise NotPossibleError("needs a GPU")


def table(rows: Sequence[Row]) -> str:
    """Return the rows in Markdown."""
    lines = ["| check | expected | found | met |", "| --- | --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows])


def open_gpu(*, virtual: bool) -> Gpu:
    """Return the GPU to check on; NotPossibleError where there is none."""
    return Virtual() if virtual else Cuda(DEVICE)


def check_all(gpu: Gpu, folder: Path, only: Sequence[str], *, live: bool) -> list[Row]:
    """Make the checks whose names hold one of ``only``, all where that is empty; say each as soon as it is made."""
    rows = []
    with driving(*gpu.drivers):
        for name, step in steps_on(gpu, folder, live=live):
            if not only or any(part in name for part in only):
                rows.append(row_of(name, step))
                print(f"{rows[-1].met:>12}  {name}: {rows[-1].found}", file=sys.stderr, flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--virtual", action="store_true", help="on the virtual GPU: what can be checked without one")
    parser.add_argument("--live", action="store_true", help="with --virtual: live pairs on it as well, in real time")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="checks with this in their names")
    parser.add_argument("--out", type=Path, metavar="DIR", help="an empty folder to keep the runs of pytest in")
    options = parser.parse_args(arguments)
    if options.live and not options.virtual:
        parser.error("--live goes with --virtual: on a GPU live pairs are always compared")
    if options.out is not None and options.out.exists() and any(options.out.iterdir()):
        parser.error(f"--out={options.out} is not empty: name a new folder")
    try:
        gpu = open_gpu(virtual=options.virtual)
    except NotPossibleError as error:
        print(f"nothing was checked: {error}; --virtual checks what can be checked without a GPU", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="cuda-truth-") as scratch:
        folder: Path = options.out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = check_all(gpu, folder.absolute(), options.only, live=options.live)
    if not rows:
        parser.error(f"no check has any of {', '.join(options.only)} in its name")
    runs = "; runs of pytest in real time" if options.live else ""
    print(f"\n{gpu.told()}{runs}; pytest-rlperf {__version__}\n\n{table(rows)}")
    return int(any(row.met == "no" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
