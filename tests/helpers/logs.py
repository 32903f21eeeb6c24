"""What a terminal or a CI's runner would obey in the lines of a log."""

from __future__ import annotations

import re

_ACTS = re.compile(r"^\s*::|##\w*\[|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", re.MULTILINE)


def acting(text: str) -> list[str]:
    """Return the lines of an output that a terminal or a CI's runner would obey."""
    return [line for line in text.split("\n") if _ACTS.search(line)]
