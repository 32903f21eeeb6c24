import resource, sys
from pathlib import Path
from pytest_rlperf.errors import SideError
from pytest_rlperf.sides.cache import Cache


def build(directory):
    (directory / "file").write_text("new")


resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    Cache(Path(sys.argv[1])).entry("key", build, print)
except SideError as error:
    sys.exit(str(error))
