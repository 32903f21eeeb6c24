"""One table of options, and the frozen configuration it becomes.

A marker beats the command line, which beats the ini file, which beats the default. Command-line defaults are all
``None``, so that "not given" is never taken for "given".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MARKER = "rlperf"

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ns|us|µs|ms|s|min)?\s*")
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, None: 1.0}
_PERCENT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")
_BASELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def parse_tolerance(value: object) -> float:
    """Read ``"3%"``, or 0.03 from Python code, as the fraction 0.03; ValueError says what is allowed."""
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        fraction = float(match[1]) / 100 if match else math.nan
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        fraction = float(value) if value < 1 else math.nan  # 3 is not 300 %, but a forgotten percent sign
    else:
        fraction = math.nan
    if not 0 < fraction <= 10:
        raise ValueError("a tolerance is a percentage above 0 and up to 1000, such as 3%")
    return fraction


def parse_duration(value: object) -> float:
    """Read ``60``, ``"60"``, ``"1.5s"`` or ``"50us"`` as seconds; ValueError says what is allowed."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        duration = float(match[1]) * _DURATION_UNITS[match[2]] if match else math.nan
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        duration = float(value)
    else:
        duration = math.nan
    if not 0 < duration < math.inf:
        raise ValueError("a time is a positive number of seconds, or has a unit: 60, 1.5s, 50us")
    return duration


def parse_alpha(value: object) -> float:
    """Read a probability strictly between 0 and 0.5."""
    try:
        alpha = float(str(value))
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < 0.5:
        raise ValueError("a chance of a false alarm lies between 0 and 0.5, such as 0.01")
    return alpha


def parse_flag(value: object) -> bool:
    """Read a bool, or an ini file's word for one."""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def parse_name(value: object) -> str:
    """Read a baseline's name, which becomes the name of a directory."""
    if not isinstance(value, str) or not _BASELINE_NAME.fullmatch(value) or len(value) > 100:
        raise ValueError(
            "a baseline's name holds letters, digits, '.', '_', '+' and '-' and starts with a letter or digit; "
            "where baselines are kept is set by --rlperf-baseline-dir"
        )
    return value


def parse_reason(value: object) -> str:
    """Read a reason, which must say something."""
    reason = str(value).strip()
    if not reason:
        raise ValueError('it is kept in the baseline file, so it must say something: "larger networks"')
    return reason


def parse_path(value: object) -> Path:
    """Read a path, relative to the rootdir."""
    if not str(value).strip():
        raise ValueError("expected a directory")
    return Path(str(value))


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
    Option("tolerance", "--rlperf-tolerance", True, True, parse_tolerance, None, "PERCENT",
           "the smallest slowdown worth failing for; stored numbers alone never convict under 20%% (their default)"),
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
    Option("min_change_s", None, False, True, parse_duration, 0.0, None,
           "an absolute time per call: a smaller change never fails"),
    Option("gate", None, False, True, parse_flag, True, None,
           "False shows the verdict without failing on it"),
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
    tolerance: float | None
    alpha: float
    max_time_s: float
    budget_s: float | None
    strict: bool
    inline: bool
    min_change_s: float
    gate: bool

    def for_test(self, item: pytest.Item) -> Config:
        """Return the settings with ``item``'s markers on top, the closest marker first."""
        overrides: dict[str, Any] = {}
        for marker in item.iter_markers(MARKER):
            for name, value in _marker_settings(marker, item.nodeid).items():
                overrides.setdefault(name, value)
        return replace(self, **overrides) if overrides else self


def add_options(parser: pytest.Parser) -> None:
    """Declare every row of the table to pytest."""
    group = parser.getgroup("rlperf", "performance regression tests for reinforcement learning")
    for option in OPTIONS:
        if option.flag is None:
            continue
        dest = f"rlperf_{option.name}"
        if option.parse is parse_flag:
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
    for marker in item.iter_markers(MARKER):
        _marker_settings(marker, item.nodeid)


def read_config(config: pytest.Config) -> Config:
    """Return the run's settings; a value that cannot be read, or a combination without sense, is a UsageError."""
    values = {option.name: _read(option, config) for option in OPTIONS}
    settings = Config(**values)
    if settings.save or settings.inline:
        settings = replace(settings, active=True)
    if settings.accept is not None and not settings.save:
        raise pytest.UsageError(
            "--rlperf-accept has nothing to accept: it goes with --rlperf-save-baseline, which stores the new figures"
        )
    if not settings.active and "--rlperf-strict" in map(str, config.invocation_params.args):
        raise pytest.UsageError("--rlperf-strict has nothing to judge: it goes with --rlperf, which measures")
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
    directory = settings.baseline_dir
    return replace(settings, baseline_dir=directory if directory.is_absolute() else config.rootpath / directory)


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


def _marker_settings(marker: pytest.Mark, nodeid: str) -> dict[str, Any]:
    """Return one marker's settings by option name; anything it cannot mean is a UsageError."""
    where = f"{nodeid}: @pytest.mark.{MARKER}"
    known = ", ".join(_MARKER_NAMES)
    if marker.args:
        raise pytest.UsageError(f"{where} takes keywords only ({known}), not {marker.args[0]!r}")
    settings = {}
    for name, value in marker.kwargs.items():
        if name not in _MARKER_NAMES:
            raise pytest.UsageError(f"{where} has no keyword {name!r}; it has: {known}")
        option = _MARKER_NAMES[name]
        try:
            settings[option.name] = option.parse(value)
        except ValueError as error:
            raise pytest.UsageError(f"{where}({name}={value!r}): {error}") from None
    return settings
