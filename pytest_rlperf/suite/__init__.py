"""Shipped benchmarks: the five components at fixed sizes. Run with ``pytest --rlperf --pyargs pytest_rlperf.suite``."""
