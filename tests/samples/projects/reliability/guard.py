import sys
from pathlib import Path
from pytest_rlperf.workers import guardian

guardian.GRACE_S = 0.3
if sys.argv[3] == "no /proc":
    guardian.Path = lambda *parts: Path("/nowhere")
if sys.argv[3] == "no pidfd_open":
    del guardian.os.pidfd_open
if sys.argv[3] == "gone":  # the run's end is what wakes it, and not that it has another parent by then
    guardian.os.getppid = lambda run=int(sys.argv[2]): run
guardian._guard(sys.argv[1], int(sys.argv[2]))
