"""Shipped benchmarks: the components at fixed sizes. Run with ``pytest --rlperf --pyargs pytest_rlperf.suite``."""
