"""The memory that is left to this process."""

from __future__ import annotations

from pathlib import Path

import psutil

from pytest_rlperf.spawn.cpus import CGROUP, cgroup_limits


def free_bytes(cgroup: Path = CGROUP) -> int:
    """Return how much memory new processes can have, on the machine and in every cgroup of this process."""
    found = [int(psutil.virtual_memory().available)]
    files = (cgroup_limits(f"memory.{name}", cgroup) for name in ("max", "current", "stat"))
    for most, used, parts in zip(*files, strict=True):
        cached = next((line.split()[1] for line in parts.splitlines() if line.startswith("file ")), "0")
        if most.isdigit() and used.isdigit():
            found.append(int(most) - int(used) + int(cached))  # files that were read give way
    return max(0, min(found))
