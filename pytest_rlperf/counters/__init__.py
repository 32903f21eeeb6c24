"""Exact counts of what a call does, each by an instrument in passes of its own: nothing is timed meanwhile."""

from pytest_rlperf.counters.counting import tally
from pytest_rlperf.counters.device import CountsDevice
from pytest_rlperf.counters.names import NAMES, CounterName

__all__ = ["NAMES", "CounterName", "CountsDevice", "tally"]
