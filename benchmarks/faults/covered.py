"""Branch coverage of rooms of the package, in every process that tests start: workers, guardians and their copies.

Processes of one room end in several ways: coverage saves its data at ``os._exit`` too, by a ``sitecustomize`` that only
these tests' processes find. Those that are killed save nothing::

    pip install coverage
    python benchmarks/faults/covered.py workers tests/test_workers.py tests/test_messages.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Not by the variables that coverage's own tools set: a run takes these away from its workers.
START = """
import os
os.environ["COVERAGE_PROCESS_START"] = {settings!r}
import coverage
coverage.process_startup()
del os.environ["COVERAGE_PROCESS_START"]
"""
SETTINGS = """
[run]
branch = true
parallel = true
data_file = {directory}/data
source_pkgs = {packages}
patch = _exit, fork
disable_warnings = no-data-collected, module-not-measured, module-not-imported
[report]
show_missing = true
exclude_also =
    if TYPE_CHECKING:
    if __name__ == "__main__":
"""


def main() -> int:
    """Run the tests, and print the coverage of the rooms; return the tests' exit code."""
    rooms, *tests = sys.argv[1:]
    packages = ", ".join(f"pytest_rlperf.{room}" for room in rooms.split(","))
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory, "settings")
        settings.write_text(SETTINGS.format(directory=directory, packages=packages), encoding="utf-8")
        Path(directory, "sitecustomize.py").write_text(START.format(settings=str(settings)), encoding="utf-8")
        path = os.pathsep.join(filter(None, [directory, os.environ.get("PYTHONPATH")]))
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        code = subprocess.run(pytest, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
        tool = [sys.executable, "-m", "coverage"]
        for words in (["combine", "-q"], ["report"]):
            subprocess.run([*tool, *words, f"--rcfile={settings}"], cwd=directory, check=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
