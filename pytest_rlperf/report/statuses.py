"""The looks of each status: its place in a list, a word, a sign, an emoji, a colour."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pytest_rlperf.model.judged import Outcome, Status
from pytest_rlperf.model.reasons import Code


class Look(NamedTuple):
    """A status as a word within a sentence, as a sign beside its name, as GitHub's emoji, and as rich's style."""

    word: str
    sign: str
    emoji: str
    style: str


# In the order in which verdicts are listed: those that want a reader's attention first.
LOOKS = {
    Status.ERROR: Look("in error", "✗", "❌", "bold red"),
    Status.SLOWER: Look("slower", "▲", "❌", "bold red"),
    Status.INVALID: Look("invalid", "!", "⚠️", "bold red"),
    Status.UNDECIDED: Look("undecided", "?", "⚠️", "yellow"),
    Status.INCOMPARABLE: Look("incomparable", "≠", "⚠️", "yellow"),
    Status.NEW: Look("new", "+", "🆕", "cyan"),
    Status.FASTER: Look("faster", "▼", "✅", "bold green"),
    Status.SAME: Look("the same", "=", "✅", "green"),
}
GRAVEST_FIRST = tuple(LOOKS)
EMOJI = {status.value: look.emoji for status, look in LOOKS.items()}
STYLES = {status.value: look.style for status, look in LOOKS.items()}


def compares_nothing(outcomes: Iterable[Outcome]) -> bool:
    """Whether no gated test could run on the base side, which is never a pass."""
    judged = [outcome.verdict for outcome in outcomes if outcome.verdict.status is not Status.ERROR]
    gated = [verdict for verdict in judged if verdict.gated]
    return bool(gated) and all(verdict.reason.code == Code.BASE for verdict in gated)
