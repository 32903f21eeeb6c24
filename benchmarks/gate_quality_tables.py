"""The stored results of gate_quality.py, and the tables of them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
from gate_quality_plugin import SLOWDOWN
from scipy.stats import binomtest
from shared import percent, print_table

RESULTS = "results.jsonl"
STATISTICS = ("mean", "median", "min")
LIMITS = (5, 3)
GATES = tuple(f"{name}:{limit}%" for limit in LIMITS for name in STATISTICS)

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
    status: str
    ratio: float | None
    pairs: int
    seconds: float


class Gate(msgspec.Struct, frozen=True, tag=True):
    """A run of the suite's unchanged code as a gate, beside the neighbour or alone."""

    repetition: int
    wall_s: float
    trials: tuple[Trial, ...]
    is_alone: bool = False


class Slowed(msgspec.Struct, frozen=True, tag=True):
    """The slowed trials of a self-check of the suite."""

    repetition: int
    trials: tuple[Trial, ...]


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


Line: TypeAlias = Session | Gate | Slowed | Benchmarks | Failed
Kind = TypeVar("Kind", Session, Gate, Slowed, Benchmarks, Failed)


class Log:
    """The results in a folder, and the place where new ones are stored at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / RESULTS
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


# --------------------------------------------------------------------------- tables


def gate_rows(gates: Sequence[Gate], slowed: Sequence[Slowed], benchmarks: Sequence[Benchmarks]) -> Iterator[list[str]]:
    """Yield a row a gate: to fail an unchanged test is a false alarm, to fail a slowed one is to find it."""
    if gates and slowed:
        failed = [[count(run.trials, "SLOWER") for run in runs] for runs in (gates, slowed)]
        left = [sum(count(run.trials, "UNDECIDED", "INVALID") for run in runs) for runs in (gates, slowed)]
        undecided = f"{left[0]} unchanged, {left[1]} at +{100 * SLOWDOWN:g} %"
        tests = len(gates[0].trials), len(slowed[0].trials)  # a gate has tests that are never slowed, too
        yield gate_row("live pairs, `3 %`", tests, failed, undecided, [run.wall_s for run in gates])
    for gate in GATES if benchmarks else ():
        failed = [
            [sum(gate in over for over in compared.failed.values()) for compared in runs]
            for runs in ([each.unchanged for each in benchmarks], [each.slowed for each in benchmarks])
        ]
        count_of_tests, seconds = len(benchmarks[0].unchanged.changes), [each.unchanged.seconds for each in benchmarks]
        yield gate_row(f"pytest-benchmark `{gate}`", (count_of_tests, count_of_tests), failed, "–", seconds)


def gate_row(
    gate: str, tests: tuple[int, int], failed: Sequence[Sequence[int]], undecided: str, seconds: Sequence[float]
) -> list[str]:
    """Return a gate's row: ``failed`` has the tests that failed in each unchanged run, and in each slowed one.

    An unchanged run has so many ``tests``, and a slowed one.
    """
    alarms, found = (share(sum(counts), each * len(counts)) for each, counts in zip(tests, failed, strict=True))
    alarmed = f"{sum(map(bool, failed[0]))} of {len(failed[0])}"
    return [gate, alarms, alarmed, found, undecided, f"{statistics.fmean(seconds) / tests[0]:.1f}"]


def count(trials: Iterable[Trial], *statuses: str) -> int:
    """Return how many trials have one of these statuses."""
    return sum(trial.status in statuses for trial in trials)


def component_rows(
    gates: Sequence[Gate], slowed: Sequence[Slowed], benchmarks: Sequence[Benchmarks]
) -> Iterator[list[str]]:
    """Yield a row a test: how far estimates spread, and what they cost."""
    for test in dict.fromkeys(trial.test for run in gates for trial in run.trials):
        cells = [test]
        for runs in (gates, slowed):
            trials = [trial for run in runs for trial in run.trials if trial.test == test]
            changes = [trial.ratio - 1 for trial in trials if trial.ratio is not None]
            typical = percent(statistics.median(changes), sign="+") if changes else "–"
            pairs = f"{statistics.median(trial.pairs for trial in trials):g}" if trials else "–"
            cells += [*(spread(changes) if runs is gates else [typical]), pairs]
        medians = [each.unchanged.changes[test]["median"] for each in benchmarks if test in each.unchanged.changes]
        yield [*cells, *spread(medians)]


def report(log: Log) -> None:
    """Print the tables."""
    gates, slowed, benchmarks = log.all(Gate), log.all(Slowed), log.all(Benchmarks)
    change = f"+{100 * SLOWDOWN:g} %"
    head = ["gate", "false alarms", "alarmed runs", f"{change} found", "undecided", "s a verdict"]
    print_table(head, gate_rows(gates, slowed, benchmarks))
    head = ["test", "live SD", "largest", "pairs", f"{change} seen", "pairs", "`median` SD", "largest"]
    print_table(head, component_rows(gates, slowed, benchmarks))
    print("A neighbour spins for about 4 s and sleeps for about 6 s in turns. Brackets: 95 %, Clopper and Pearson.")
    beside, alone = ([run for run in gates if run.is_alone is kind] for kind in (False, True))
    for name, runs in (("unchanged", beside), ("unchanged, without the neighbour", alone), (change, slowed)):
        print(f"Live, {name}: {statuses_of(trial for run in runs for trial in run.trials) or 'none'}.")
    if gates:
        alarmed = sum(count(run.trials, "SLOWER") > 0 for run in gates)
        bound = binomtest(alarmed, len(gates)).proportion_ci(0.90, method="exact").high  # one-sided 95 %
        print(
            f"{alarmed} of {len(gates)} live runs of unchanged code had a false alarm: at most {percent(bound)} of "
            f"runs have one (95 %). A run took {statistics.fmean(run.wall_s for run in gates):.0f} s."
        )
    if benchmarks:
        stored_s = statistics.fmean(each.stored_s for each in benchmarks)
        seconds = statistics.fmean(each.unchanged.seconds for each in benchmarks)
        print(
            f"A comparing run of pytest-benchmark took {seconds:.0f} s, and the stored run it needs {stored_s:.0f} s."
        )
    if failed := log.all(Failed):
        print(f"{len(failed)} steps failed and are not in the tables.")
    for session in log.all(Session):
        print(f"{session.started}: {session.code}, {session.machine}, {session.versions}.")


def share(count: int, whole: int) -> str:
    """Write a share with its interval."""
    interval = binomtest(count, whole).proportion_ci(0.95, method="exact")
    return f"{count} of {whole}: {percent(count / whole)} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def spread(changes: Sequence[float]) -> tuple[str, str]:
    """Write the standard deviation of changes, and the one farthest from none."""
    deviation = percent(statistics.stdev(changes), 2) if len(changes) > 1 else "–"
    return deviation, percent(max(changes, key=abs), sign="+") if changes else "–"


def statuses_of(trials: Iterable[Trial]) -> str:
    """Write how many trials have each status."""
    return ", ".join(f"{number} {status}" for status, number in Counter(trial.status for trial in trials).items())


def in_brief(line: Line) -> str:
    """Write what a step gave in a line."""
    if isinstance(line, Gate | Slowed):
        return (f"{line.wall_s:.0f} s, " if isinstance(line, Gate) else "") + statuses_of(line.trials)
    if isinstance(line, Benchmarks):
        counts = [len(compared.failed) for compared in (line.unchanged, line.slowed)]
        return f"{line.unchanged.seconds:.0f} s a run, a gate failed {counts[0]} unchanged and {counts[1]} slowed tests"
    return f"FAILED\n{line.output}" if isinstance(line, Failed) else line.started
