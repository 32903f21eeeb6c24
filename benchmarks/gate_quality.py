"""False alarms, power and seconds of live pairs and of pytest-benchmark's gates, on the shipped suite beside a load.

Each repetition runs the suite live, today's code against itself, unchanged and with 5 % of real extra work, and then
by pytest-benchmark: a stored run, a comparing run of unchanged code, and one with the same extra work. A spinning
neighbour is on for about 4 s and off for about 6 s all the while. Prints Markdown tables and judges nothing::

    python benchmarks/gate_quality.py                     # about three minutes a repetition, 15 of them
    python benchmarks/gate_quality.py --out DIR           # what is missing in DIR
    python benchmarks/gate_quality.py --report DIR        # the tables of what is in DIR

To pytest this file is a plugin that has pytest-benchmark answer the suite's fixtures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import pytest

from pytest_rlperf.fixtures import ENGINE, RunOnce
from pytest_rlperf.measure.slowdown import slowed, steps_for
from pytest_rlperf.model import Result, Workload

SLOWDOWN = 0.05
STATISTICS = ("mean", "median", "min")
GATES = tuple(f"{statistic}:{percent}%" for percent in (5, 3) for statistic in STATISTICS)
ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "pytest_rlperf" / "suite"
VARIABLE = "GATE_QUALITY_SLOWDOWN"
NEIGHBOUR = """
import os, random, time
parent = os.getppid()
while os.getppid() == parent:
    end = time.monotonic() + random.uniform(3, 5)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(5, 7))
"""

# --------------------------------------------------------------------------- the plugin


class ByBenchmark:
    """Has pytest-benchmark measure a workload, where the variable says so with extra work of a share of it."""

    def __init__(self, benchmark: Any) -> None:
        self._benchmark = benchmark

    def measure(self, workload: Workload, item: pytest.Item) -> Result:
        """Check, size the extra work and benchmark; all runs prepare alike, whether they then use it or not."""
        if workload.setup is not None:
            raise NotImplementedError(f"{item.name} has a setup, which would want benchmark.pedantic")
        start_s = time.perf_counter()
        workload.check()
        steps = steps_for(SLOWDOWN, workload.call, None, time.perf_counter_ns)
        self._benchmark.extra_info["prepared_s"] = time.perf_counter() - start_s
        self._benchmark(slowed(workload.call, steps) if os.environ[VARIABLE] == "yes" else workload.call)
        return RunOnce().measure(workload, item)


@pytest.fixture(autouse=True)
def _answered_by_benchmark(request: pytest.FixtureRequest, benchmark: Any) -> None:
    """Put pytest-benchmark behind every rlperf fixture."""
    request.config.stash[ENGINE] = ByBenchmark(benchmark)


# --------------------------------------------------------------------------- what is kept, a line of JSON each


class Session(msgspec.Struct, frozen=True, tag=True):
    """One start of this script: when, the code, the machine and the versions."""

    started: str
    code: str
    machine: str
    versions: str


class Trial(msgspec.Struct, frozen=True):
    """One live verdict."""

    test: str
    slowdown: float
    status: str
    ratio: float | None
    pairs: int
    seconds: float


class Live(msgspec.Struct, frozen=True, tag=True):
    """A live run of the suite."""

    repetition: int
    wall_s: float
    trials: tuple[Trial, ...]

    @property
    def unchanged_s(self) -> float:
        """What a run of unchanged tests alone takes: all there is but the slowed trials."""
        return self.wall_s - sum(trial.seconds for trial in self.trials if trial.slowdown)


class Compared(msgspec.Struct, frozen=True):
    """A comparing run of pytest-benchmark: seconds, gates failed by test, and changes by test and statistic."""

    seconds: float
    failed: dict[str, tuple[str, ...]]
    changes: dict[str, dict[str, float]]


class Benchmarks(msgspec.Struct, frozen=True, tag=True):
    """pytest-benchmark's runs of a repetition."""

    repetition: int
    stored_s: float
    unchanged: Compared
    slowed: Compared


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A step that gave no figures."""

    repetition: int
    step: str
    output: str


Line: TypeAlias = Session | Live | Benchmarks | Failed
Kind = TypeVar("Kind", bound=msgspec.Struct)


class StepError(Exception):
    """A run gave no figures."""


class Log:
    """What was kept in a folder, and where more of it goes at once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "results.jsonl"
        self._lines: list[Line] = []
        if self._path.exists():
            self._lines = msgspec.json.Decoder(Line).decode_lines(self._path.read_bytes())

    def add(self, line: Line) -> None:
        """Keep a line, so that whatever happens next it is there."""
        self._lines.append(line)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Return the lines of a kind, in order."""
        return [line for line in self._lines if isinstance(line, kind)]


# --------------------------------------------------------------------------- running


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Load the machine beside the body; a neighbour whose parent was killed ends by itself."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR], start_new_session=True)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run(arguments: Sequence[str], folder: Path, **variables: str) -> tuple[float, int, str]:
    """Run pytest in ``folder``; return its seconds, exit code and output. Interrupted, it gets time to end its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    start_s = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=kept | variables,
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
            process.communicate(timeout=30)
        process.kill()
        process.wait()
        raise
    return time.monotonic() - start_s, process.returncode, output


def run_live(repetition: int, folder: Path) -> Live:
    """Compare the suite with itself in live pairs."""
    path = folder / "live.json"
    arguments = [str(SUITE.relative_to(ROOT)), "--rlperf-selfcheck", "-o", f"rlperf_slowdowns={100 * SLOWDOWN:g}%"]
    wall_s, code, output = run([*arguments, f"--rlperf-json={path}"], ROOT)
    if code != 0 or not path.exists():
        raise StepError(output)
    trials = []
    for nodeid, check in json.loads(path.read_text(encoding="utf-8"))["tests"].items():
        for trial in check["trials"]:
            estimate = trial["verdict"]["estimate"]
            trials.append(
                Trial(
                    test=nodeid.rpartition("::")[2],
                    slowdown=trial["slowdown"],
                    status=trial["verdict"]["status"],
                    ratio=None if estimate is None else estimate["ratio"],
                    pairs=len(trial["pairs"]),
                    seconds=trial["seconds"],
                )
            )
    return Live(repetition, wall_s, tuple(trials))


def run_benchmarks(repetition: int, folder: Path) -> Benchmarks:
    """Store the suite's figures by pytest-benchmark, and compare unchanged and slowed code with them."""
    stored_s, stored, _ = run_benchmark(folder, "--benchmark-save=stored", slow=False)

    def compare(*, slow: bool) -> Compared:
        gates = [f"--benchmark-compare-fail={gate}" for gate in GATES]
        seconds, found, failed = run_benchmark(folder, "--benchmark-compare=0001", *gates, slow=slow)
        changes = {
            test: {name: figures[name] / stored[test][name] - 1 for name in STATISTICS}
            for test, figures in found.items()
        }
        return Compared(seconds, failed, changes)

    return Benchmarks(repetition, stored_s, compare(slow=False), compare(slow=True))


Figures: TypeAlias = Mapping[str, Mapping[str, float]]


def run_benchmark(folder: Path, *arguments: str, slow: bool) -> tuple[float, Figures, dict[str, tuple[str, ...]]]:
    """Run the suite by pytest-benchmark; return seconds but for preparing, figures by test, and gates failed by test."""
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    path = folder / "benchmark.json"
    path.unlink(missing_ok=True)
    own = ["-c", "pytest.ini", "--rootdir=.", f"--confcutdir={SUITE}", "-p", Path(__file__).stem]
    outputs = ["--benchmark-storage=file://./stored", f"--benchmark-json={path}"]
    variables = {"PYTHONPATH": str(Path(__file__).resolve().parent), VARIABLE: "yes" if slow else "no"}
    wall_s, code, output = run([str(SUITE), *own, *outputs, *arguments], folder, **variables)
    failed: dict[str, tuple[str, ...]] = {}
    for test, name, limit in re.findall(r"^\t(\S+) \(.*\) - Field '(\w+)' has failed .* > ([0-9.]+)$", output, re.M):
        failed[test] = (*failed.get(test, ()), f"{name}:{float(limit):g}%")
    summary = re.search(r"^=+ (.*) in [0-9.]+s", output, re.M)
    passed = summary is not None and re.fullmatch(r"\d+ passed", summary[1]) is not None
    if not path.exists() or (code != 0) != bool(failed) or not (failed or passed):
        raise StepError(output)
    found = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
    prepared_s = sum(each["extra_info"]["prepared_s"] for each in found)
    return wall_s - prepared_s, {each["name"]: each["stats"] for each in found}, failed


def measure(log: Log, repetitions: int) -> None:
    """Do what is missing of so many repetitions, each step into the log as soon as it is done."""
    log.add(this_session())
    done = {(type(line), line.repetition) for kind in (Live, Benchmarks) for line in log.all(kind)}
    steps: tuple[tuple[type[Live | Benchmarks], Callable[[int, Path], Live | Benchmarks]], ...] = (
        (Live, run_live),
        (Benchmarks, run_benchmarks),
    )
    with neighbour():
        for repetition in range(1, repetitions + 1):
            for kind, step in steps:
                if (kind, repetition) in done:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    tell(f"repetition {repetition} of {repetitions}: {kind.__name__} ... ", end="")
                    try:
                        line: Line = step(repetition, Path(folder))
                    except StepError as error:
                        line = Failed(repetition, kind.__name__, str(error)[-4000:])
                log.add(line)
                tell(in_brief(line))


def this_session() -> Session:
    """Say what is about to be measured, and where."""
    from pytest_rlperf.baseline.machine import describe, this_machine

    names = ("torch", "gymnasium", "numpy", "pytest", "pytest-benchmark")
    command = ["git", "describe", "--always", "--dirty=+changes", "--abbrev=12"]
    described = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True).stdout.strip()
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    return Session(time.strftime("%Y-%m-%d %H:%M"), described or "unknown", describe(this_machine()), versions)


def tell(text: str, end: str = "\n") -> None:
    """Write progress."""
    print(text, end=end, file=sys.stderr, flush=True)


def in_brief(line: Line) -> str:
    """Write what a step gave in a line."""
    if isinstance(line, Live):
        seen = Counter(f"{trial.status} at +{100 * trial.slowdown:g} %" for trial in line.trials)
        return f"{line.wall_s:.0f} s, {', '.join(f'{count} {what}' for what, count in seen.items())}"
    if isinstance(line, Benchmarks):
        counts = [len(compared.failed) for compared in (line.unchanged, line.slowed)]
        return f"{line.unchanged.seconds:.0f} s a run, a gate failed {counts[0]} unchanged and {counts[1]} slowed tests"
    return f"FAILED\n{line.output}" if isinstance(line, Failed) else line.started


# --------------------------------------------------------------------------- tables


class Tally(msgspec.Struct, frozen=True):
    """What a gate did: unchanged and slowed tests failed and left undecided by run, and seconds a verdict."""

    gate: str
    tests: int
    unchanged: tuple[int, ...]
    slowed: tuple[int, ...]
    undecided: str
    seconds: float

    def row(self) -> list[str]:
        """Write it as a row."""
        alarmed = sum(1 for count in self.unchanged if count)
        return [
            self.gate,
            share(sum(self.unchanged), self.tests * len(self.unchanged)),
            f"{alarmed} of {len(self.unchanged)}",
            share(sum(self.slowed), self.tests * len(self.slowed)),
            self.undecided,
            f"{self.seconds:.1f}",
        ]


def tallies(lives: Sequence[Live], benchmarks: Sequence[Benchmarks]) -> Iterator[Tally]:
    """Yield what each gate did; to fail an unchanged test is a false alarm, to fail a slowed one is to find it."""
    if lives:
        tests = len({trial.test for trial in lives[0].trials})
        unchanged, slowed = (
            tuple(sum(t.status == "SLOWER" and (t.slowdown > 0) == slow for t in live.trials) for live in lives)
            for slow in (False, True)
        )
        left = [trial.slowdown for live in lives for trial in live.trials if trial.status in ("UNDECIDED", "INVALID")]
        undecided = f"{left.count(0.0)} unchanged, {len(left) - left.count(0.0)} at +{100 * SLOWDOWN:g} %"
        seconds = statistics.fmean(live.unchanged_s for live in lives) / tests
        yield Tally("live pairs, `3 %`", tests, unchanged, slowed, undecided, seconds)
    if benchmarks:
        tests = len(benchmarks[0].unchanged.changes)
        seconds = statistics.fmean(each.unchanged.seconds for each in benchmarks) / tests
        for gate in GATES:
            unchanged, slowed = (
                tuple(sum(gate in gates for gates in compared.failed.values()) for compared in runs)
                for runs in ([each.unchanged for each in benchmarks], [each.slowed for each in benchmarks])
            )
            yield Tally(f"pytest-benchmark `{gate}`", tests, unchanged, slowed, "–", seconds)


def component_rows(lives: Sequence[Live], benchmarks: Sequence[Benchmarks]) -> Iterator[list[str]]:
    """Yield a row a test: how far estimates spread, and what they cost."""
    for test in dict.fromkeys(trial.test for live in lives for trial in live.trials):
        own = [trial for live in lives for trial in live.trials if trial.test == test]
        cells = [test]
        for slow in (False, True):
            trials = [trial for trial in own if (trial.slowdown > 0) == slow]
            changes = [trial.ratio - 1 for trial in trials if trial.ratio is not None]
            spread_or_seen = [percent(statistics.median(changes))] if slow else [deviation(changes), largest(changes)]
            pairs = statistics.median(trial.pairs for trial in trials)
            cells += [*spread_or_seen, f"{pairs:g}", f"{statistics.median(trial.seconds for trial in trials):.1f}"]
        medians = [each.unchanged.changes[test]["median"] for each in benchmarks if test in each.unchanged.changes]
        yield [*cells, deviation(medians), largest(medians)]


def report(log: Log) -> None:
    """Print the tables."""
    lives, benchmarks, failed = log.all(Live), log.all(Benchmarks), log.all(Failed)
    slowed = f"+{100 * SLOWDOWN:g} %"
    columns = ("false alarms", "runs with one", f"{slowed} found", "undecided", "s a verdict")
    print_table(["gate", *columns], [tally.row() for tally in tallies(lives, benchmarks)])
    columns = ("SD", "largest", "pairs", "s", f"{slowed} seen", "pairs", "s", "SD of `median`", "largest")
    print_table(["unchanged, live", *columns], component_rows(lives, benchmarks))
    print("Beside a spinning neighbour, on for about 4 s and off for about 6 s. Brackets: 95 %, Clopper and Pearson.")
    for name, slow in (("unchanged", False), (slowed, True)):
        said = Counter(trial.status for live in lives for trial in live.trials if (trial.slowdown > 0) == slow)
        print(f"Live, {name}: {', '.join(f'{count} {status}' for status, count in said.items()) or 'none'}.")
    if lives:
        unchanged_s, wall_s = (
            statistics.fmean(times) for times in zip(*((each.unchanged_s, each.wall_s) for each in lives))
        )
        print(f"A live run of unchanged tests took {unchanged_s:.0f} s, with the slowed trials {wall_s:.0f} s.")
    if benchmarks:
        stored_s, seconds = (
            statistics.fmean(times) for times in zip(*((each.stored_s, each.unchanged.seconds) for each in benchmarks))
        )
        print(
            f"A comparing run of pytest-benchmark took {seconds:.0f} s, and the stored run it needs {stored_s:.0f} s."
        )
    if failed:
        print(f"{len(failed)} steps failed and are not in the tables.")
    for session in log.all(Session):
        print(f"{session.started}: {session.code}, {session.machine}, {session.versions}.")


def share(count: int, whole: int) -> str:
    """Write a share with its interval."""
    from scipy.stats import binomtest  # late: what pytest-benchmark measures shares a process with this module

    interval = binomtest(count, whole).proportion_ci(0.95, method="exact")
    return f"{count} of {whole}: {100 * count / whole:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def deviation(changes: Sequence[float]) -> str:
    """Write the standard deviation of changes."""
    return f"{100 * statistics.stdev(changes):.2f} %" if len(changes) > 1 else "–"


def largest(changes: Sequence[float]) -> str:
    """Write the change farthest from none."""
    return percent(max(changes, key=abs)) if changes else "–"


def percent(change: float) -> str:
    """Write a change."""
    return f"{100 * change:+.1f} %"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table, the first column to the left and the others to the right."""
    for line in (head, ["---", *["--:"] * (len(head) - 1)], *rows):
        print(f"| {' | '.join(line)} |")
    print()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=15, help="7 verdicts of each kind a repetition")
    parser.add_argument("--out", type=Path, help="keep results in this folder, and go on with what is there")
    parser.add_argument("--report", type=Path, metavar="DIR", help="print the tables of what is in this folder")
    options = parser.parse_args()
    if options.report is not None:
        report(Log(options.report))
        return
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="gate-quality-"))
    out.mkdir(parents=True, exist_ok=True)
    tell(f"results go to {out}; beside a neighbour that spins about 4 s of 10")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    log = Log(out)
    try:
        measure(log, options.repetitions)
    except KeyboardInterrupt:
        sys.exit(f"\ninterrupted; to go on: python benchmarks/{Path(__file__).name} --out {out}")
    report(log)


if __name__ == "__main__":
    main()
