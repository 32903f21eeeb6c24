import os, signal, sys
from pathlib import Path
from pytest_rlperf.writing import write_whole

name, path = sys.argv[1], Path(sys.argv[2])
original = getattr(os, name)


def last(*args, **kwargs):
    if sys.argv[3] == "after":
        original(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


setattr(os, name, last)
write_whole(path, b"new\n" * 5000)
