"""Programs in an interpreter of their own: what modules decide when they are imported needs one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_python(program: str, **variables: str) -> list[str]:
    """Run a program that must succeed, and return the lines that it printed.

    Timers and profiling ranges are armed by ``variables`` alone.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RLPERF_TIMERS", "TORCHRL_PROFILING")
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
