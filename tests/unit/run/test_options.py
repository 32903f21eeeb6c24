from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import builders
import pytest
from example import USAGE
from wording import Wording

from pytest_rlperf.options import (
    MARKER,
    OPTIONS,
    RENAMED,
    Config,
    parse_baseline,
    parse_duration,
    parse_flag,
    parse_globs,
    parse_pairs,
    parse_path,
    parse_spec,
    parse_tolerance,
    read_config,
    renamed,
)

pytestmark = pytest.mark.usefixtures("alone")


READ: list[tuple[Callable[[object], object], dict[object, object]]] = [
    (
        parse_tolerance,
        {"3%": 0.03, " 3 % ": 0.03, "0.5%": 0.005, ".5%": 0.005, "250%": 2.5, "1000%": 10.0, 0.03: 0.03},
    ),
    (
        parse_duration,
        {"60": 60.0, "1.5s": 1.5, " 2 min ": 120.0, "50us": 5e-5, "50µs": 5e-5, "3ms": 3e-3, "1ns": 1e-9, 60: 60.0},
    ),
    (parse_flag, {"1": True, "true": True, "YES": True, " on ": True, True: True}),
    (parse_flag, {"0": False, "False": False, "no": False, "off": False, False: False}),
    (parse_baseline, {name: Path(name) for name in ("baselines/default", "./v1.2", "/a b/linux_ci", "../c/2026-01+b")}),
    (parse_path, {"a/b": Path("a/b")}),
    (parse_spec, {"main": "main", " HEAD~1 ": "HEAD~1", "pip:a==1,b": "pip:a==1,b", "dir:../x y": "dir:../x y"}),
    (parse_pairs, {"3..10": (3, 10), " 2 .. 2 ": (2, 2), "5..5": (5, 5), "03..100": (3, 100)}),
    (parse_globs, {"data/*.npz": ("data/*.npz",), " b/**\n  a,c  d ": ("b/**", "a,c", "d"), "": ()}),
]


@pytest.mark.parametrize(("parse", "values"), READ)
def test_values_are_read(parse: Callable[[object], object], values: dict[object, object]) -> None:
    """In each of the forms that the documentation shows, from the command line, ini files and Python code."""
    for value, expected in values.items():
        assert parse(value) == (pytest.approx(expected) if isinstance(expected, float) else expected), value


def settings_of(
    pytester: pytest.Pytester, *args: str, ini: str = "", marker: str = "", fixture: str = "rlperf"
) -> Config:
    """Return the settings of a test in a run with these arguments, ini lines and marker keywords."""
    pytester.makeini(f"[pytest]\n{ini}")
    decorator = f"@pytest.mark.{MARKER}({marker})" if marker else ""
    item = pytester.getitem(f"import pytest\n{decorator}\ndef test_it({fixture}): pass\n", "test_it")
    config = pytester.parseconfig(*args)
    return read_config(config).for_test(item)


INI = """
rlperf_baseline = elsewhere/night
rlperf_tolerance = 4%
rlperf_max_time = 2min
rlperf_total_time = 300
rlperf_strict = true
"""
LIVE = "rlperf_pairs = 4..6\nrlperf_also = data/*.npz\n  two"


@pytest.mark.parametrize(
    ("args", "ini", "marker", "expected"),
    [
        pytest.param(
            *("", INI, ""),
            {
                "active": False,
                "tolerance": 0.04,
                "max_time_s": 120,
                "total_time_s": 300,
                "strict": True,
            },
            id="ini beats default",
        ),
        pytest.param(
            *("--rlperf-tolerance=5% --rlperf-max-time=7 --rlperf-save-baseline", INI.replace("true", "no"), ""),
            {"tolerance": 0.05, "max_time_s": 7.0, "active": True, "save": True, "strict": False},
            id="flag beats ini, and implies what it needs",
        ),
        pytest.param(
            *("--rlperf-tolerance=5% --rlperf-max-time=7", INI),
            "tolerance='6%', max_time='90s', min_change='50us', fail=False",
            {"tolerance": 0.06, "max_time_s": 90, "min_change_s": pytest.approx(5e-5), "fail": False},
            id="marker beats both",
        ),
        pytest.param("", LIVE, "", {"pairs": (4, 6), "also": ("data/*.npz", "two"), "active": False}, id="a project's"),
        pytest.param("--rlperf-tolerance=5%", "", "", {"active": False}, id="how to compare alone measures nothing"),
        pytest.param("--rlperf-against=main", "", "", {"active": True}, id="what to compare with measures"),
        pytest.param(
            *("--rlperf-save-baseline --rlperf-against=pip:a==1 --rlperf-json=out/run.json", "", ""),
            {"save": True, "active": True, "against": "pip:a==1", "json": Path("out/run.json")},
            id="saving and comparing live go together",
        ),
    ],
)
def test_where_a_setting_comes_from(
    pytester: pytest.Pytester, args: str, ini: str, marker: str, expected: dict[str, Any]
) -> None:
    """An ini option beats the default, a flag the ini file, a marker both."""
    found = settings_of(pytester, *args.split(), ini=ini, marker=marker)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.baseline == pytester.path / ("elsewhere/night" if "elsewhere" in ini else "baselines/default")


@pytest.mark.parametrize(("marker", "tolerance"), [("max_time=1", 0.1), ("tolerance='6%'", 0.06)])
def test_a_whole_iteration_has_a_tolerance_of_its_own(pytester: pytest.Pytester, marker: str, tolerance: float) -> None:
    """It is wider than what components are held to, and a marker wins over it."""
    found = settings_of(pytester, "--rlperf-tolerance=5%", marker=marker, fixture="rlperf_train")
    assert found.tolerance == tolerance


def test_the_closest_marker_wins(pytester: pytest.Pytester) -> None:
    """A test's own marker beats its class's, which beats its module's, keyword by keyword."""
    module = pytester.getmodulecol(
        """
        import pytest
        pytestmark = pytest.mark.rlperf(tolerance=0.1, max_time=1, fail=False)

        @pytest.mark.rlperf(tolerance=0.2, max_time=2)
        class TestIt:
            @pytest.mark.rlperf(tolerance=0.3)
            def test_it(self, rlperf): pass
        """
    )
    (item,) = pytester.genitems([module])
    found = read_config(pytester.parseconfig()).for_test(item)
    assert (found.tolerance, found.max_time_s, found.fail) == (0.3, 2.0, False)


MEASURED = "def test_it(rlperf):\n    rlperf(int)\n"


def usage_error(pytester: pytest.Pytester, *args: str) -> str:
    """Return what a run with ``args`` writes on standard error; it is a usage error that has measured nothing."""
    pytester.makepyfile(test_it=MEASURED)
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", *args)
    assert run.ret == USAGE
    for text in (run.stdout.str(), run.stderr.str()):
        assert "Traceback" not in text
        assert "INTERNALERROR" not in text
    assert not (pytester.path / "baselines").exists()
    return run.stderr.str()


@pytest.mark.parametrize(
    "args",
    [
        ["--rlperf-tolerance=0"],
        ["--rlperf-tolerance=-3%"],
        ["--rlperf-tolerance=abc"],
        ["--rlperf-tolerance=3"],
        ["--rlperf-max-time=0"],
        ["--rlperf-total-time=much"],
        ["-o", "rlperf_baseline=night"],
        ["-o", "rlperf_baseline=a/.."],
        ["--rlperf", "--rlperf-shard=0/4"],
        ["--rlperf", "--rlperf-shard=5/4"],
        ["--rlperf", "--rlperf-shard=x"],
        ["--rlperf-shard=1/4"],
        ["--rlperf:check-machine", "--rlperf-shard=1/4"],
        ["--rlperf-ray"],
        ["--rlperf", "--rlperf-ray=tests/test_it.py"],
        ["--rlperf", "--rlperf-ray", "--rlperf-shard=1/4"],
        ["--rlperf-save-baseline", "--rlperf-ray"],
        ["--rlperf:bisect=v1", "--rlperf-json=x.json"],
        ["--rlperf:bisect=v1", "--rlperf-against=v2"],
        ["--rlperf-against="],
        ["-o", "rlperf_pairs=3"],
        ["-o", "rlperf_pairs=10..3"],
        ["--rlperf-json=x.json"],
        ["--rlperf-json="],
        ["--rlperf-strict"],
        ["--rlperf-findings=counts=gate"],
        ["--rlperf:check-machine", "--rlperf-save-baseline"],
        ["--rlperf:check-machine", "--rlperf-against=main"],
        ["--rlperf", "-o", "rlperf_also=data/*.npz /elsewhere/*.npz"],
    ],
    ids=" ".join,
)
def test_a_flag_that_makes_no_sense(pytester: pytest.Pytester, args: list[str], wording: Wording) -> None:
    """A bad flag, or a bad combination, is a usage error that says which and what is allowed."""
    with wording.raises(pytest.UsageError):
        pytester.parseconfigure(*args)


@pytest.mark.parametrize(
    "marker",
    [
        "tolerence=0.1",
        "0.1",
        "tolerance=-0.03",
        "tolerance=3",
        "tolerance=float('nan')",
        "max_time=0",
        "min_change='-1us'",
        "fail='perhaps'",
    ],
)
def test_a_marker_that_makes_no_sense(pytester: pytest.Pytester, marker: str, wording: Wording) -> None:
    """A bad marker is named with its file and line, its test, and what is allowed."""
    with pytest.raises(pytest.UsageError) as caught:
        settings_of(pytester, marker=marker)
    assert ".py:2: test_it: @pytest.mark.rlperf" in str(caught.value)
    assert str(caught.value) == wording


def test_a_bad_marker_is_one_line_in_an_ordinary_run(pytester: pytest.Pytester, wording: Wording) -> None:
    """Each test that bears it is an error of its own, told by the line that the marker is at and no traceback."""
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.rlperf(tolerence="3%")
        def test_function(rlperf):
            rlperf(int)

        @pytest.mark.rlperf(fail="perhaps")
        class TestClass:
            def test_method(self, rlperf):
                rlperf(int)

        def test_good(rlperf):
            rlperf(int)
        """
    )
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(passed=1, errors=2)
    lines = [line for line in result.outlines if line.startswith("test_it.py:")]
    assert [line.split(": ")[:2] for line in lines] == [
        ["test_it.py:3", "test_function"],
        ["test_it.py:7", "TestClass"],
    ]
    assert lines == wording
    assert "pytest_rlperf" not in result.stdout.str()


def test_an_unknown_baseline(pytester: pytest.Pytester, wording: Wording) -> None:
    """A name nothing is stored under says which names there are."""
    assert usage_error(pytester, "--rlperf", "-o", "rlperf_baseline=baselines/nigth") == wording
    builders.write(pytester.path, {f"kept/{name}/some-machine.json": "{}" for name in ("night", "day")})
    error = usage_error(pytester, "--rlperf", "-o", "rlperf_baseline=kept/nigth")
    assert "day, night" in error
    assert error == wording


OLD = {
    "--rlperf-accept=why": "Rlperf-Accept",
    "--rlperf-baseline=night": "-o rlperf_baseline=DIR/NAME",
    "--rlperf-budget=9": "--rlperf-total-time",
    "--rlperf-bisect=v1": "rlperf bisect",
    "--rlperf-selfcheck": "rlperf check-machine",
    "-orlperf_budget=9": "rlperf_total_time",
    "-orlperf_setup_time=9": "rlperf_setup_timeout",
}


@pytest.mark.parametrize("given", OLD)
def test_a_name_of_an_earlier_version_says_the_new_one(pytester: pytest.Pytester, given: str) -> None:
    """A flag or a setting of an ini file that was renamed, or went, is one usage error with what to write."""
    error = usage_error(pytester, "--rlperf", given)
    assert re.search(rf"^ERROR: \S+ is gone: write .*{re.escape(OLD[given])}", error, re.MULTILINE)


@pytest.mark.parametrize(("marker", "now"), [("gate=False", "fail"), ("setup_time=9", "setup_timeout")])
def test_a_keyword_of_an_earlier_version_says_the_new_one(pytester: pytest.Pytester, marker: str, now: str) -> None:
    """With the place of the marker."""
    with pytest.raises(pytest.UsageError, match=rf"\.py:2: test_it: .*: {marker.partition('=')[0]} is gone: .*{now}"):
        settings_of(pytester, marker=marker)


def test_what_to_write_now_is_there() -> None:
    """Each new name of a flag or a setting is one, and no old one is."""
    flags = {option.flag for option in OPTIONS if option.flag} | {
        f"rlperf_{option.name.removesuffix('_s')}" for option in OPTIONS if option.ini
    }
    for old, new in RENAMED.items():
        assert renamed(old) == f"{old} is gone: write {new}"
        assert old not in flags
        assert {*re.findall(r"--rlperf[a-z-]*|rlperf_[a-z_]+", new)} <= flags
