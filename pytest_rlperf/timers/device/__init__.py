"""Phases on an accelerator, by its own clock: a tape of marks at the edges of scopes, read after the work is done."""

from pytest_rlperf.timers.device.held import devices_of
from pytest_rlperf.timers.device.spans import Span
from pytest_rlperf.timers.device.tape import Tape

__all__ = ["Span", "Tape", "devices_of"]
