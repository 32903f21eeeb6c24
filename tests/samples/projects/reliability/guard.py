import sys
from pytest_rlperf.spawn import guardian

guardian.GRACE_S, guardian._CHECK_MS = 0.3, 50
if sys.argv[3] == "no /proc":
    guardian._HAS_PROC = False
guardian._guard(sys.argv[1], int(sys.argv[2]))
