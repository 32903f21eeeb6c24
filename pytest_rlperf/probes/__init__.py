"""Phases for code that one cannot edit: from methods, PyTorch's own events, and other libraries' timers."""

import sys

from pytest_rlperf.model.measured import Probe
from pytest_rlperf.probes.attach import ProbeError, attached
from pytest_rlperf.probes.functions import Phases, probes_for
from pytest_rlperf.probes.live import LiveTimers
from pytest_rlperf.probes.sections import UpdateSections
from pytest_rlperf.probes.torch import Backward, Forward, OptimizerSteps, Ranges, arm_ranges, quieten_ranges

__all__ = [
    "Backward",
    "Forward",
    "LiveTimers",
    "OptimizerSteps",
    "Phases",
    "ProbeError",
    "Ranges",
    "UpdateSections",
    "arm_ranges",
    "attached",
    "probes_for",
    "quieten_ranges",
    "standing_probes",
]


def standing_probes() -> tuple[Probe, ...]:
    """Return the probes that any code is measured with: for the timers and ranges of libraries that are loaded."""
    return (LiveTimers(), Ranges()) if "torch" in sys.modules else (LiveTimers(),)
