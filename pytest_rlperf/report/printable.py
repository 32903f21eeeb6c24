"""Makes text from anywhere, such as a test's id, fit for a terminal."""

from __future__ import annotations

import re

# GitHub's runner obeys lines of a job's log that begin so, blanks before it or not, or that hold the second anywhere.
_COMMAND = re.compile(r"^((?:\s|\x1b\[[0-9;]*m)*):(?=:)")
_OLD_COMMAND = "##["


def harmless(line: str) -> str:
    """Return a line that is no command to GitHub's runner, as wide as before: ``::error`` becomes ``∶:error``."""
    return _COMMAND.sub("\\1∶", line).replace(_OLD_COMMAND, "##(")


def shown(name: str) -> str:
    """Return a name that can do a terminal no harm: what is not printable is escaped."""
    if name.isprintable():
        return name or "''"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def shown_lines(text: str) -> str:
    """Return a text that can do a terminal no harm: its line feeds stay, what else is not printable is escaped."""
    return "\n".join(shown(line) if line else "" for line in text.split("\n"))
