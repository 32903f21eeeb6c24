"""What several scripts need: processes of their own, projects of some commits, measures in turn, and tables."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "pytest_rlperf" / "suite"
LOADED = Path("pytest_rlperf") / "units.py"  # by every test of the suite
Samples = dict[str, list[float]]

# --------------------------------------------------------------------------- processes and projects


class Ended(NamedTuple):
    """A process that has ended: its seconds, its exit code and what it wrote."""

    seconds: float
    code: int
    output: str


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with ``variables``, and without what the run around it has set."""
    left_out = ("PYTEST_", "PYTHONPATH", "GITHUB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | variables


def python(arguments: Sequence[str], folder: Path, **variables: str) -> Ended:
    """Run Python in ``folder`` to its end; interrupted, let it end its own processes."""
    start_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate()
    except BaseException:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=60)
        raise
    finally:
        process.kill()
        process.wait()
    return Ended(time.monotonic() - start_s, process.returncode, output)


def git(folder: Path, *arguments: str) -> str:
    """Run git in ``folder`` as a made-up author, and return what it prints."""
    author = ("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost", "-c", "commit.gpgsign=false")
    argv = ["git", *author, *arguments]
    return subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, and the folders that they are in."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")


def commit(folder: Path, subject: str) -> None:
    """Commit everything, to a new repository where there is none."""
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", subject)


def commit_comment(project: Path) -> None:
    """Commit one more comment in a module that every test loads."""
    with (project / LOADED).open("a", encoding="utf-8") as module:
        module.write("\n# Another comment.\n")
    commit(project, "Change a comment")


def tell(text: str, end: str = "\n") -> None:
    """Write progress."""
    print(text, end=end, file=sys.stderr, flush=True)


# --------------------------------------------------------------------------- measures that take turns


def take_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> Samples:
    """Call every measure once a round, each round beginning with another one; return the samples of each."""
    names = list(measures)
    samples: Samples = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            samples[name].append(measures[name]())
    return samples


def paired(samples: Samples, name: str, other: str, relation: Callable[[float, float], float]) -> float:
    """Return the median over the rounds of a relation between two measures."""
    return statistics.median(map(relation, samples[name], samples[other]))


# --------------------------------------------------------------------------- tables


def percent(share: float, decimals: int = 1, sign: str = "") -> str:
    """Write a share; "+" as a sign is written for those over 0, too."""
    return f"{100 * share:{sign}.{decimals}f} %"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a Markdown table, the first column to the left and the others to the right."""
    table = Table(box=box.MARKDOWN)
    for name in head:
        table.add_column(Text(name), justify="right" if table.columns else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console(width=1000)
    with console.capture() as printed:
        console.print(table)
    print(f"\n{title}\n" if title else "", printed.get().strip(), "", sep="\n", flush=True)
