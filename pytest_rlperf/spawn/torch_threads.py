"""PyTorch's threads must not begin in a process that is copied: a copy lacks them, and waits for them forever."""

from __future__ import annotations

import sys
from typing import Any


class HeldThreads:
    """Keeps PyTorch to one thread while modules are imported, and restores the usual number at the release.

    A module may compute while it is imported, as a policy's weights are, or set the number of threads.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._set, self._get = torch.set_num_threads, torch.get_num_threads
        self._number: int = self._get()
        self._is_held = True
        self._set(1)
        torch.set_num_threads, torch.get_num_threads = self.set, self.get

    def set(self, number: int) -> None:
        """Set the number of threads, from the release on."""
        if self._is_held:
            self._number = number
        else:
            self._set(number)

    def get(self) -> int:
        """Return the number of threads, as it is from the release on."""
        return self._number if self._is_held else self._get()

    def release(self) -> None:
        """Set the number of threads."""
        self._torch.set_num_threads, self._torch.get_num_threads = self._set, self._get
        self._is_held = False
        self._set(self._number)


def release_threads() -> None:
    """Let PyTorch have its threads, in a process that is not copied from now on."""
    torch = sys.modules.get("torch")
    held = getattr(getattr(torch, "set_num_threads", None), "__self__", None)
    if isinstance(held, HeldThreads):
        held.release()
