"""A plugin for workers of another interpreter: takes pytest-cov's options where pytest-cov is not installed.

The options come from the run's command line or settings. Workers do not measure coverage, so nothing is lost there.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_FLAGS = ("--cov-append", "--cov-branch", "--cov-reset", "--no-cov", "--no-cov-on-fail")
_VALUES = ("--cov-config", "--cov-context", "--cov-fail-under", "--cov-precision", "--cov-report")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare pytest-cov's options, of which nothing is read, where it does not do so itself."""
    if find_spec("pytest_cov") is not None:
        return
    group = parser.getgroup("rlperf-coverage", "pytest-cov's options, without effect here")
    group.addoption("--cov", nargs="?", action="append")
    for flag in _FLAGS:
        group.addoption(flag, action="store_true")
    for option in _VALUES:
        group.addoption(option, action="append")
