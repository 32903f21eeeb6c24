import os, signal, sys
from pathlib import Path
from pytest_rlperf.sides.cache import Cache


def build(directory):
    (directory / "package").mkdir()
    (directory / "package/file").write_text("half")
    print("building", flush=True)
    sys.stdin.readline()
    (directory / "package/file").write_text("whole")


print(Cache(Path(sys.argv[1])).entry("key", build, lambda text: print(text, flush=True)), flush=True)
sys.stdin.readline()
