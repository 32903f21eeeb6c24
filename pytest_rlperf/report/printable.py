"""Makes text from anywhere, such as a test's id, fit for a terminal. Standard library only."""

from __future__ import annotations


def shown(name: str) -> str:
    """Return a name that can do a terminal no harm: what is not printable is escaped."""
    if name.isprintable():
        return name or "''"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def shown_lines(text: str) -> str:
    """Return a text that can do a terminal no harm: its line feeds stay, what else is not printable is escaped."""
    return "\n".join(shown(line) if line else "" for line in text.split("\n"))
