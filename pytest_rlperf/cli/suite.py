"""``rlperf suite``: pytest on the shipped benchmarks."""

from __future__ import annotations

import argparse
import os
import sys

from pytest_rlperf.cli.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [-h] [pytest's options]"
    parser.epilog = "For example: rlperf suite -k sac --rlperf-max-time=5"


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Become pytest, on the suite."""
    command = [sys.executable, "-m", "pytest", "--rlperf", "--pyargs", "pytest_rlperf.suite", *arguments.others]
    os.execv(sys.executable, command)  # noqa: S606 - Python itself, and no shell


COMMAND = Command(
    "suite",
    "Measure the components of every RL library that is installed; pytest's options can be given.",
    _add_arguments,
    _run,
    passes_on=True,
)
