"""How long a worker or a pair goes on taking blocks of slices, and after which of them it records phases."""

from __future__ import annotations

from collections.abc import Callable

BLOCKS_LEAST = 3
_TRACED_EVERY = 8  # blocks


class BlockPace:
    """Decides when another block is taken, and after which blocks phases are recorded; also for pairs.

    Blocks end after ``enough_s``, once there are ``least``, or if the next one would not fit ``share_s``. The first
    block is always taken. ``traced_blocks`` is how long recording phases takes, in blocks.
    """

    def __init__(
        self,
        share_s: float,
        enough_s: float,
        clock: Callable[[], float],
        *,
        least: int = BLOCKS_LEAST,
        traced_blocks: float = 0.0,
    ) -> None:
        self.blocks = 0
        self._share_s = share_s
        self._enough_s = enough_s
        self._least = least
        self._clock = clock
        self._traced_blocks = traced_blocks
        self._longest_s = 0.0
        self._started_s = self._block_started_s = clock()

    @property
    def elapsed_s(self) -> float:
        """The seconds since the first block began."""
        return self._clock() - self._started_s

    def begins(self) -> bool:
        """Whether another block is to be taken; its time counts from this call."""
        if self.blocks:
            elapsed_s = self.elapsed_s
            is_enough = self.blocks >= self._least and elapsed_s >= self._enough_s
            if is_enough or elapsed_s + self._longest_s > self._share_s:
                return False
        self.blocks += 1
        self._block_started_s = self._clock()
        return True

    def traces(self) -> bool:
        """Whether to record phases after the block just taken: the first, and every eighth from there on.

        It begins with the first, so that a short measurement has phases too.
        """
        self._longest_s = max(self._longest_s, self._clock() - self._block_started_s)
        is_due = self.blocks % _TRACED_EVERY == 1
        return is_due and self.elapsed_s + self._traced_blocks * self._longest_s <= self._share_s
