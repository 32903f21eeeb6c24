"""Checks of the sizes a test gives; a wrong one is told before anything is built from it."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from pytest_rlperf.errors import ComponentError


def check_count(name: str, value: Any) -> None:
    """Raise ComponentError unless ``value`` is a whole number of at least one."""
    __tracebackhide__ = True
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
        raise ComponentError(f"{name}={value!r}: expected a whole number of at least 1")


def check_items(value: Any) -> None:
    """Raise ComponentError unless ``value`` can be what one call processes."""
    __tracebackhide__ = True
    if not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ComponentError(f"items={value!r}: one call processes a positive number of items")
