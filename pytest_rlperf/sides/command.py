"""Another program, run to its end or to a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import SideError


@dataclass(frozen=True)
class Completed:
    """How a program ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    limit_s: float,
) -> Completed:
    """Run a program without a terminal, and return how it ended; SideError where it cannot start or takes too long.

    Whatever ends the wait early, a Ctrl-C too, ends the program and every process that it has started.
    """
    words = [str(word) for word in argv]
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="surrogateescape",  # file names are bytes
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # a NUL in a word is a ValueError
        raise SideError(f"cannot run {words[0]}: {error}") from None
    with process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise SideError(f"`{' '.join(words):.120}` did not end within {limit_s:.0f} s and was ended") from None
        finally:
            # Its children share its session and end with it, so that none of them writes to a side later.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return Completed(process.returncode, out, err)
