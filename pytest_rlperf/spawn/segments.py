"""System V shared memory and semaphores, which stay on a machine until somebody removes them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pytest_rlperf.model.measured import SystemVSegment

_PLACE = Path("/proc/sysvipc")
_MEMORY, _SEMAPHORES = "shm", "sem"
_REMOVE, _GET_PID = 0, 11  # commands of the C library


def segments() -> list[SystemVSegment]:
    """Return this user's segments and semaphores; nothing on a system that does not list them.

    For semaphores, the kernel only tells who has used them last.
    """
    found = [SystemVSegment(_MEMORY, each["shmid"], each["size"], each["cpid"]) for each in _table(_MEMORY)]
    for each in _table(_SEMAPHORES):
        last = int(ctypes.CDLL(None).semctl(each["semid"], 0, _GET_PID))
        found.append(SystemVSegment(_SEMAPHORES, each["semid"], 0, last))
    return found


def remove(left: Iterable[SystemVSegment]) -> None:
    """Remove what ended processes have left, except memory that others use."""
    library = ctypes.CDLL(None)
    used = {each["shmid"] for each in _table(_MEMORY) if each["nattch"]}
    for segment in left:
        if segment.kind == _SEMAPHORES:
            library.semctl(segment.number, 0, _REMOVE)
        elif segment.number not in used:
            library.shmctl(segment.number, _REMOVE, None)


def _table(kind: str) -> list[dict[str, int]]:
    """Return this user's rows in one of the kernel's lists; none if the system writes it in another way."""
    with suppress(OSError, ValueError):
        names, *lines = (_PLACE / kind).read_text(encoding="ascii").splitlines()
        found = [dict(zip(names.split(), map(int, line.split()), strict=True)) for line in lines]
        return [each for each in found if each.get("uid") == os.geteuid()]
    return []
