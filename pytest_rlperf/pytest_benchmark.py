"""Tests written for pytest-benchmark, measured by this plugin and still in pytest-benchmark's own reports.

PYTEST_DONT_REWRITE: a worker loads it before pytest.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_rlperf.fixtures import ENGINE, claim
from pytest_rlperf.model.measured import Result, Workload

_FIXTURES = frozenset({"benchmark", "benchmark_weave"})
_TAKEN = pytest.StashKey[Any]()


def uses_benchmark(item: pytest.Item) -> bool:
    """Whether a test uses pytest-benchmark's fixture; another plugin's fixture of that name does not count."""
    if _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.get("benchmark", ())  # type: ignore[attr-defined]
    return any(definition.func.__module__.startswith("pytest_benchmark.") for definition in definitions[-1:])


@contextlib.contextmanager
def without_version_control() -> Iterator[None]:
    """Keep pytest-benchmark from asking git about the tree, for a file name, while it declares its options.

    A worker writes no such file. Git would write the index, and run commands from its settings.
    """
    asked = subprocess.check_output

    def ask(command: Any, *arguments: Any, **settings: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__", "").startswith("pytest_benchmark."):
            raise FileNotFoundError("workers of a measured run do not call version control")
        return asked(command, *arguments, **settings)

    subprocess.check_output = ask  # type: ignore[assignment]
    try:
        yield
    finally:
        subprocess.check_output = asked


class TakenOver:
    """The hooks that make pytest-benchmark's fixture measure with the engine of this process."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
        """Measure the fixture's calls here; the fixture does all else as before."""
        value = yield
        if fixturedef.argname == "benchmark" and uses_benchmark(request.node):
            _take_over(value, request.node)
        return value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the test's group and extra information along with its report."""
        report = yield
        fixture = item.stash.get(_TAKEN, None)
        if call.when == "call" and fixture is not None:
            benchmark = {"group": fixture.group, "extra_info": fixture.extra_info}
            report.rlperf_benchmark = json.dumps(benchmark, default=str, skipkeys=True)  # type: ignore[attr-defined]
        return report


def _take_over(fixture: Any, item: pytest.Item) -> None:
    item.stash[_TAKEN] = fixture

    def raw(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        _measure(item, lambda: function(*args, **kwargs))
        return function(*args, **kwargs)  # as the fixture itself does: the test goes on with this value

    def raw_pedantic(
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        **counts: int,  # of rounds and calls, which this plugin chooses itself
    ) -> Any:
        __tracebackhide__ = True
        rounds_ = _Rounds(target, (args, kwargs or {}), setup, teardown)
        if setup is None and teardown is None:
            _measure(item, rounds_.call)
        else:
            _measure(item, rounds_.call, rounds_.begin, rounds_.end)
        rounds_.begin()
        try:
            return rounds_.call()
        finally:
            rounds_.end()

    fixture._raw = raw
    fixture._raw_pedantic = raw_pedantic


@dataclass
class _Rounds:
    """Pedantic rounds: set up before each call and torn down after it, both untimed.

    ``given`` are the positional and keyword arguments of rounds whose setup returns none.
    """

    target: Callable[..., Any]
    given: tuple[Sequence[Any], Mapping[str, Any]]
    setup: Callable[[], Any] | None
    teardown: Callable[..., Any] | None
    _open: tuple[Sequence[Any], Mapping[str, Any]] | None = None  # the arguments of the round that is set up

    def begin(self) -> None:
        """End the round before, and set up the next one."""
        self.end()
        self._open = (None if self.setup is None else self.setup()) or self.given

    def call(self) -> Any:
        """Call the target."""
        args, kwargs = self._open or self.given
        return self.target(*args, **kwargs)

    def end(self) -> None:
        """Tear down the round, if that is still to be done."""
        opened, self._open = self._open, None
        if opened is not None and self.teardown is not None:
            args, kwargs = opened
            self.teardown(*args, **kwargs)


def _measure(
    item: pytest.Item,
    call: Callable[[], Any],
    setup: Callable[[], None] | None = None,
    end: Callable[[], None] | None = None,
) -> None:
    """Measure a call; ``end`` follows the last round."""
    __tracebackhide__ = True
    from pytest_rlperf.components.checks import finished

    def check() -> object:
        __tracebackhide__ = True
        if setup is not None:
            setup()
        return finished(call(), "the benchmarked function")

    workload = Workload(
        "benchmark", call, items=1.0, unit="call", check=check, setup=setup, close=end or (lambda: None)
    )
    claim(item)
    item.config.stash[ENGINE](workload, item)


def add_stats(item: pytest.Item, result: Result, benchmark: str) -> None:
    """Enter a result into pytest-benchmark's session: each process is a round in its table and its JSON."""
    from pytest_benchmark.fixture import BenchmarkFixture

    from pytest_rlperf.report.exports import iterations, rounds_s

    session = item.config._benchmarksession  # type: ignore[attr-defined]
    marker = item.get_closest_marker("benchmark")
    options = {**session.options, **(dict(marker.kwargs) if marker else {}), "timer": session.options["timer"]}
    make: Callable[..., Any] = BenchmarkFixture
    fixture = make(
        item, add_stats=session.benchmarks.append, logger=session.logger, warner=item.warn, disabled=False, **options
    )
    given = json.loads(benchmark)
    fixture.group, fixture.extra_info = given["group"], given["extra_info"]
    stats = fixture._make_stats(iterations(result))
    for round_s in rounds_s(result):
        stats.stats.update(round_s)
