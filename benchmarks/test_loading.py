"""What the plugin costs every pytest run, also those that measure nothing: this repository's gate measures it.

It is not part of the shipped suite, which libraries run.
"""

from __future__ import annotations

from pytest_rlperf import Measure


def test_plugin(rlperf_import: Measure) -> None:
    """Measure the import of the plugin, and of pytest, which comes first."""
    rlperf_import("pytest_rlperf.plugin")
