"""Errors of a measured test, which its author can catch, and texts that are safe to show."""

from __future__ import annotations

import re
from collections.abc import Iterable

# A CI runner obeys log lines that begin with the first, with or without blanks, or contain the second anywhere.
_COMMAND = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)")
_MARKED_COMMAND = re.compile(r"##(\w*)\[")
_STYLE = re.compile(r"(\x1b\[[0-9;]*m)")
DOCS = "https://github.com/pytest-rlperf/pytest-rlperf/tree/main/docs"


def see(place: str) -> str:
    """Return the line that ends a message: the address of a place in the docs, such as ``"reference.md#options"``."""
    return f"\nsee {DOCS}/{place}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return the one of the ``known`` names that is closest to a misspelt one; empty if none is close."""
    from difflib import get_close_matches  # only a mistake needs it

    return next(iter(get_close_matches(name, list(known), 1)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that names the closest of ``known``; empty if there is none."""
    near = closest(name, known)
    return f"; did you mean {near}?" if near else ""


class ComponentError(Exception):
    """A component does not compute what its fixture promises; it must not be timed.

    ``is_certain`` marks an error due to what a test gave its fixture: every process raises it.
    """

    __module__ = "pytest_rlperf"
    is_certain = False


class PerformanceRegression(AssertionError):  # noqa: N818 - reads as the finding it is in a report
    """A measured test is slower than its baseline by more than allowed."""

    __module__ = "pytest_rlperf"


class MeasurementError(RuntimeError):
    """A test could not be measured, regardless of its speed."""

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
    """Return a text in a form that is safe for terminals and CI logs: they show all of it, and obey none of it.

    Everything that this package writes there goes through here, since any text may come from outside. Line feeds stay,
    other characters that are not printable are escaped, and text that a runner takes for a command is written another
    way, equally wide: ``::error`` becomes ``∶:error``, and ``##[error]`` becomes ``##(error]``. In a ``styled`` text
    colours stay: its parts went through here before they were coloured.
    """
    return "\n".join(_inert(line, styled=styled) for line in text.split("\n"))


def _inert(line: str, *, styled: bool) -> str:
    if not line.isprintable():
        parts = _STYLE.split(line) if styled else [line]  # every second one is a style
        line = "".join(part if place % 2 or not part else shown(part) for place, part in enumerate(parts))
    return _MARKED_COMMAND.sub(r"##\1(", _COMMAND.sub("\\1∶", line))


# Replacements of this package's own signs, for encodings that lack them.
_SIGNS = {
    **{"µ": "u", "×": "x", "±": "+-", "→": "->", "∝": "~", "–": "-", "·": "-", "…": "...", "°": "", "∶": ".", "─": "-"},
    **{"✓": "y", "✗": "x", "▲": "^", "▼": "v", "≠": "!", "◆": "*", "●": "o", "∥": "|"},
    **{"❌": "x", "✅": "+", "⚠": "!", "\ufe0f": "", "🆕": "new"},
    **dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True)),
}


def in_encoding(text: str, encoding: str | None) -> str:
    """Return a text in an encoding's characters: this package's signs become ASCII if missing, others are escaped."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        lacking = {each for each in set(text) if not each.encode(encoding, "ignore")}
        text = text.translate({ord(each): _SIGNS[each] for each in lacking & _SIGNS.keys()})
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


def shown(name: str) -> str:
    """Return a name that cannot harm a terminal: characters that are not printable are escaped."""
    if name.isprintable():
        return name or "''"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def shown_lines(text: str) -> str:
    """Return a text that cannot harm a terminal: line feeds stay, other unprintable characters are escaped."""
    return "\n".join(shown(line) if line else "" for line in text.split("\n"))
