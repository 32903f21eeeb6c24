"""The kinds of findings and what each may do: every pytest run loads this, and nothing else about results."""

from __future__ import annotations

from collections.abc import Mapping

OFF, SHOW, GATE = "off", "show", "gate"
FINDINGS: Mapping[str, str] = {
    "time": GATE,
    "counts": SHOW,
    **dict.fromkeys(("growth", "garbage", "threads", "drift", "compiles", "first_call", "scale"), GATE),
    **dict.fromkeys(("phases", "outputs"), SHOW),
}
"""The kinds of findings, each with what it does unless a run or a test sets it otherwise."""
