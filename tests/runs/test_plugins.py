"""Other plugins of pytest, alone and together: tests end as without them, measured or not."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from builders import ONE_CALL
from example import FAILED, OK, Example

TESTS = """
    def test_passes(rlperf):
        rlperf(int)

    def test_fails(rlperf):
        rlperf(int)
        assert [1, 2] == [1, 3]
"""
# The plugins that are downloaded most, by their distributions, each with options that have it do something.
PLUGINS: dict[str, tuple[str, ...]] = {
    "allure-pytest": ("--alluredir=allure",),
    "anyio": (),
    "hypothesis": (),
    "pytest-asyncio": (),
    "pytest-bdd": ("--cucumberjson=cucumber.json",),
    "pytest-check": (),
    "pytest-clarity": (),
    "pytest-cov": ("--cov=.",),
    "pytest-dependency": (),
    "pytest-django": (),
    "pytest-env": (),
    "pytest-forked": (),  # with --forked each test fails without this plugin too, from pytest 9 on
    "pytest-html": ("--html=report.html",),
    "pytest-httpx": (),
    "pytest-instafail": ("--instafail",),
    "pytest-json-report": ("--json-report",),
    "pytest-metadata": (),
    "pytest-mock": (),
    "pytest-order": (),
    "pytest-random-order": ("--random-order",),
    "pytest-randomly": (),
    "pytest-regressions": (),
    "pytest-repeat": ("--count=1",),
    "pytest-reportlog": ("--report-log=log.jsonl",),
    "pytest-rerunfailures": ("--reruns=1",),
    "pytest-retry": ("--retries=1",),
    "pytest-socket": ("--disable-socket", "--allow-unix-socket"),
    "pytest-split": ("--splits=1", "--group=1"),
    "pytest-subtests": (),
    "pytest-sugar": (),
    "pytest-testmon": ("--testmon",),
    "pytest-timeout": ("--timeout=100",),
    "pytest-xdist": ("-n1",),
    "pytest_freezer": (),
    "pytest_httpserver": (),
    "syrupy": (),
}
NEEDS = {"pytest-html": ("pytest-metadata",), "pytest-regressions": ("pytest-datadir",)}
ENTRIES = [(each.dist.name, each.name) for each in entry_points(group="pytest11") if each.dist is not None]
INSTALLED = [name for name in PLUGINS if name in dict(ENTRIES)]


def ends_as_ever(directory: Path, names: Sequence[str], *args: str) -> None:
    """Run tests with these plugins: one passes and one fails, once, and nothing else happens."""
    needed = [other for name in names for other in NEEDS.get(name, ())]
    loaded = dict.fromkeys(entry for name, entry in ENTRIES if name in (*names, *needed))
    options = [option for name in names for option in PLUGINS[name]]
    example = Example(directory, {"test_it.py": TESTS})
    plugins = ("rlperf", "cacheprovider", *loaded)
    run = example.pytest("--junitxml=junit.xml", *args, *options, plugins=plugins, code=FAILED)
    assert "INTERNALERROR" not in run.text
    assert 'errors="0" failures="1" skipped="0" tests="2"' in (example.root / "junit.xml").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("measured", [False, True], ids=["plain", "measured"])
@pytest.mark.parametrize("name", INSTALLED)
def test_a_plugin_alone(tmp_path: Path, name: str, measured: bool) -> None:
    """Of those that are installed; ``pip install`` the others to try them too."""
    ends_as_ever(tmp_path, [name], *(ONE_CALL if measured else ()))


@pytest.mark.parametrize("measured", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "measured"])
def test_all_plugins_together(tmp_path: Path, measured: bool) -> None:
    """All that are installed at once."""
    ends_as_ever(tmp_path, INSTALLED, *(ONE_CALL if measured else ()))


def test_a_plugin_that_would_run_a_test_again_is_known_by_any_name(tmp_path: Path) -> None:
    """`-p` names it by its module, an installed one by its entry: no worker has it."""
    plugins = ("rlperf", "pytest_rerunfailures")
    run = Example(tmp_path, {"test_it.py": TESTS}).pytest(*ONE_CALL, "--reruns=2", plugins=plugins, code=FAILED)
    assert run.counts == "1 failed, 1 passed"


REPORTS = """
    import datetime
    import pytest

    MADE = {"numbers": {1: (2, 3)}, "set": {"a"}, "bytes": b"b", "date": datetime.date(2020, 2, 29)}

    def pytest_configure(config):
        if hasattr(config, "workerinput"):
            assert config.workerinput["seed of a plugin of pytest-xdist's controller"] is None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        report = yield
        report.made, report.cannot_be_pickled = MADE, lambda: None
        report.user_properties.append(("pair", (1, 2)))
        return report

    def pytest_runtest_logreport(report):
        assert report.made == MADE
        assert ("pair", (1, 2)) in report.user_properties
"""


def test_a_report_is_as_its_plugins_made_it(tmp_path: Path) -> None:
    """Of types that JSON does not have too, in the run's process, to which a worker has sent it."""
    tests = "def test_it(rlperf):\n    rlperf(int)\n"
    run = Example(tmp_path, {"conftest.py": REPORTS, "test_it.py": tests}).pytest(*ONE_CALL, code=OK)
    assert run.counts == "1 passed"
