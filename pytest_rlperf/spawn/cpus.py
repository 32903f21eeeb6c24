"""The CPUs that this process may use, and what the system's files say about them."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # of version 2, which has one tree


def read_system_file(path: Path) -> str:
    """Return the text of one of the system's files, "" if it cannot be read."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def cgroup_limits(name: str, cgroup: Path = CGROUP) -> list[str]:
    """Return the text of a file such as ``cpu.max`` for this process's cgroup and each one around it."""
    lines = read_system_file(Path("/proc/self/cgroup")).splitlines()
    own = next((line for line in lines if line.startswith("0::")), "0::/")
    place = cgroup / own[len("0::") :].strip().lstrip("/")
    directories = [place, *(parent for parent in place.parents if parent.is_relative_to(cgroup))]
    return [read_system_file(directory / name) for directory in directories]


def usable_cpus() -> tuple[int, ...]:
    """Return the CPUs that this process may run on; none if the system does not list them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
