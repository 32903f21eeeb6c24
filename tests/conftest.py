"""Settings of the plugin's own tests, and the fixtures that many of them need.

A measured run loads this file too, with the code of either side and without the extra `test`: so what only the tests
need is imported within functions.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from wording import Wording

    from pytest_rlperf.timers import FakeClock

pytest.register_assert_rewrite("wording", "example")
collect_ignore = ["samples"]  # the projects in which tests run pytest

# One thread each for the tests' processes, of which several run at a time: more only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if "RLPERF_TIMERS" not in os.environ:
    # The tests of timers need timers; what they start as a user would decides for itself.
    os.environ["RLPERF_TIMERS"] = "standby"
    import_module("pytest_rlperf.timers")
    del os.environ["RLPERF_TIMERS"]

# Each of the many processes would compile the package, and pytest its asserts, anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_TIMERS = os.environ.get("RLPERF_TIMERS")


@pytest.fixture(autouse=True, scope="session")
def _runs_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep what a test starts out of the run that `pytest -n 3` distributes, and out of any job of GitHub's.

    A measured run loads this file, too, and does belong to its job, whose summary it writes. Sides are kept outside of
    projects, which pytester makes the user's home.
    """
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "GITHUB_ACTIONS"):
        os.environ.pop(name, None)
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def _timers_as_at_the_start() -> None:
    """Undo a test's switching of timers, which sets a variable for later processes."""
    if _TIMERS is None:
        os.environ.pop("RLPERF_TIMERS", None)
    else:
        os.environ["RLPERF_TIMERS"] = _TIMERS


@pytest.fixture(autouse=True)
def _older_objects_frozen() -> None:
    """Exempt older objects from the garbage collector, which spends most of its time on them."""
    gc.freeze()


# The files that take longest, by their processor time: `pytest -n 3 --dist loadfile` begins with them, so that all
# processes end at the same time.
LONGEST = (
    "test_live.py",
    "test_workers.py",
    "test_sides_cases.py",
    "test_init.py",
    "torch",
    "test_reliability.py",
    "test_lifecycle.py",
    "test_reach_cases.py",
    "test_leftovers.py",
    "test_bisection.py",
    "test_reach.py",
    "test_mistakes.py",
    "test_counters_run.py",
    "test_live_judge.py",
    "test_observation.py",
    "test_main_job.py",
    "test_sides_git.py",
    "test_engine.py",
    "test_benchmark_suites.py",
    "test_examples.py",
    "test_workflow_steps.py",
    "test_outputs.py",
    "test_logs.py",
    "test_sides_environment.py",
    "test_sides_layouts.py",
    "test_architecture.py",
    "test_allocations.py",
    "test_options.py",
    "test_phases.py",
    "test_slices.py",
    "test_plugins.py",
    "test_pairs.py",
    "test_mean_call.py",
    "test_run_log.py",
    "test_first_tests.py",
    "test_timers_processes.py",
    "test_shards.py",
    "test_store.py",
    "test_log_texts.py",
    "test_simulated_machine.py",
    "test_platforms.py",
    "test_beside.py",
    "test_workflows.py",
    "test_sides_cache.py",
    "test_torch_threads.py",
    "test_judge.py",
    "test_suite.py",
    "test_cli.py",
)

# The files that load PyTorch in pytest's own process. One process of several runs them all, as if they were one file,
# "torch": to load PyTorch takes as long as a hundred tests.
WITH_TORCH = (
    "test_adapters.py",
    "test_clocks.py",
    "test_compiled.py",
    "test_components.py",
    "test_conditions.py",
    "test_counting_torch.py",
    "test_design_card.py",
    "test_device_judged.py",
    "test_device_phases.py",
    "test_device_slices.py",
    "test_gae.py",
    "test_library_cleanrl.py",
    "test_ninth_library.py",
    "test_own_components.py",
    "test_planted_defects.py",
    "test_ppo.py",
    "test_probes_torch.py",
    "test_reference.py",
    "test_replay.py",
    "test_sac.py",
    "test_seeds.py",
    "test_shares.py",
    "test_torchrl.py",
    "test_vecenv.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist hand out files in the order in which they are collected."""
    if config.pluginmanager.has_plugin("xdist"):
        config.option.loadscopereorder = False


def _handed_out_as(file: str) -> str:
    """Return the name by which a file is handed out to a process: its own, or that of all files with PyTorch."""
    return "torch" if file.rpartition("/")[2] in WITH_TORCH else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let ``--dist loadfile`` hand out the files that load PyTorch as if they were one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduler(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return _handed_out_as(file)

    return Scheduler(config, log)


ALL_ITEMS = pytest.StashKey[list[pytest.Item]]()  # that were collected, before any is deselected


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import thousands of tests without the garbage collector, which takes a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what was collected; put the longest files first where pytest-xdist distributes tests."""
    config.stash[ALL_ITEMS] = list(items)
    if hasattr(config, "workerinput"):
        order = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(_handed_out_as(item.path.name), len(order)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests that need PyTorch where it is not installed."""
    if item.get_closest_marker("torch") and find_spec("torch") is None:
        pytest.skip("needs PyTorch: the extra `rl` installs it")


def pytest_pycollect_makemodule(parent: pytest.Collector) -> None:
    """Let property tests take their time, and the same examples in every run but one with --hypothesis-seed.

    On a busy machine any example may take long. A run that gates a change should fail for the change alone.
    """
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "unhurried",
        settings.get_profile("default"),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=parent.config.getoption("--hypothesis-seed", None) is None,
    )
    settings.load_profile("unhurried")


def pytest_assertrepr_compare(op: str, right: object) -> list[str] | None:
    """Show how a sentence differs from the catalogue's."""
    return getattr(right, "catalogue_difference", None) if op == "==" else None


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still until a test advances it."""
    from pytest_rlperf.timers import FakeClock  # once they are armed

    return FakeClock()


@pytest.fixture
def in_foreground() -> Iterator[None]:
    """Let Ctrl-C interrupt this process and those that it starts, even if the run itself was started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def all_items(request: pytest.FixtureRequest) -> list[pytest.Item]:
    """Return every test that was collected, also those that an option has deselected."""
    return request.config.stash[ALL_ITEMS]


@pytest.fixture
def wording(request: pytest.FixtureRequest) -> Wording:
    """Return what the catalogue of sentences has for this test."""
    from wording import Catalogue, Wording

    return Wording(request.getfixturevalue("snapshot").use_extension(Catalogue))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every pytest that a test starts load this plugin alone."""
    import builders

    for name, value in builders.ALONE.items():
        monkeypatch.setenv(name, value)
