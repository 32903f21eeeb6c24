"""The strength of the tests in a few figures, to be compared before and after they are rewritten.

::

    pip install cosmic-ray
    python benchmarks/strength.py                      # all of it: about half an hour
    python benchmarks/strength.py phrases coverage     # some of it

The sampled mutants are those of docs/reliability.md: the same seed, so the same changes where a file is the same.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ("anchor", "history", "machine", "provenance", "schema", "store")
JUDGED = ("judge", "live_judge", "verdict", "counters", "acceptance", "selfcheck_parts", "bisection")
STORED = ("store", "anchor", "courses", "conditions")
MUTANTS = (  # files, mutants of each, tests
    (("judge/stored.py", "judge/counters.py", "judge/policy.py"), 50, ("judge", "counters", "verdict")),
    (("judge/verdict.py",), 50, ("verdict", "acceptance")),
    (("judge/stats.py", "judge/validity.py", "judge/live.py"), 30, ("judge", "live_judge", "verdict")),
    (tuple(f"baseline/{name}.py" for name in BASELINE), 30, STORED),
)
STARTED = ("workers", "channel", "reliability", "lifecycle", "pools", "worker_session", "main_job", "live", "lanes")
WITHIN = ("live_comparison", "pairs", "slices", "one_side", "placement", "counting", "saving", "options")
COVERED = (  # rooms, tests; all of them in the processes that the tests start, too
    (("judge", "baseline"), (*JUDGED, *STORED)),
    (("run", "workers", "measure"), (*STARTED, *WITHIN)),
)
_PHRASE = re.compile(r"[A-Za-z]{2,}[,;:.]? +[A-Za-z]+[,;:.]? +[A-Za-z]{2,}")


def _files(names: tuple[str, ...]) -> list[str]:
    """Return the files of tests that there still are."""
    return [f"tests/test_{name}.py" for name in names if (ROOT / f"tests/test_{name}.py").exists()]


def _output(*command: str) -> str:
    """Return what a Python program writes."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


# ----------------------------------------------------------------------- wording


def phrases() -> Iterator[str]:
    """Count the strings of three words or more that tests compare with, outside the catalogue."""
    found = {path: len(_asserted(ast.parse(path.read_text("utf-8")))) for path in (ROOT / "tests").rglob("*.py")}
    lines = sum(len(path.read_text("utf-8").splitlines()) for path in found)
    yield f"{sum(found.values())} phrases asserted, {lines} lines in {len(found)} files of tests"


def _asserted(tree: ast.AST) -> set[tuple[int, int]]:
    """Return the places of phrases in asserts, in expected errors and lines, and in the columns that get into these."""
    places: set[tuple[int, int]] = set()
    for node in ast.walk(tree):
        for compared in _compared(node):
            places.update(_phrases(compared))
        if isinstance(node, ast.FunctionDef):
            names = {name.id for part in ast.walk(node) for compared in _compared(part) for name in _names(compared)}
            for decorator in node.decorator_list:
                for column, cell in _cells(decorator):
                    if column in names:
                        places.update(_phrases(cell))
    return places


def _compared(node: ast.AST) -> list[ast.expr]:
    """Return what a node compares with, if it is an assert or expects an error or a line."""
    match node:
        case ast.Assert(test=test):
            return [test]
        case ast.keyword(arg="match", value=value):
            return [value]
        case ast.Call(func=ast.Attribute(attr=name), args=args) if "match_line" in name:
            return args
    return []


def _names(node: ast.expr) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _phrases(node: ast.expr) -> Iterator[tuple[int, int]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str | bytes):
            text = part.value if isinstance(part.value, str) else part.value.decode("latin-1")
            if _PHRASE.search(text.replace("\\", "")):
                yield part.lineno, part.col_offset


def _cells(decorator: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the cells of a parametrised test, each with its column's name."""
    match decorator:
        case ast.Call(func=ast.Attribute(attr="parametrize"), args=[names, ast.List() | ast.Tuple() as rows, *_]):
            listed = ast.literal_eval(names)
            columns = [name.strip() for name in listed.split(",")] if isinstance(listed, str) else listed
            for row in rows.elts:
                match row:
                    case ast.Call(args=cells):
                        yield from zip(columns, cells, strict=False)
                    case ast.Tuple(elts=cells) | ast.List(elts=cells) if len(columns) > 1:
                        yield from zip(columns, cells, strict=False)
                    case _:
                        yield columns[0], row


# ----------------------------------------------------------------------- what tests find


def coverage() -> Iterator[str]:
    """Measure the branch coverage of the judging rooms and of the engine."""
    for rooms, tests in COVERED:
        text = _output("benchmarks/faults/covered.py", ",".join(rooms), *_files(tests), "-n", "2", "--dist", "loadfile")
        total = re.findall(r"^TOTAL.*", text, re.MULTILINE)
        ended = re.findall(r"^\d+ (?:passed|failed).*", text, re.MULTILINE)
        yield f"{' '.join(rooms)}: {' '.join(total or [text[-2000:]])} ({' '.join(ended)})"


def mutants() -> Iterator[str]:
    """Try the sampled mutants."""
    tried = killed = 0
    for files, sample, tests in MUTANTS:
        there = [file for file in files if (ROOT / "pytest_rlperf" / file).exists()]
        named = [name for name in tests if (ROOT / f"tests/test_{name}.py").exists()]
        text = _output("benchmarks/mutation.py", *there, "--sample", str(sample), "--tests", *named)
        rows = re.findall(r"^(\S+\.py) +(\d+) +(\d+) +(\d+)", text, re.MULTILINE)
        if len(rows) < len(there):
            yield text[-2000:]
        for name, of_file, found, _ in rows:
            tried, killed = tried + int(of_file), killed + int(found)
            yield f"{name}: {found} of {of_file} killed"
    yield f"{killed} of {tried} killed"


def defects() -> Iterator[str]:
    """Run the planted defects."""
    yield _output("-m", "pytest", "-q", "tests/test_planted_defects.py").splitlines()[-1]


def fuzzing() -> Iterator[str]:
    """Run the quick fuzzing of every reader."""
    yield _output("-m", "pytest", "-q", "tests/test_fuzz.py").splitlines()[-1]


CHECKS: dict[str, Callable[[], Iterator[str]]] = {
    check.__name__: check for check in (phrases, defects, fuzzing, coverage, mutants)
}


def main() -> None:
    """Print the figures of the checks named, or of all."""
    for name in sys.argv[1:] or CHECKS:
        for line in CHECKS[name]():
            print(f"{name:<9} {line}", flush=True)


if __name__ == "__main__":
    main()
