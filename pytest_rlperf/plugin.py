"""The plugin's hooks; modules that only measuring needs are imported when measuring starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest

from pytest_rlperf import fixtures, options

pytest_plugins = ["pytest_rlperf.fixtures"]

TIMERS = "RLPERF_TIMERS"  # the variable of pytest_rlperf.timers, which is not loaded for its name alone
_STARTUP_PATH = list(sys.path)  # before rootdirs and conftests are put on it; workers start with the same


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.add_options(parser)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Arm timers where this process is to measure, before a conftest binds one."""
    if getattr(early_config.known_args_namespace, "rlperf_inline", False):
        before = os.environ.get(TIMERS)
        os.environ[TIMERS] = "standby"
        early_config.add_cleanup(lambda: _restore(before))  # a program that calls pytest.main() goes on after it


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(TIMERS, None)
    else:
        os.environ[TIMERS] = before


def pytest_configure(config: pytest.Config) -> None:
    """Read the options; with --rlperf, take over the run."""
    options.add_marker(config)
    if fixtures.ENGINE in config.stash:
        return  # a worker, which acts on orders
    settings = options.read_config(config)
    if settings.active and not config.option.collectonly:
        if sys.platform == "win32":  # before anything that only POSIX has is imported
            raise pytest.UsageError(
                "--rlperf measures on Linux and macOS: its processes need what Windows lacks; use WSL, or leave "
                "--rlperf out: then the same tests run once, checked and unmeasured, and `rlperf show` reads files"
            )
        if settings.bisect is None:
            from pytest_rlperf.run.hooks import MeasuredRun as Run
        else:
            from pytest_rlperf.run.bisect import BisectRun as Run

        config.pluginmanager.register(Run(config, settings, _STARTUP_PATH), "rlperf-run")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Warn where a test passes without the call that it is there for."""
    yield
    fixtures.warn_if_uncalled(item)
