"""The plugin's hooks; modules that only measuring needs are imported when it starts."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_rlperf import fixtures, options

pytest_plugins = ["pytest_rlperf.fixtures"]

_UNMEASURED = pytest.StashKey[bool]()
_STARTUP_PATH = list(sys.path)  # before rootdirs and conftests are put on it; workers start with the same
_VARIABLES = pytest.StashKey[dict[str, str]]()  # before conftests change them
_SETTERS = pytest.StashKey[dict[str, set[str]]]()  # the files of all code that has set a variable since
_MEASURING = ("active", "against", "save", "selfcheck", "bisect")  # the options of a measured run
_STORAGE = "file://./.benchmarks"  # pytest-benchmark's, if no option names another
_LACKS_STORAGE = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.add_options(parser)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Remember the variables before conftests change them: workers start with the same. Refuse misspelt options."""
    early_config.stash[_VARIABLES] = dict(os.environ)
    known = early_config.known_args_namespace
    if any(getattr(known, f"rlperf_{name}", None) for name in _MEASURING):
        from pytest_rlperf.observe.variable_watch import VariableWatch
        from pytest_rlperf.spawn.guardian import VARIABLE

        if VARIABLE not in os.environ:  # not in a worker
            watch = VariableWatch()
            early_config.add_cleanup(watch.end)
            early_config.stash[_SETTERS] = watch.files
    result = yield
    options.refuse_misspelt(parser.parse_known_and_unknown_args(args)[1])
    return result


def pytest_configure(config: pytest.Config) -> None:
    """Read the options; with --rlperf, take over the run."""
    options.add_marker(config)
    is_usual = config.getoption("benchmark_storage", "") == _STORAGE
    config.stash[_LACKS_STORAGE] = is_usual and not Path(".benchmarks").exists()
    if fixtures.ENGINE in config.stash:
        return  # a worker, which acts on orders
    settings = options.read_config(config)
    if settings.active and not config.option.collectonly:
        if any(getattr(config.option, name, False) for name in ("usepdb", "trace")):  # workers have no terminal
            config.stash[_UNMEASURED] = True
            return
        if sys.platform == "win32":  # before any import of modules that only POSIX has
            raise options.usage_error(
                "--rlperf works only on Linux and macOS: use WSL, or leave --rlperf out. The tests then run once, and "
                "are checked and not measured; `rlperf show` reads the files of runs on any system"
            )
        gc.freeze()  # or the garbage collector would walk, for the imports below, all that conftests have loaded
        before = frozenset(sys.modules)
        if settings.bisect is None:
            from pytest_rlperf.run.hooks import MeasuredRun as Run
        else:
            from pytest_rlperf.run.bisect import BisectRun as Run

        from pytest_rlperf.run.drivers import Beginning

        variables = config.stash.get(_VARIABLES, None) or dict(os.environ)
        setters = config.stash.get(_SETTERS, None) or {}
        began = Beginning(_STARTUP_PATH, variables, frozenset(sys.modules) - before, setters)
        config.pluginmanager.register(Run(config, settings, began), "rlperf-run")


def pytest_plugin_registered(plugin: object, plugin_name: str, manager: pytest.PytestPluginManager) -> None:
    """Remove the directory that pytest-benchmark's session has just made; it makes it again if it stores results."""
    config = getattr(plugin, "config", None) if plugin_name == "pytest-benchmark" else None
    if isinstance(config, pytest.Config) and config.stash.get(_LACKS_STORAGE, False):
        with contextlib.suppress(OSError):
            Path(".benchmarks").rmdir()


def _benchmark(config: pytest.Config) -> ModuleType | None:
    """Return pytest-benchmark's plugin, which projects have because of this one, if pytest has loaded it."""
    module = sys.modules.get("pytest_benchmark.plugin")
    return module if module is not None and config.pluginmanager.is_registered(module) else None


@pytest.hookimpl(wrapper=True)
def pytest_report_header(config: pytest.Config) -> Generator[None, list[object], list[object]]:
    """Leave out pytest-benchmark's line until a test uses that plugin."""
    lines = yield
    benchmark = _benchmark(config)
    return lines if benchmark is None else [each for each in lines if each != benchmark.pytest_report_header(config)]


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Show the line that the header lacks, and a line if a debugger keeps the run from measuring."""
    benchmark, lines = _benchmark(config), []
    uses = any("benchmark" in getattr(item, "fixturenames", ()) for item in items)
    if benchmark is not None and uses and config.get_verbosity() >= 0 and not config.option.no_header:
        lines.append(str(benchmark.pytest_report_header(config)))
    if _UNMEASURED in config.stash:
        lines.append("rlperf: nothing is measured under --pdb or --trace: each test runs once, as without --rlperf")
    return lines
