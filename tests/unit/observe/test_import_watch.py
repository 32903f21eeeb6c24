"""Packages from elsewhere that read the user's tree while they are imported, and those that only seem to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WATCHED = """
import sys
from pathlib import Path
from pytest_rlperf.observe.import_watch import ImportWatch

watch = ImportWatch(Path(sys.argv[1]))
sys.path[:0] = sys.argv[1:]
import user
print(sorted(watch.packages))
"""


def test_a_package_that_keeps_a_traceback_of_its_importer_reads_nothing(tmp_path: Path) -> None:
    """PyTorch keeps one at its import: the traceback's text has lines of the user's files."""
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    tree.mkdir()
    elsewhere.mkdir()
    (tree / "settings.txt").write_text("seven")
    (tree / "user.py").write_text("import keeps_traceback\nimport reads\n")
    (elsewhere / "keeps_traceback.py").write_text(
        "import traceback\nassert 'import keeps_traceback' in ''.join(traceback.format_stack())\n"
    )
    (elsewhere / "reads.py").write_text(f"TEXT = open({str(tree / 'settings.txt')!r}).read()\n")
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tree), str(elsewhere)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['reads']\n"
