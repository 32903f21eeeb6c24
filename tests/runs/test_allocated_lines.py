"""The lines that a failure names where calls keep more than on base."""

from __future__ import annotations

from pathlib import Path

import pytest
from example import FAILED, Example


@pytest.mark.slow  # test_allocations has the lines, test_findings what names them
def test_only_what_head_keeps_more_of_is_named(tmp_path: Path) -> None:
    """A line that keeps as much on base has no part in the growth, wherever it stands by now."""
    base = """
        from collections import deque

        KEPT = deque()  # which never moves what it has, however many calls there is time for

        def work():
            KEPT.append(bytes(2_000))
            return sum(range(5_000))
    """
    test = "import library\n\ndef test_work(rlperf):\n    rlperf(library.work)\n"
    example = Example(tmp_path, {"library.py": base, "test_it.py": test})
    example.commit()
    more = "KEPT.append(bytes(2_000))\n            KEPT.append(bytes(1_500))"
    example.write({"library.py": "\n" + base.replace("KEPT.append(bytes(2_000))", more)})
    run = example.pytest(
        *("--rlperf-against=HEAD", "-o", "rlperf_pairs=2..2", "--rlperf-max-time=20", "--rlperf-tolerance=900%"),
        "--rlperf-findings=counts=off,garbage=off,first_call=off,drift=off",
        code=FAILED,
    )
    (found,) = run.tests["test_work"]["verdict"]["findings"]
    (_, _, place) = found["line"].partition("allocated at ")
    lines = (example.root / "library.py").read_text(encoding="utf-8").splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "1_500" in line)
    assert place.startswith(f"library.py:{number} (1.5")
    assert "," not in place
