"""Tests of calls that do more, or less, than they did `BEFORE`."""

import pytest
from mylib import update
from virtual_gpu import VirtualGPU
from pytest_rlperf.devices import driving

BEFORE = True


@pytest.mark.rlperf(findings={"counts": ["python_calls"]})
def test_more(rlperf):
    rlperf(lambda: update(2 if BEFORE else 3))  # here


@pytest.mark.rlperf(findings={"counts": ["python_calls"]})
def test_less(rlperf):
    rlperf(lambda: update(4 if BEFORE else 3))


@pytest.fixture
def gpu():
    made = VirtualGPU()
    with driving(made):
        yield made


@pytest.mark.rlperf(findings={"counts": ["syncs", "pageable_copies", "device_allocations"]})
def test_device(rlperf, gpu):
    held = [gpu.allocate(1000)]

    def call():
        gpu.copy_to_device(4096, pinned=BEFORE)
        gpu.launch(1e-4)
        if not BEFORE:
            gpu.item()
            held.append(gpu.allocate(1000))

    rlperf(call)
