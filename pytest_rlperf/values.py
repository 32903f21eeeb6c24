"""How the values of options are read; ValueError says what is allowed."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ns|us|µs|ms|s|min)?\s*")
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, None: 1.0}
_PERCENT = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")
_PAIRS = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")
_BASELINE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

_SIZES = "_bytes"


@dataclass(frozen=True)
class Counters:
    """What becomes of exact counts: ``mode`` is off, show or gate, ``named`` are those that a marker has gate."""

    mode: str
    named: tuple[str, ...]

    @property
    def are_counted(self) -> bool:
        """Whether anything is counted."""
        return self.mode != "off"

    @property
    def gates(self) -> tuple[str, ...]:
        """The names, families and patterns that gate: all but sizes, members within their sum, where none is named."""
        from pytest_rlperf.timers.counting import NAMES

        if self.mode != "gate":
            return ()
        return self.named or tuple(name for name in NAMES if not name.endswith((":", _SIZES)))


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
    if any("\ud800" <= character <= "\udfff" for character in reason):
        raise ValueError("it is kept in the baseline file, so it must be valid UTF-8")
    return reason


def parse_path(value: object) -> Path:
    """Read a path, relative to the rootdir."""
    if not str(value).strip():
        raise ValueError("expected a path")
    return Path(str(value))


def parse_spec(value: object) -> str:
    """Read what to compare with; what it names is looked up once the tests are known."""
    spec = str(value).strip()
    if not spec:
        raise ValueError("expected a git ref, pip:REQUIREMENT, dir:PATH or python:PATH")
    return spec


def parse_confirm(value: object) -> str:
    """Read when stored numbers are settled live."""
    if value not in ("auto", "always", "never"):
        raise ValueError("expected auto, always or never")
    return str(value)


def parse_edges(value: object) -> str:
    """Read how phases on an accelerator are told."""
    if value not in ("events", "sync"):
        raise ValueError("expected events or sync")
    return str(value)


def parse_pairs(value: object) -> tuple[int, int]:
    """Read ``"3..10"``, the fewest and the most pairs of a test."""
    match = _PAIRS.fullmatch(str(value))
    least, most = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 2 <= least <= most:
        raise ValueError("expected the fewest and the most pairs, such as 3..10; two are needed to tell them apart")
    return least, most


def parse_slowdowns(value: object) -> tuple[float, ...]:
    """Read percentages, parted by blanks or commas, as rising fractions."""
    return tuple(sorted(parse_tolerance(part) for part in re.split(r",|(?<=%)\s+(?=\S)", str(value).strip())))


def parse_packages(value: object) -> tuple[str, ...]:
    """Read names of import packages, parted by blanks or commas."""
    names = tuple(re.split(r"[\s,]+", str(value).strip()))
    if not all(name.isidentifier() for name in names):
        raise ValueError("expected names of import packages, such as: my_library my_envs")
    return names


def parse_counters(value: object) -> Counters:
    """Read off, show or gate or, from Python code, which counters gate: names, families and patterns."""
    if value in ("off", "show", "gate"):
        return Counters(str(value), ())
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError("expected off, show or gate; a marker may also have a list of counters that gate")
    names = tuple(value)
    if not names:
        raise ValueError('expected at least one counter; counters="show" has none gate')
    for name in names:
        if not isinstance(name, str) or not _is_counter(name):
            from pytest_rlperf.timers.counting import NAMES

            raise ValueError(f"there is no counter {name!r}; there are: {', '.join(NAMES)}")
    return Counters("gate", names)


def _is_counter(name: str) -> bool:
    """Whether a name, a member of a family, or a pattern is of a counter that exists."""
    from pytest_rlperf.timers.counting import NAMES

    families = [known for known in NAMES if known.endswith(":")]
    return bool(fnmatch.filter(NAMES, name)) or any(name.startswith(family) for family in families)
