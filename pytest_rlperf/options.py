"""One table of options, and the frozen configuration it becomes.

A marker beats the command line, which beats the ini file, which beats the default. Command-line defaults are all
``None``, so that "not given" is never taken for "given".
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_rlperf.values import (
    Counters,
    parse_alpha,
    parse_confirm,
    parse_counters,
    parse_duration,
    parse_edges,
    parse_flag,
    parse_name,
    parse_packages,
    parse_pairs,
    parse_path,
    parse_reason,
    parse_slowdowns,
    parse_spec,
    parse_tolerance,
)

if TYPE_CHECKING:
    from _pytest.nodes import Node

MARKER = "rlperf"


class Option(NamedTuple):
    """One row of the table: how a setting is spelled in each place, and how it is read."""

    name: str
    flag: str | None
    ini: bool
    marker: bool
    parse: Callable[[object], Any]
    default: Any
    metavar: str | None
    help: str


OPTIONS = (
    Option("active", "--rlperf", False, False, parse_flag, False, None,
           "measure, compare with the baseline, fail on regressions; only tests with an rlperf fixture run"),
    Option("save", "--rlperf-save-baseline", False, False, parse_flag, False, None,
           "measure and store the figures as the baseline (implies --rlperf)"),
    Option("baseline", "--rlperf-baseline", True, False, parse_name, "default", "NAME",
           "which baseline to compare with or store (default: 'default')"),
    Option("accept", "--rlperf-accept", False, False, parse_reason, None, "REASON",
           "with --rlperf-save-baseline: replace figures although something is SLOWER; the reason is kept"),
    Option("baseline_dir", "--rlperf-baseline-dir", True, False, parse_path, Path("baselines"), "DIR",
           "where baselines are kept (default: baselines/ under the rootdir)"),
    Option("against", "--rlperf-against", False, False, parse_spec, None, "SPEC",
           "compare live, side by side, with a git ref, pip:REQ[,REQ...], dir:PATH or python:PATH"),
    Option("confirm", "--rlperf-confirm", True, False, parse_confirm, "auto", "WHEN",
           "whether live pairs against the baseline's commit settle what stored numbers cannot call SAME: auto, "
           "always or never (default: auto)"),
    Option("pairs", "--rlperf-pairs", True, False, parse_pairs, (3, 10), "LEAST..MOST",
           "the fewest and the most live pairs of a test (default: 3..10)"),
    Option("packages", None, True, False, parse_packages, (), None,
           "the import packages under test, where they are not those that lie in the tree"),
    Option("tolerance", "--rlperf-tolerance", True, True, parse_tolerance, None, "PERCENT",
           "the smallest slowdown worth failing for (default: 3%% live, 20%% where there are only stored numbers, "
           "which never convict under that)"),
    Option("alpha", "--rlperf-alpha", True, False, parse_alpha, 0.01, "P",
           "the chance of any false alarm in a run (default: 0.01)"),
    Option("max_time_s", "--rlperf-max-time", True, True, parse_duration, 60.0, "SECONDS",
           "how long a test may be measured (default: 60)"),
    Option("budget_s", "--rlperf-budget", True, False, parse_duration, None, "SECONDS",
           "how long all tests together may be measured, shared out evenly"),
    Option("strict", "--rlperf-strict", True, False, parse_flag, False, None,
           "UNDECIDED, NEW, INCOMPARABLE and INVALID fail too"),
    Option("inline", "--rlperf-inline", False, False, parse_flag, False, None,
           "measure in this process, for a debugger; never convicts"),
    Option("selfcheck", "--rlperf-selfcheck", False, False, parse_flag, False, None,
           "tell what this machine can: false alarms and the smallest slowdown seen, on your tests"),
    Option("slowdowns", None, True, False, parse_slowdowns, (0.02, 0.03, 0.05, 0.10), None,
           "the slowdowns a self-check tries, beside none (default: 2% 3% 5% 10%)"),
    Option("json", "--rlperf-json", False, False, parse_path, None, "FILE",
           "write what was found, figures and verdicts, as JSON"),
    Option("html", "--rlperf-html", False, False, parse_path, None, "FILE",
           "write a report as one HTML file that works offline (needs plotly: the extra `html`)"),
    Option("benchmark_json", "--rlperf-benchmark-json", False, False, parse_path, None, "FILE",
           "write the figures in pytest-benchmark's JSON, for the tools that read it"),
    Option("benchmark_phases", "--rlperf-benchmark-phases", False, False, parse_flag, False, None,
           "with --rlperf-benchmark-json: phases as rows of their own"),
    Option("device_edges", "--rlperf-device-edges", True, False, parse_edges, "events", "HOW",
           "how phases on an accelerator are told: by events, or by sync, which waits for the device at every edge and "
           "destroys the overlap (default: events)"),
    Option("trace", "--rlperf-trace", False, False, parse_path, None, "DIR",
           "write one call of each test and side for Perfetto and speedscope"),
    Option("min_change_s", None, False, True, parse_duration, 0.0, None,
           "an absolute time per call: a smaller change never fails"),
    Option("gate", None, False, True, parse_flag, True, None,
           "False shows the verdict without failing on it"),
    Option("counters", "--rlperf-counters", True, True, parse_counters, Counters("show", ()), "off|show|gate",
           "whether what a call does is counted and shown, and whether a count that got worse fails; a marker names "
           "those that do in its test (default: show)"),
)  # fmt: skip

_MARKER_NAMES = {option.name.removesuffix("_s"): option for option in OPTIONS if option.marker}


@dataclass(frozen=True)
class Config:
    """The settings of a run, or of one test of it."""

    active: bool
    save: bool
    baseline: str
    accept: str | None
    baseline_dir: Path
    against: str | None
    confirm: str
    pairs: tuple[int, int]
    packages: tuple[str, ...]
    tolerance: float | None
    alpha: float
    max_time_s: float
    budget_s: float | None
    strict: bool
    inline: bool
    selfcheck: bool
    slowdowns: tuple[float, ...]
    json: Path | None
    html: Path | None
    benchmark_json: Path | None
    benchmark_phases: bool
    device_edges: str
    trace: Path | None
    min_change_s: float
    gate: bool
    counters: Counters

    def for_test(self, item: pytest.Item) -> Config:
        """Return the settings with ``item``'s markers on top, the closest marker first."""
        overrides: dict[str, Any] = {}
        for node, marker in item.iter_markers_with_node(MARKER):
            for name, value in _marker_settings(marker, _place(node, item)).items():
                overrides.setdefault(name, value)
        if not self.counters.are_counted:
            overrides.pop("counters", None)  # off is off: it is there to find out what counting does to a test
        return replace(self, **overrides) if overrides else self


def add_options(parser: pytest.Parser) -> None:
    """Declare every row of the table to pytest."""
    group = parser.getgroup("rlperf", "performance regression tests for reinforcement learning")
    for option in OPTIONS:
        dest = f"rlperf_{option.name}"
        if option.flag is None:
            pass
        elif option.parse is parse_flag:
            group.addoption(option.flag, dest=dest, action="store_true", default=None, help=option.help)
        else:
            group.addoption(option.flag, dest=dest, default=None, metavar=option.metavar, help=option.help)
        if option.ini:
            parser.addini(_ini_name(option), option.help.replace("%%", "%"), default=None)


def add_marker(config: pytest.Config) -> None:
    """Register the marker, so that --strict-markers knows it."""
    keywords = ", ".join(f"{name}=…" for name in _MARKER_NAMES)
    config.addinivalue_line("markers", f"{MARKER}({keywords}): how one test is measured and judged; see the README")


def check_markers(item: pytest.Item) -> None:
    """Raise UsageError where one of the test's markers cannot be read."""
    for node, marker in item.iter_markers_with_node(MARKER):
        _marker_settings(marker, _place(node, item))


def read_option(config: pytest.Config, name: str) -> Any:
    """Return one setting of the run; UsageError where it cannot be read."""
    return next(_read(option, config) for option in OPTIONS if option.name == name)


def read_config(config: pytest.Config) -> Config:
    """Return the run's settings; a value that cannot be read, or a combination without sense, is a UsageError."""
    values = {option.name: _read(option, config) for option in OPTIONS}
    settings = Config(**values)
    if settings.save or settings.inline or settings.selfcheck or settings.against is not None:
        settings = replace(settings, active=True)
    _refuse_nonsense(settings, config)
    directory = settings.baseline_dir
    return replace(settings, baseline_dir=directory if directory.is_absolute() else config.rootpath / directory)


def _refuse_nonsense(settings: Config, config: pytest.Config) -> None:
    """Raise UsageError for a combination of options that has no sense."""
    if settings.accept is not None and not settings.save:
        raise pytest.UsageError(
            "--rlperf-accept has nothing to accept: it goes with --rlperf-save-baseline, which stores the new figures"
        )
    if not settings.active:
        _refuse_idle(config)
    others = {"html": settings.html, "benchmark-json": settings.benchmark_json, "trace": settings.trace}
    for name, path in {"json": settings.json, **others}.items():
        if not settings.active and path is not None:
            raise pytest.UsageError(f"--rlperf-{name} has nothing to write: it goes with --rlperf, which measures")
    if settings.benchmark_phases and settings.benchmark_json is None:
        raise pytest.UsageError("--rlperf-benchmark-phases adds rows to a file: it goes with --rlperf-benchmark-json")
    if settings.selfcheck and any(path is not None for path in others.values()):
        raise pytest.UsageError("--rlperf-selfcheck writes --rlperf-json only: leave out other outputs")
    if settings.inline and settings.save:
        raise pytest.UsageError(
            "--rlperf-inline measures in one process, too little for a baseline: leave out one of --rlperf-inline "
            "and --rlperf-save-baseline"
        )
    if (
        settings.active
        and not settings.inline
        and (getattr(config.option, "usepdb", False) or getattr(config.option, "trace", False))
    ):
        raise pytest.UsageError(
            "--rlperf measures in processes of their own, where a debugger has no terminal: add --rlperf-inline to "
            "use --pdb or --trace"
        )
    live = "--rlperf-selfcheck" if settings.selfcheck else "--rlperf-against" if settings.against is not None else None
    if live is not None and settings.inline:
        raise pytest.UsageError(f"{live} needs processes of its own to compare: leave out --rlperf-inline")
    if settings.selfcheck and (settings.save or settings.against is not None):
        other = "--rlperf-save-baseline" if settings.save else "--rlperf-against"
        raise pytest.UsageError(f"--rlperf-selfcheck compares your code with itself: leave out {other}")


def _refuse_idle(config: pytest.Config) -> None:
    """Raise UsageError where the command line asks to fail on something, and nothing is measured: a gate never shut.

    In ``addopts`` such flags may stand for runs that do measure.
    """
    for arg in map(str, config.invocation_params.args):
        flag = arg.partition("=")[0]
        if flag in ("--rlperf-strict", "--rlperf-counters"):
            raise pytest.UsageError(f"{flag} has nothing to judge: it goes with --rlperf, which measures")


def _ini_name(option: Option) -> str:
    return f"rlperf_{option.name.removesuffix('_s')}"


def _read(option: Option, config: pytest.Config) -> Any:
    """Read one option from the command line, else from the ini file, else its default."""
    value = None if option.flag is None else config.getoption(f"rlperf_{option.name}")
    source = option.flag or ""
    if value is None and option.ini:
        value = config.getini(_ini_name(option))
        source = f"ini option {_ini_name(option)}"
    if value is None:
        return option.default
    try:
        return option.parse(value)
    except ValueError as error:
        raise pytest.UsageError(f"{source}={value}: {error}") from None


def _place(node: Node, item: pytest.Item) -> str:
    """Return where the test, class or module is that bears a marker of ``item``, and what it is called."""
    _, line, _ = getattr(node, "reportinfo", item.reportinfo)()
    return f"{node.nodeid.partition('::')[0]}:{(line or 0) + 1}: {node.name}"


def _marker_settings(marker: pytest.Mark, place: str) -> dict[str, Any]:
    """Return one marker's settings by option name; anything it cannot mean is a UsageError."""
    where = f"{place}: @pytest.mark.{MARKER}"
    known = ", ".join(_MARKER_NAMES)
    if marker.args:
        raise pytest.UsageError(f"{where} takes keywords only ({known}), not {marker.args[0]!r}")
    settings = {}
    for name, value in marker.kwargs.items():
        if name not in _MARKER_NAMES:
            close = difflib.get_close_matches(name, _MARKER_NAMES, 1)
            meant = f" (did you mean {close[0]!r}?)" if close else ""
            raise pytest.UsageError(f"{where} has no keyword {name!r}{meant}; it has: {known}")
        option = _MARKER_NAMES[name]
        try:
            settings[option.name] = option.parse(value)
        except ValueError as error:
            raise pytest.UsageError(f"{where}({name}={value!r}): {error}") from None
    return settings
