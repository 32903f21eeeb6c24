"""Whose code it is that runs: the timers' own is never counted."""

from __future__ import annotations

import os
from pathlib import Path
from types import CodeType

_OWN = str(Path(__file__).parents[1]) + os.sep


def is_own(code: CodeType) -> bool:
    """Whether code is that of timers, probes or instruments."""
    return code.co_filename.startswith(_OWN)
