"""Whose code sets the variables of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WATCHED = """
import json, sys
from pytest_rlperf.observe.variable_watch import VariableWatch

watch = VariableWatch()
sys.path[:0] = sys.argv[1:]
import own, library, os
print(json.dumps({name: sorted(files) for name, files in watch.files.items()}))
"""
OWN = """
import os

os.environ["BY_ITEM"] = os.environ["TAKEN_OVER"] = "1"
os.environ.update(BY_UPDATE="1")
os.environ.setdefault("BY_DEFAULT", "1")
os.environ.setdefault("BY_DEFAULT", "2")
os.environ["REMOVED"] = "1"
"""
LIBRARY = """
import os

os.environ.setdefault("BY_DEFAULT", "3")
os.environ["TAKEN_OVER"] = "2"
del os.environ["REMOVED"]
os.putenv("NOT_SEEN_BY_PYTHON", "1")
"""


def test_all_that_set_a_variable_are_noted(tmp_path: Path) -> None:
    """Whichever way they do; a default that is there already is not set again."""
    places = {name: tmp_path / f"{name}.py" for name in ("own", "library")}
    places["own"].write_text(OWN)
    places["library"].write_text(LIBRARY)
    done = subprocess.run([sys.executable, "-c", WATCHED, str(tmp_path)], capture_output=True, text=True, check=True)
    own, library = str(places["own"]), str(places["library"])
    by_own = {name: [own] for name in ("BY_ITEM", "BY_UPDATE", "BY_DEFAULT")}
    by_both = {name: [library, own] for name in ("TAKEN_OVER", "REMOVED")}
    assert json.loads(done.stdout) == {**by_own, **by_both, "NOT_SEEN_BY_PYTHON": [library]}
