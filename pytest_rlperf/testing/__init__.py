"""Stand-ins for tests of code that measures: time that passes only when told to, and a GPU that has only that."""

from pytest_rlperf.testing.clock import FakeClock
from pytest_rlperf.testing.gpu import VirtualGPU
from pytest_rlperf.testing.memory import VirtualTensor
from pytest_rlperf.testing.queues import VirtualEvent, VirtualGraph

__all__ = ["FakeClock", "VirtualEvent", "VirtualGPU", "VirtualGraph", "VirtualTensor"]
