import os, pickle, sys, tempfile
from pathlib import Path
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.model.sides import Project

root, spec, scratch = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
project = Project(
    rootdir=root,
    directory=root,
    inipath=None,
    args=(),
    path=tuple(entry for entry in sys.path if entry),
    files=(root / "tests/test_speed.py",),
    conftests=(root / "conftest.py",) if (root / "conftest.py").exists() else (root / "tests/conftest.py",),
    test_patterns=("test_*.py", "*_test.py"),
    also=(),
    baseline_dir=root / "baselines",
    variables=dict(os.environ),
)
preparation = Preparation(
    project, lambda: Path(tempfile.mkdtemp(prefix="", dir=scratch)), lambda step: print(step, file=sys.stderr)
)
print(pickle.dumps(preparation.against(spec)).hex())
