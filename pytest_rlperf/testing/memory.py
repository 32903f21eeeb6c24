"""A virtual device's memory, given out by an allocator that keeps what is given back."""

from __future__ import annotations

from collections.abc import Callable

_BLOCK_BYTES = 512  # what PyTorch's allocator for CUDA rounds up to


class VirtualTensor:
    """Memory of a virtual device, which ``device`` names; :meth:`free` gives it back."""

    holds_device_memory = True  # by which devices_of() knows it

    def __init__(self, device: str, size_bytes: int, free: Callable[[], None]) -> None:
        self.device = device
        self.size_bytes = size_bytes
        self._free: Callable[[], None] | None = free

    def free(self) -> None:
        """Give the memory back; once is enough."""
        if self._free is not None:
            self._free()
            self._free = None


class CachingAllocator:
    """Gives out blocks, and asks the device for memory only where none that was given back will do."""

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.peak_bytes = 0
        self.allocations = 0
        self._cached: list[int] = []

    def take(self, size_bytes: int) -> tuple[int, bool]:
        """Return the bytes of a block for ``size_bytes``, and whether the device was asked for it."""
        if size_bytes < 0:
            raise ValueError(f"memory of a negative size: {size_bytes} bytes")
        needed = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        fitting = [block for block in self._cached if block >= needed]
        if fitting:
            block = min(fitting)
            self._cached.remove(block)
        else:
            block = needed
            self.allocations += 1
        self.allocated_bytes += block
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return block, not fitting

    def give_back(self, block: int) -> None:
        """Keep a block for others."""
        self.allocated_bytes -= block
        self._cached.append(block)

    def reset_peak(self) -> None:
        """Begin a new peak."""
        self.peak_bytes = self.allocated_bytes
