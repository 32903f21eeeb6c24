import os
import time

import pytest


def work():
    return sum(range(1000))


def test_garbage(rlperf, wire):
    if wire:
        os.write(wire, b"Exception ignored in: <function")
    rlperf(work)


def test_no_message(rlperf, wire):
    if wire:
        os.write(wire, b"\0\0\0\x05hello")
    rlperf(work)


def test_half(rlperf, wire):
    if wire:
        os.write(wire, b"\0\0\0\x09{}")
        time.sleep(1000)
    rlperf(work)


@pytest.mark.rlperf(max_time=0.05)  # slices, which read clocks
def test_patched_clock(rlperf, monkeypatch):
    monkeypatch.setattr("time.perf_counter_ns", iter(range(10**9, 0, -1)).__next__)
    rlperf(work)


@pytest.mark.rlperf(max_time=0.05)
def test_clock_back(rlperf, monkeypatch):
    from pytest_rlperf.worker.rounds import Clocks

    now = iter(range(10**12, 0, -1000)).__next__
    monkeypatch.setattr(Clocks, "host", classmethod(lambda cls: cls(now, now, 1000.0)))
    rlperf(work)


def test_breaks(rlperf):
    rlperf(work)


@pytest.fixture
def hangs():
    time.sleep(1000)


@pytest.mark.rlperf(setup_timeout=2)
def test_hangs(rlperf, hangs):
    rlperf(work)


def test_sound(rlperf):
    rlperf(work)
