"""Changes one operator or number of a room's code at a time, and runs the tests that execute that line.

::

    pip install cosmic-ray
    python benchmarks/mutation.py judge baseline                # every mutant
    python benchmarks/mutation.py judge/live.py --sample 100    # so many of each file, drawn by --seed

The mutants are cosmic-ray's: numbers one up and one down, arithmetic by its inverse, comparisons with the bound moved
and turned round, conditions turned round, ``and`` for ``or``, loops without a pass, exceptions not caught. Of each
operator's replacements these are kept; annotations are not changed. pytest collects once. Each mutant gets a fork of
that process, where its code takes the place of the original's, and the tests that execute its line, the quickest first.
It is killed where one of them fails, or takes too long. Survivors are printed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("judge", "live_judge", "verdict", "acceptance", "selfcheck_parts", "counters", "store")  # without threads
SLOWEST_S = 0.3  # of CPU time; a test that takes more is left out: it samples a rule that quicker tests check
LOADED = ("scipy.stats", "ruptures")  # before that time is taken: whichever test runs first would pay for loading them
LIMIT_S = 30.0  # of CPU time, of all tests of a mutant
WAIT_S = 20  # of all time, of one test: it may wait for what does not come

_LEFT_OUT = ("RemoveDecorator", "VariableInserter", "VariableReplacer")
_KEPT = {
    "ReplaceBinaryOperator": {
        *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_Mul", "Pow_Mul"),
        *("LShift_RShift", "RShift_LShift", "BitOr_BitAnd", "BitAnd_BitOr"),
    },
    "ReplaceComparisonOperator": {
        *("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt"),
        *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is"),
    },
    "ReplaceUnaryOperator": {"USub_UAdd", "Delete_Not", "Delete_USub"},
}


class Mutant(NamedTuple):
    """One change of one file."""

    path: Path
    line: int
    change: str
    source: str


class Reached(NamedTuple):
    """The tests that execute each line, but for those at import, and each test's CPU seconds."""

    tests: dict[tuple[str, int], set[str]]
    seconds: dict[str, float]


# ----------------------------------------------------------------------- the mutants


def mutants(path: Path, sample: int | None, seed: int) -> Iterator[Mutant]:
    """Yield the mutants of a file in random order, each once, and none that is the same code; ``sample`` of them."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    source = path.read_text(encoding="utf-8")
    tree = get_ast(source)
    places = []
    for name in sorted(operator_names()):
        kind, _, detail = name.partition("/")[2].partition("_")
        if kind not in _LEFT_OUT and detail in _KEPT.get(kind, {detail}):
            operator = get_operator(name)()
            spans = [span for node in ast_nodes(tree) for span in operator.mutation_positions(node)]
            places += [(operator, occurrence, line) for occurrence, ((line, _), _) in enumerate(spans)]
    random.Random(seed).shuffle(places)
    known = {_code(source)}
    for operator, occurrence, line in places:
        if sample is not None and len(known) > sample:
            break
        with contextlib.suppress(SyntaxError, AttributeError):  # of the last, dotted names of exceptions
            changed = mutate_code(source, operator, occurrence)
            code = _code(changed)
            if code not in known:
                known.add(code)
                yield Mutant(path, line, _difference(source, changed), changed)


def _code(source: str) -> str:
    """Return a file's code without its annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
            every = node.args  # whether arguments go by place or by name is a declaration, too
            every.args = [*every.posonlyargs, *every.args, *every.kwonlyargs]
            every.defaults += filter(None, every.kw_defaults)
            every.posonlyargs, every.kwonlyargs, every.kw_defaults = [], [], []
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def _difference(before: str, after: str) -> str:
    """Return the lines of a change."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    was, now = next((was, now) for was, now in pairs if was != now)
    return f"- {was.strip()}\n    + {now.strip()}"


# ----------------------------------------------------------------------- putting one in place


def apply(mutant: Mutant) -> None:
    """Put a mutant in the place of its module, which other modules have imported names of."""
    old = import_module(".".join(mutant.path.relative_to(ROOT).with_suffix("").parts))
    new = ModuleType(old.__name__)
    new.__dict__.update({name: old.__dict__[name] for name in ("__file__", "__package__", "__spec__")})
    exec(compile(mutant.source, str(mutant.path), "exec"), new.__dict__)  # noqa: S102 - this project's own code
    for name, value in vars(new).items():
        before = vars(old).get(name)
        if name.startswith("__") or value is before:
            continue
        if getattr(before, "__module__", None) == old.__name__ and isinstance(before, type | FunctionType):
            _replace(before, value)
            continue
        for module in list(sys.modules.values()):
            if module is old or vars(module).get(name) is before is not None:
                setattr(module, name, value)


def _replace(old: Any, new: Any) -> None:
    """Give a function or a class's methods the code of another."""
    if isinstance(old, FunctionType):
        if old.__code__.co_freevars == new.__code__.co_freevars:
            old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        if hasattr(old, "__wrapped__"):
            _replace(old.__wrapped__, new.__wrapped__)
        return
    for name, value in vars(new).items():
        before, after = (
            getattr(each, "fget", getattr(each, "__func__", each)) for each in (vars(old).get(name), value)
        )
        if isinstance(before, FunctionType) and isinstance(after, FunctionType):
            _replace(before, after)


# ----------------------------------------------------------------------- running tests


class Session:
    """A pytest session that runs chosen tests in forks of itself."""

    def __init__(self, work: Callable[[Session], None]) -> None:
        self.items: dict[str, Any] = {}
        self._work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do the work instead of running every test."""
        self.items = {item.nodeid: item for item in session.items}
        self._work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a fork whose test has failed."""
        if report.failed:
            os._exit(1)

    def reached(self, rooms: Sequence[str]) -> Reached:
        """Run every test in a fork of its own, to find those that pass in time and the lines that each executes."""
        tests: dict[tuple[str, int], set[str]] = defaultdict(set)
        seconds: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as directory:
            store = Path(directory, "lines")
            for test in self.items:
                if _in_fork(partial(self._try_out, test, rooms, store), LIMIT_S) == 0:
                    lines, seconds[test] = pickle.loads(store.read_bytes())  # noqa: S301 - written by this process
                    for line in lines:
                        tests[line].add(test)
        return Reached(dict(tests), seconds)

    def _try_out(self, test: str, rooms: Sequence[str], store: Path) -> None:
        """Write down the lines that a test executes, and its seconds; its process ends where it takes too many."""
        import coverage

        signal.setitimer(signal.ITIMER_PROF, SLOWEST_S)
        measured = coverage.Coverage(data_file=None, include=[f"*/{room}/*.py" for room in rooms])
        began_s = time.process_time()
        measured.start()
        self._run([test])
        measured.stop()
        data, seconds = measured.get_data(), time.process_time() - began_s
        lines = [(name, line) for name in data.measured_files() for line in data.lines(name) or ()]
        store.write_bytes(pickle.dumps((lines, seconds)))

    def is_killed(self, mutant: Mutant, reach: Reached) -> bool:
        """Whether a test of a mutant's line fails."""
        name = str(mutant.path)
        tests = reach.tests.get((name, mutant.line), set())
        if not tests:  # the line is executed at import
            tests = {test for (file, _), found in reach.tests.items() if file == name for test in found}
        chosen = sorted(tests & reach.seconds.keys(), key=lambda test: reach.seconds[test])

        def work() -> None:
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            apply(mutant)
            self._run(chosen)

        return _in_fork(work, 4 * LIMIT_S) != 0

    def _run(self, chosen: Sequence[str]) -> None:
        items = [self.items[test] for test in chosen]
        for item, following in zip(items, [*items[1:], None][: len(items)], strict=True):
            signal.alarm(WAIT_S)  # which ends the fork
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)


def _in_fork(work: Callable[[], None], limit_s: float) -> int:
    """Return the status of a fork of this process that does some work: 0 where it has done it."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            work()
            status = 0
        finally:
            os._exit(status)
    deadline_s = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline_s:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return -1
        time.sleep(0.005)


# ----------------------------------------------------------------------- the whole


def main() -> int:
    """Try the mutants of the rooms or files given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", help="rooms or files of the package, such as judge or judge/live.py")
    parser.add_argument("--sample", type=int, help="mutants of each file at the most, drawn by --seed; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="the files of tests, without test_ and .py")
    options = parser.parse_args()
    places = [ROOT / "pytest_rlperf" / room for room in options.rooms]
    files = [file for place in places for file in (sorted(place.glob("*.py")) if place.is_dir() else [place])]
    survivors = []

    def work(session: Session) -> None:
        reach = session.reached(sorted({file.parent.name for file in files}))
        print(f"{len(reach.seconds)} of {len(session.items)} tests, {sum(reach.seconds.values()):.1f} s")
        print(f"{'file':<24}{'mutants':>9}{'killed':>8}{'survived':>10}{'seconds':>9}", flush=True)
        for file in files:
            survivors.extend(_try(file, session, reach, options.sample, options.seed))

    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT)]
    for name in LOADED:
        import_module(name)
    tests = [f"tests/test_{name}.py" for name in options.tests]
    pytest.main(["-q", "-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[Session(work)])
    return 1 if survivors else 0


def _try(file: Path, session: Session, reach: Reached, sample: int | None, seed: int) -> list[Mutant]:
    """Print and return the survivors of a file's mutants."""
    if session.is_killed(Mutant(file, 1, "", file.read_text(encoding="utf-8")), reach):
        raise SystemExit(f"the tests of {file} fail without a change, too")
    began_s, tried, alive = time.monotonic(), 0, []
    for mutant in mutants(file, sample, seed):
        tried += 1
        if not session.is_killed(mutant, reach):
            alive.append(mutant)
    name = str(file.relative_to(ROOT / "pytest_rlperf"))
    row = f"{tried:>9}{tried - len(alive):>8}{len(alive):>10}"
    print(f"{name:<24}{row}{time.monotonic() - began_s:>9.0f}", flush=True)
    for mutant in sorted(alive):
        print(f"  {name}:{mutant.line}\n    {mutant.change}", flush=True)
    return alive


if __name__ == "__main__":
    raise SystemExit(main())
