"""Texts from outside in the log of a whole run: nothing in them acts."""

from __future__ import annotations

import re
from pathlib import Path

from builders import TWO_PAIRS
from example import FAILED, USAGE, Example
from logs import acting


def test_no_text_of_a_run_acts(tmp_path: Path) -> None:
    """Output of a process that died, a test's name and a baseline's words reach the terminal as texts alone."""
    tests = """
        import os
        import sys

        import pytest


        def test_dies(rlperf):
            print("##[error]hacked\\n::error::hacked\\x1b[31m\\r::error::x", file=sys.stderr, flush=True)
            os._exit(3)


        @pytest.mark.parametrize("kind", ["##[error]hacked"])
        def test_named(rlperf, kind):
            rlperf(lambda: sum(range(99)))
    """
    example = Example(tmp_path, {"test_it.py": tests, "work.py": ""})
    example.commit()
    of_pytest = re.compile(r"^(FAILED|ERROR) test_it|^_{3,}")  # its own lines have the names of tests
    for against, code in (("HEAD", FAILED), ("##[error]hacked", USAGE)):
        run = example.pytest(f"--rlperf-against={against}", *TWO_PAIRS, code=code)
        assert "hacked" in run.text
        assert [line for line in acting(run.text) if not of_pytest.search(line)] == []
