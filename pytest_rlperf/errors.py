"""Errors of a measured test, which its author can catch, and texts that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A CI's runner obeys lines of a log that begin like the first, blanks before it or not, or hold the second anywhere.
_COMMAND = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)")
_MARKED_COMMAND = re.compile(r"##(\w*)\[")
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
DOCS = "https://github.com/pytest-rlperf/pytest-rlperf/tree/main/docs"


def see(place: str) -> str:
    """Return the line that ends a message: the address of a place in the docs, such as ``"reference.md#options"``."""
    return f"\nsee {DOCS}/{place}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return the one of ``known`` names that a misspelt one is most like; empty where it is like none."""
    from difflib import get_close_matches  # which only a mistake needs

    return next(iter(get_close_matches(name, list(known), 1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the closest of ``known``; empty where there is none."""
    near = closest(name, known)
    return f"; did you mean {near}?" if near else ""


class ComponentError(Exception):
    """A component does not compute what its fixture promises; it must not be timed.

    ``is_certain`` marks one by what a test gave its fixture: every process raises it.
    """

    __module__ = "pytest_rlperf"
    is_certain = False


class PerformanceRegression(AssertionError):  # noqa: N818 - reads as the finding it is in a report
    """A measured test is slower than its baseline by more than it may be."""

    __module__ = "pytest_rlperf"


class MeasurementError(RuntimeError):
    """A test could not be measured, whatever its speed is."""

    __module__ = "pytest_rlperf"


class NotMeasuredError(RuntimeError):
    """The result has no figures, because the test was not measured."""

    __module__ = "pytest_rlperf"


class SideError(Exception):
    """A side to compare with is not available; the text gives the reason and the remedy."""


class TimerFileError(ValueError):
    """A file of timers cannot be read or written; the text names the file, the place in it and the way out."""


# --------------------------------------------------------------------------- text that is shown


def for_log(text: str, *, styled: bool = False) -> str:
    """Return a text as terminals and CI logs may have it: they show all of it, and obey none of it.

    Everything that this package writes there goes through here, since any text may be from outside. Line feeds stay,
    what else is not printable is escaped, and what a runner takes for a command is written another way, as wide as
    before: ``::error`` becomes ``∶:error``, and ``##[error]`` becomes ``##(error]``. In a ``styled`` text colours stay:
    its parts have been here before they were coloured.
    """
    return "\n".join(_inert(line, styled=styled) for line in text.split("\n"))


def _inert(line: str, *, styled: bool) -> str:
    if not line.isprintable():
        parts = _STYLE.split(line) if styled else [line]  # every second one is a style
        line = "".join(part if place % 2 or not part else shown(part) for place, part in enumerate(parts))
    return _MARKED_COMMAND.sub(r"##\1(", _COMMAND.sub("\\1∶", line))


# What stands for this package's own signs where an encoding lacks them.
_SIGNS = {
    **{"µ": "u", "×": "x", "±": "+-", "→": "->", "∝": "~", "–": "-", "·": "-", "…": "...", "°": "", "∶": ".", "─": "-"},
    **{"✓": "y", "✗": "x", "▲": "^", "▼": "v", "≠": "!", "◆": "*", "●": "o", "∥": "|"},
    **{"❌": "x", "✅": "+", "⚠": "!", "\ufe0f": "", "🆕": "new"},
    **dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True)),
}


def in_encoding(text: str, encoding: str | None) -> str:
    """Return a text that an encoding has: signs of this package that it lacks are ASCII, other characters escaped."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        lacking = {each for each in set(text) if not each.encode(encoding, "ignore")}
        text = text.translate({ord(each): _SIGNS[each] for each in lacking & _SIGNS.keys()})
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def shown(name: str) -> str:
    """Return a name that can do a terminal no harm: what is not printable is escaped."""
    if name.isprintable():
        return name or "''"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def shown_lines(text: str) -> str:
    """Return a text that can do a terminal no harm: its line feeds stay, what else is not printable is escaped."""
    return "\n".join(shown(line) if line else "" for line in text.split("\n"))
