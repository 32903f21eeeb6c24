"""The looks of each status: its place in a list, a word, a sign, an emoji, a colour. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pytest_rlperf.model import Status


class Look(NamedTuple):
    """A status as a word within a sentence, as a sign beside its name, as GitHub's emoji, and as rich's style."""

    word: str
    sign: str
    emoji: str
    style: str


# In the order in which verdicts are listed: those that want a reader's attention first.
LOOKS = {
    Status.SLOWER: Look("slower", "▲", "❌", "bold red"),
    Status.INVALID: Look("invalid", "!", "⚠️", "bold red"),
    Status.UNDECIDED: Look("undecided", "?", "⚠️", "yellow"),
    Status.INCOMPARABLE: Look("incomparable", "≠", "⚠️", "yellow"),
    Status.NEW: Look("new", "+", "🆕", "cyan"),
    Status.FASTER: Look("faster", "▼", "✅", "bold green"),
    Status.SAME: Look("the same", "=", "✅", "green"),
}
GRAVEST_FIRST = tuple(LOOKS)
STYLES = {status.value: look.style for status, look in LOOKS.items()}


@dataclass(frozen=True)
class Unmeasured:
    """A test without a verdict: it was skipped for a reason, or it failed where that is None."""

    skipped: str | None = None

    @property
    def text(self) -> str:
        """Why there is no verdict: ``failed``, or ``skipped: `` and the reason."""
        return "failed" if self.skipped is None else f"skipped: {self.skipped}"
