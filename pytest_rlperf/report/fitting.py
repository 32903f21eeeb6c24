"""Which columns of a table stay, where there is no room for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Ranked(Protocol):
    """What is known of a column to tell whether it stays."""

    @property
    def width(self) -> int:
        """The columns of the terminal that it takes, the gap beside it included."""

    @property
    def rank(self) -> int:
        """The highest is the first to go; 0 always stays."""


_C = TypeVar("_C", bound=Ranked)


def fitting(columns: Sequence[_C], room: int) -> list[_C]:
    """Return the columns that ``room`` is wide enough for, and those of rank 0 in any case."""
    kept = list(columns)
    while sum(column.width for column in kept) > room:
        rank = max(column.rank for column in kept)
        if not rank:
            break
        kept = [column for column in kept if column.rank < rank]
    return kept
