import pickle, sys
from pathlib import Path
from pytest_rlperf.sides.prepare import prepare_sides
from pytest_rlperf.model.sides import Project

root = Path(sys.argv[1])
project = Project(
    rootdir=root,
    directory=root,
    inipath=None,
    args=(),
    path=tuple(entry for entry in sys.path if entry),
    files=(root / "tests/test_speed.py",),
    conftests=(root / "conftest.py",) if (root / "conftest.py").exists() else (root / "tests/conftest.py",),
    test_patterns=("test_*.py", "*_test.py"),
    packages=(),
    baseline_dir=root / "baselines",
)
sides = prepare_sides("HEAD~1", project, lambda step: print(step, file=sys.stderr))
print(pickle.dumps(sides).hex())
