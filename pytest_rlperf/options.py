"""One table of options, and the frozen configuration it becomes.

A marker beats the command line, which beats the ini file, which beats the default. Command-line defaults are all
``None``, so that "not given" is never taken for "given".
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import pytest

from pytest_rlperf.errors import did_you_mean, for_log, in_encoding, see
from pytest_rlperf.model.findings import FINDINGS, GATE, OFF, SHOW

if TYPE_CHECKING:
    from _pytest.nodes import Node

_NUMBER = r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)"
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, None: 1.0}

MAX_TIME_S = 60.0
TRAIN_TOLERANCE = 0.10  # for whole iterations of many threads and processes: their pairs differ by 4 to 18 %
_SIZES = "_bytes"
_DOES = dict.fromkeys(FINDINGS, (OFF, SHOW, GATE)) | {"time": (SHOW, GATE), "outputs": (OFF, SHOW, GATE, "bits")}


def _match(pattern: str, value: object, expected: str) -> re.Match[str]:
    """Return the match of a whole value without blanks around it; ValueError without a match."""
    found = re.fullmatch(pattern, str(value).strip(), re.DOTALL)
    if found is None:
        raise ValueError(expected)
    return found


def parse_tolerance(value: object) -> float:
    """Read ``"3%"``, or 0.03 from Python code, as the fraction 0.03; ValueError lists the allowed forms."""
    expected = "a tolerance is a percentage above 0 and up to 1000, such as 3%"
    number, percent = _match(rf"{_NUMBER}\s*(%?)", value, expected).groups()
    fraction = float(number) / 100 if percent else float(number)
    if not 0 < fraction <= 10 or (fraction >= 1 and not percent):  # 3 is not 300 %, but a forgotten percent sign
        raise ValueError(expected)
    return fraction


def parse_duration(value: object) -> float:
    """Read ``60``, ``"60"``, ``"1.5s"`` or ``"50us"`` as seconds; ValueError lists the allowed forms."""
    expected = "a time is a positive number of seconds, or has a unit: 60, 1.5s, 50us"
    number, unit = _match(rf"{_NUMBER}\s*(ns|us|µs|ms|s|min)?", value, expected).groups()
    duration = float(number) * _DURATION_UNITS[unit]
    if not 0 < duration < math.inf:
        raise ValueError(expected)
    return duration


def parse_flag(value: object) -> bool:
    """Read a bool, or its spelling in an ini file."""
    word = _match("(?i:1|true|yes|on|0|false|no|off)", value, "expected true or false")[0]
    return word.lower() in ("1", "true", "yes", "on")


def parse_switch(value: object) -> bool:
    """Read ``"on"`` or ``"off"``."""
    return _match("on|off", value, "expected on or off")[0] == "on"


def parse_baseline(value: object) -> Path:
    """Read the path of a baseline, whose last part is the baseline's name."""
    expected = (
        "expected a directory and the name of a baseline in it, of letters, digits, '.', '_', '+' and '-', such as "
        "baselines/default"
    )
    return Path(_match(".*/[A-Za-z0-9][A-Za-z0-9._+-]{,99}", value, expected)[0])


def parse_path(value: object) -> Path:
    """Read a path, relative to the rootdir."""
    return Path(_match(".+", value, "expected a path")[0])


def parse_spec(value: object) -> str:
    """Read the code to compare with; it is looked up once the tests are known."""
    return _match(".+", value, "expected a git ref, pip:REQUIREMENT, dir:PATH or python:PATH")[0]


def parse_pairs(value: object) -> tuple[int, int]:
    """Read ``"3..10"``, the fewest and the most pairs of a test."""
    expected = "expected the fewest and the most pairs, at least two, such as 3..10"
    least, most = map(int, _match(r"(\d+)\s*\.\.\s*(\d+)", value, expected).groups())
    if not 2 <= least <= most:
        raise ValueError(expected)
    return least, most


def parse_lanes(value: object) -> int | None:
    """Read how many pairs are measured at once; None for as many as the machine has room for."""
    text = _match("auto|[1-9][0-9]*", value, "expected how many pairs to measure at once, 1 or more, or auto")[0]
    return None if text == "auto" else int(text)


def parse_workers(value: object) -> str:
    """Read how the processes that measure are started."""
    return _match("auto|fresh", value, "expected auto or fresh")[0]


def parse_shard(value: object) -> tuple[int, int]:
    """Read ``"2/4"``, the second of four shards."""
    expected = "expected K/N, the number of a shard and how many there are, such as 1/4 to 4/4"
    number, count = map(int, _match("([1-9][0-9]{,3})/([1-9][0-9]{,3})", value, expected).groups())
    if number > count:
        raise ValueError(expected)
    return number, count


def parse_address(value: object) -> str:
    """Read the address of a Ray cluster: ``"auto"`` for the one that this machine is part of, or its host and port."""
    return _match(
        r"auto|[^\s/:]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}",
        value,
        "expected HOST:PORT, or auto for the cluster that this machine is part of; write paths before "
        "--rlperf-ray, or --rlperf-ray=auto",
    )[0]


def parse_globs(value: object) -> tuple[str, ...]:
    """Read patterns of relative paths, separated by blanks."""
    patterns = tuple(str(value).split())
    if any(pattern.startswith("/") for pattern in patterns):
        raise ValueError("expected patterns of paths relative to the repository, such as: data/*.npz")
    return patterns


def _is_counter(name: str) -> bool:
    """Whether a name, a member of a family, or a pattern fits an existing counter."""
    from pytest_rlperf.counters import NAMES

    families = [known for known in NAMES if known.endswith(":")]
    return bool(fnmatch.filter(NAMES, name)) or any(name.startswith(family) for family in families)


def parse_findings(value: object) -> dict[str, Any]:
    """Read ``"growth=show,outputs=gate"`` or, from Python code, a mapping of kinds of findings to off, show or gate.

    Python code may also list the counters that gate: names, families and patterns.
    """
    if isinstance(value, Mapping):
        found = dict(value)
    else:
        parts = (part.partition("=") for part in str(value).replace(",", " ").split())
        found = {kind: does for kind, _, does in parts}
    for kind, does in found.items():
        if kind not in FINDINGS:
            raise ValueError(f"there is no check {kind!r}; the checks are: {', '.join(FINDINGS)}")
        if kind == "counts" and isinstance(does, (list, tuple)) and does:
            found[kind] = _counters(does)
        elif does not in _DOES[kind]:
            listed = " or, in a marker, a list of counters that can fail the test" if kind == "counts" else ""
            raise ValueError(f"{kind} takes {', '.join(_DOES[kind])}{listed}, not {does!r}; such as counts=gate")
    return found


def _counters(names: Iterable[object]) -> tuple[str, ...]:
    """Return the names of counters that a marker lists; ValueError if one fits no counter."""
    from pytest_rlperf.counters import NAMES

    for name in names:
        if not isinstance(name, str) or not _is_counter(name):
            raise ValueError(f"there is no counter {name!r}; the counters are: {', '.join(NAMES)}")
    return tuple(map(str, names))


MARKER = "rlperf"


class Option(NamedTuple):
    """One row of the table: the spelling of a setting in each place, how it is read, and its ``name`` in ``Config``.

    ``flag`` is None if the command line has none; ``--rlperf:NAME`` is how `rlperf NAME` starts pytest. ``ini`` and
    ``marker`` are whether an ini file and a test's marker may set it. ``bare`` is the value of a flag without a value,
    None if it needs one.
    """

    flag: str | None
    parse: Callable[[object], Any]
    default: Any
    help: str
    metavar: str | None = None
    ini: bool = False
    marker: bool = False
    bare: str | None = None
    name: str = ""


@dataclass(frozen=True)
class Config:
    """The settings of a run, or of one of its tests, and with them the table of options."""

    # fmt: off
    active: Annotated[bool, Option("--rlperf", parse_flag, False,
        "measure tests with an rlperf fixture, and fail those that got slower, such as: pytest --rlperf tests/perf")]
    against: Annotated[str | None, Option("--rlperf-against", parse_spec, None,
        "compare live with a branch, tag or commit, or with pip:REQ[,REQ...], dir:PATH or python:PATH, such as main",
        "SPEC")]
    save: Annotated[bool, Option("--rlperf-save-baseline", parse_flag, False,
        "measure, and store the figures as the baseline, such as: pytest --rlperf-save-baseline -k sac")]
    tolerance: Annotated[float | None, Option("--rlperf-tolerance", parse_tolerance, None,
        "set the smallest slowdown that fails a test, such as 5%% (default: 3%%)", "PERCENT", ini=True, marker=True)]
    max_time_s: Annotated[float, Option("--rlperf-max-time", parse_duration, MAX_TIME_S,
        "stop measuring a test after this time, such as 2min (default: 60, and longer if that leaves it UNDECIDED "
        "and the run has time to spare)", "SECONDS", ini=True, marker=True)]
    total_time_s: Annotated[float | None, Option("--rlperf-total-time", parse_duration, None,
        "stop measuring all tests together after this time, such as 10min (default: 30min, more for many tests)",
        "SECONDS", ini=True)]
    findings: Annotated[Mapping[str, Any], Option("--rlperf-findings", parse_findings, FINDINGS,
        "set each check to off, show (report only) or gate (fail), such as growth=off,counts=gate",
        "CHECK=DOES,...", ini=True, marker=True)]
    strict: Annotated[bool, Option("--rlperf-strict", parse_flag, False,
        "also fail tests that are UNDECIDED, NEW, INCOMPARABLE or INVALID, such as: pytest --rlperf --rlperf-strict",
        ini=True)]
    shard: Annotated[tuple[int, int] | None, Option("--rlperf-shard", parse_shard, None,
        "measure the K-th of N equal parts of the tests, such as 2/4; `rlperf merge` joins their JSON", "K/N")]
    ray: Annotated[str | None, Option("--rlperf-ray", parse_address, None,
        "measure on the nodes of a Ray cluster, such as --rlperf-ray=10.0.0.1:6379 (default: this machine's cluster; "
        "needs the extra `ray`)", "HOST:PORT", bare="auto")]
    json: Annotated[Path | None, Option("--rlperf-json", parse_path, None,
        "write figures and verdicts as JSON, such as run.json", "FILE")]
    html: Annotated[Path | None, Option("--rlperf-html", parse_path, None,
        "write a report that works offline, such as report.html (needs the extra `html`)", "FILE")]
    trace: Annotated[Path | None, Option("--rlperf-trace", parse_path, None,
        "write one call of each test and side as a timeline for Perfetto, such as traces", "DIR")]
    bisect: Annotated[str | None, Option("--rlperf:bisect", parse_spec, None, argparse.SUPPRESS)]
    selfcheck: Annotated[bool, Option("--rlperf:check-machine", parse_flag, False, argparse.SUPPRESS)]
    pairs: Annotated[tuple[int, int], Option(None, parse_pairs, (3, 10),
        "set the fewest and the most pairs of processes per test, such as 3..20 (default: 3..10, and up to 40 if the "
        "run has time to spare)", ini=True)]
    lanes: Annotated[int | None, Option(None, parse_lanes, None,
        "set how many pairs are measured at once, such as 1 (default: auto, one per core)", ini=True)]
    workers: Annotated[str, Option(None, parse_workers, "auto",
        "set to fresh to start measured processes as new interpreters (default: auto, forked if possible)", ini=True)]
    setup_timeout_s: Annotated[float, Option(None, parse_duration, 300.0,
        "set a time limit for imports, and for a test's set-up and tear-down, such as 10min (default: 300)",
        ini=True, marker=True)]
    reach: Annotated[bool, Option(None, parse_switch, True,
        "set to off to measure also the tests that the change cannot affect (default: on)", ini=True)]
    baseline: Annotated[Path, Option(None, parse_baseline, Path("baselines/default"),
        "set the directory and name of the baseline to compare with and to store, such as perf/baselines/nightly "
        "(default: "
        "baselines/default)", ini=True)]
    also: Annotated[tuple[str, ...], Option(None, parse_globs, (),
        "copy these git-ignored files for both versions, whatever their size, such as data/*.npz", ini=True)]
    min_change_s: Annotated[float, Option(None, parse_duration, 0.0,
        "never fail for a smaller change of a call's time, such as min_change='50us'", marker=True)]
    fail: Annotated[bool, Option(None, parse_flag, True,
        "set fail=False to show the verdict without failing on it", marker=True)]
    # fmt: on

    @property
    def counts(self) -> tuple[str, ...]:
        """The counters that a marker lists, which gate."""
        does = self.findings["counts"]
        return does if isinstance(does, tuple) else ()

    @property
    def gating_counts(self) -> tuple[str, ...]:
        """The names, families and patterns of counters that gate: all but sizes and families if none is listed."""
        from pytest_rlperf.counters import NAMES

        if self.findings["counts"] != GATE:
            return self.counts
        return tuple(name for name in NAMES if not name.endswith((":", _SIZES)))

    def for_test(self, item: pytest.Item) -> Config:
        """Return the settings with ``item``'s markers on top, the closest marker first, and then its fixture's own."""
        overrides: dict[str, Any] = {}
        for node, marker in item.iter_markers_with_node(MARKER):
            for name, value in _marker_settings(marker, _place(node, item)).items():
                if name == "findings":
                    value = {**value, **overrides.pop(name, {})}
                overrides.setdefault(name, value)
        if "rlperf_train" in getattr(item, "fixturenames", ()):
            overrides.setdefault("tolerance", TRAIN_TOLERANCE)
        if "findings" in overrides:
            # A kind that is off is off in the whole run, so that a user can see how it affects a test.
            off = {kind: does for kind, does in self.findings.items() if does == OFF}
            overrides["findings"] = {**self.findings, **overrides["findings"], **off}
        return replace(self, **overrides) if overrides else self


OPTIONS: tuple[Option, ...] = tuple(
    hint.__metadata__[0]._replace(name=name) for name, hint in get_type_hints(Config, include_extras=True).items()
)
_MARKER_NAMES = {option.name.removesuffix("_s"): option for option in OPTIONS if option.marker}

RENAMED = {  # flags, ini settings, marker keywords and commands of earlier versions, and their replacements
    "--rlperf-accept": "a line of a commit's message: Rlperf-Accept: TEST <= +N% REASON",
    "--rlperf-against=anchor": "--rlperf-against=REF, with a tag or a commit",
    "--rlperf-baseline": "-o rlperf_baseline=DIR/NAME",
    "--rlperf-baseline-dir": "-o rlperf_baseline=DIR/NAME",
    "--rlperf-benchmark-json": "rlperf show --format=pytest-benchmark",
    "--rlperf-bisect": "rlperf bisect GOOD..BAD",
    "--rlperf-budget": "--rlperf-total-time",
    "--rlperf-lanes": "-o rlperf_lanes=N",
    "--rlperf-pairs": "-o rlperf_pairs=LEAST..MOST",
    "--rlperf-reach": "-o rlperf_reach=off",
    "--rlperf-selfcheck": "rlperf check-machine",
    "--rlperf-setup-time": "-o rlperf_setup_timeout=SECONDS",
    "gate": "fail",
    "rlperf anchor": "pytest --rlperf-against=REF",
    "rlperf_baseline_dir": "rlperf_baseline = DIR/NAME",
    "rlperf_budget": "rlperf_total_time",
    "rlperf_setup_time": "rlperf_setup_timeout",
    "setup_time": "setup_timeout",
}


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
            bare = {} if option.bare is None else {"nargs": "?", "const": option.bare}
            group.addoption(option.flag, dest=dest, default=None, metavar=option.metavar, help=option.help, **bare)
        if option.ini:
            like = f"the same as {option.flag}, for every run" if option.flag else option.help
            parser.addini(_ini_name(option), like, default=None)


def add_marker(config: pytest.Config) -> None:
    """Register the marker, so that --strict-markers knows it."""
    keywords = ", ".join(f"{name}=…" for name in _MARKER_NAMES)
    config.addinivalue_line("markers", f"{MARKER}({keywords}): how one test is measured and judged")


def check_markers(item: pytest.Item) -> None:
    """Raise UsageError if one of the test's markers cannot be read."""
    for node, marker in item.iter_markers_with_node(MARKER):
        _marker_settings(marker, _place(node, item))


def refuse_misspelt(flags: Iterable[str]) -> None:
    """Raise UsageError for the first undeclared one of ``flags`` that was meant to be one of the table's."""
    for flag in (each.partition("=")[0] for each in flags):
        if flag.startswith("--rl"):
            raise _unknown("option", flag, (_as_typed(option.flag) for option in OPTIONS if option.flag))


def usage_error(text: object) -> pytest.UsageError:
    """Return the error of a run that cannot be done as asked, made safe for logs: pytest prints it unchanged."""
    return pytest.UsageError(in_encoding(for_log(str(text)), getattr(sys.__stderr__, "encoding", None)))


def renamed(name: str) -> str | None:
    """Return the replacement of an earlier version's name; None for any other name."""
    return f"{name} is gone: write {RENAMED[name]}" if name in RENAMED else None


def _unknown(kind: str, name: str, known: Iterable[str]) -> pytest.UsageError:
    text = renamed(name) or f"there is no {kind} {name}{did_you_mean(name, known)}"
    return usage_error(f"{text}{see('reference.md#options')}")


def read_config(config: pytest.Config) -> Config:
    """Return the run's settings; UsageError for a value that cannot be read or a combination that makes no sense."""
    names = [_ini_name(option) for option in OPTIONS if option.ini]
    for name in vars(config).get("_inicfg") or vars(config).get("inicfg", {}):  # the second before pytest 9
        if name.startswith("rlperf") and name not in names:  # pytest only warns of it
            raise _unknown("ini setting", name, names)
    values = {option.name: _read(option, config) for option in OPTIONS}
    values["findings"] = {**FINDINGS, **values["findings"]}
    settings = Config(**values)
    if settings.save or settings.selfcheck or settings.against or settings.bisect is not None:
        settings = replace(settings, active=True)
    _refuse_nonsense(settings, config)
    return replace(settings, baseline=config.rootpath / settings.baseline)


_FOR_MEASURING = ("--rlperf-json", "--rlperf-html", "--rlperf-trace", "--rlperf-shard", "--rlperf-ray")
_FOR_FAILING = ("--rlperf-strict", "--rlperf-findings")
_FILES = ("--rlperf-html", "--rlperf-trace")
_CONFLICTS = (  # a flag, what it does, and the flags that it excludes
    ("--rlperf-shard", "measures a part of the tests", ("--rlperf:check-machine", "--rlperf:bisect")),
    (
        "--rlperf-ray",
        "measures on other machines",
        ("--rlperf:check-machine", "--rlperf:bisect", "--rlperf-shard", "--rlperf-save-baseline", "--rlperf-trace"),
    ),
    (
        "--rlperf:check-machine",
        "compares your code with itself, and writes only --rlperf-json",
        ("--rlperf-save-baseline", "--rlperf-against", *_FILES),
    ),
    (
        "--rlperf:bisect",
        "compares commits, and writes no files",
        ("--rlperf-save-baseline", "--rlperf-against", "--rlperf-json", *_FILES),
    ),
)


def _refuse_nonsense(settings: Config, config: pytest.Config) -> None:
    """Raise UsageError for a combination of options that cannot work."""
    given = {option.flag for option in OPTIONS if getattr(settings, option.name) != option.default}
    # The ini file and its addopts may have these flags, which make tests fail, for other runs that measure.
    given -= {*_FOR_FAILING} - {str(arg).partition("=")[0] for arg in config.invocation_params.args}
    for flag in (*_FOR_MEASURING, *_FOR_FAILING):
        if flag in given and not settings.active:
            raise usage_error(f"{flag} has no effect by itself: use it with --rlperf, which measures")
    for flag, does, others in _CONFLICTS:
        for other in others:
            if {flag, other} <= given:
                raise usage_error(f"{_as_typed(flag)} {does}: leave out {_as_typed(other)}")


def _as_typed(flag: str) -> str:
    """Return a flag as users type it; for a command's own flag, return the command."""
    return flag.replace("--rlperf:", "rlperf ")


def _ini_name(option: Option) -> str:
    return f"rlperf_{option.name.removesuffix('_s')}"


def _read(option: Option, config: pytest.Config) -> Any:
    """Read one option from the command line, else from the ini file, else its default."""
    value = None if option.flag is None else config.getoption(f"rlperf_{option.name}")
    source = f"{_as_typed(option.flag or '')}="
    if value is None and option.ini:
        value = config.getini(_ini_name(option))
        source = f"ini setting {_ini_name(option)}="
    if value is None:
        return option.default
    try:
        return option.parse(value)
    except ValueError as error:
        raise usage_error(f"{source}{value}: {error}") from None


def _place(node: Node, item: pytest.Item) -> str:
    """Return the place and the name of the test, class or module that has a marker of ``item``."""
    _, line, _ = getattr(node, "reportinfo", item.reportinfo)()
    return f"{node.nodeid.partition('::')[0]}:{(line or 0) + 1}: {node.name}"


def _marker_settings(marker: pytest.Mark, place: str) -> dict[str, Any]:
    """Return one marker's settings by option name; UsageError for an unknown keyword or an unreadable value."""
    where = f"{place}: @pytest.mark.{MARKER}"
    known = ", ".join(_MARKER_NAMES)
    if marker.args:
        raise usage_error(f"{where} takes keywords only ({known}), not {marker.args[0]!r}")
    settings = {}
    for name, value in marker.kwargs.items():
        if name not in _MARKER_NAMES:
            gone, near = renamed(name), did_you_mean(name, _MARKER_NAMES)
            text = f": {gone}" if gone else f" has no keyword {name!r}; it has: {known}{near}"
            raise usage_error(f"{where}{text}{see('reference.md#options')}")
        option = _MARKER_NAMES[name]
        try:
            settings[option.name] = option.parse(value)
        except ValueError as error:
            raise usage_error(f"{where}({name}={value!r}): {error}") from None
    return settings
