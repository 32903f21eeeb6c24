"""A measured test's life as its user sees it: what is selected, set up, reported and torn down, beside plain pytest."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pytest
from builders import ONE_CALL

WORKERS = 5


@dataclasses.dataclass(frozen=True)
class Run:
    """How a pytest process ended, and what it wrote."""

    code: int
    out: str
    err: str
    directory: Path

    @property
    def text(self) -> str:
        """Everything written, for the message of a failed assert."""
        return f"{self.out}\n--- stderr ---\n{self.err}"

    @property
    def results(self) -> list[str]:
        """The lines of `-v`, without the progress."""
        lines = [re.sub(r"\s+\[ *\d+%\]$", "", line) for line in self.out.splitlines()]
        return [line for line in lines if re.match(r"\S+\.py::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", line)]

    @property
    def outcomes(self) -> dict[str, str]:
        """The word in each line of `-v`, by the test's name; the last where a test has several."""
        pattern = re.compile(r"\S+?\.py::(.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
        found = (pattern.match(line) for line in self.results)
        return {match[1]: match[2] for match in found if match}

    @property
    def counts(self) -> str:
        """The last line without its time."""
        lines = [line for line in self.out.splitlines() if re.search(r" in \d.*=$", line)]
        return re.sub(r" in [\d.]+s.*", "", lines[-1]).strip("= ") if lines else ""

    def section(self, title: str) -> str:
        """Return the text between the headline `title` and the next, without what differs between any two runs."""
        sections: dict[str, list[str]] = defaultdict(list)
        current = ""
        for line in self.out.splitlines():
            headline = re.fullmatch(r"=+ (.+?) =+", line)
            if "generated xml file" in line:
                continue
            if headline:
                current = headline[1]
            else:
                sections[current].append(re.sub(r"0x[0-9a-f]+", "0x", line))
        return "\n".join(sections[title])


def run(directory: Path, *args: str, env: dict[str, str] | None = None, stdin: str | None = None) -> Run:
    """Run pytest in `directory` with no other plugin loaded, which saves each of six processes much of its start."""
    removed = ("PYTEST_ADDOPTS", "PYTEST_XDIST", "PYTEST_CURRENT_TEST", "COV_CORE_", "COVERAGE_PROCESS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(removed)}
    process = subprocess.run(
        [sys.executable, "-m", "pytest", *(() if "no:rlperf" in args else ("-p", "rlperf")), *args],
        cwd=directory,
        env={**environment, "COLUMNS": "100", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})},
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )
    return Run(process.returncode, process.stdout, process.stderr, directory)


def write(directory: Path, **files: str) -> Path:
    """Write Python files named by keyword, `_in_` standing for a slash, and an ini file; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "pyproject.toml").exists():
        (directory / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        path = directory / f"{'/'.join(reversed(name.split('_in_')))}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    return directory


@dataclasses.dataclass(frozen=True)
class Both:
    """The same tests, run in place and measured."""

    plain: Run
    measured: Run


# ------------------------------------------------------------------ reports, against plain pytest

REPORTS = '''
    import logging
    import sys
    import warnings

    import pytest

    log = logging.getLogger("component")


    def work():
        return sum(range(1000))


    def helper(value):
        """A function of the user's between test and assert."""
        assert value == {"a": [1, 2, 3]}, "helper's own words"


    @pytest.fixture
    def noisy():
        print("out of setup")
        print("err of setup", file=sys.stderr)
        log.warning("log of setup")
        yield
        print("out of teardown")
        print("err of teardown", file=sys.stderr)
        log.warning("log of teardown")


    @pytest.fixture
    def broken_setup():
        print("about to break")
        raise RuntimeError("setup broke")


    @pytest.fixture
    def broken_teardown():
        yield
        raise RuntimeError("teardown broke")


    @pytest.fixture
    def skips():
        pytest.skip("in a fixture")


    @pytest.mark.rlperf(max_time=0.05)  # calls in slices too
    def test_speaks(rlperf, noisy):
        print("out before")
        rlperf(work)
        print("out after", file=sys.stderr)


    def test_fails_before(rlperf, noisy):
        print("out before")
        log.error("log before %d", 7)
        assert {"a": 1, "b": 2} == {"a": 1, "b": 3}
        rlperf(work)


    @pytest.mark.rlperf(max_time=0.05)  # calls in slices too
    def test_fails_after(rlperf, noisy):
        print("out before")
        result = rlperf(work, items=64, unit="transition")
        print("out after")
        log.error("log after")
        items = result.items
        assert items == 65


    def test_fails_in_helper(rlperf):
        rlperf(work)
        helper({"a": [1, 2, 4]})


    def test_component_raises(rlperf):
        def broken():
            raise KeyError("no such transition")

        rlperf(broken)


    def test_component_wrong(rlperf):
        def check(output):
            assert output == 1, "component's own check"

        rlperf(work, check=check)


    def test_component_refused(rlperf):
        rlperf(work, items=-1)


    def test_chained(rlperf):
        rlperf(work)
        try:
            raise ValueError("first")
        except ValueError as error:
            raise RuntimeError("second") from error


    def test_no_traceback(rlperf):
        rlperf(work)
        pytest.fail("said plainly", pytrace=False)


    def test_system_exit(rlperf):
        sys.exit(3)


    def test_setup_breaks(rlperf, broken_setup):
        rlperf(work)


    def test_teardown_breaks(rlperf, broken_teardown):
        rlperf(work)


    def test_fails_and_teardown_breaks(rlperf, broken_teardown):
        print("before both")
        rlperf(work)
        assert 1 == 2


    @pytest.mark.skip(reason="marked")
    def test_skip_mark(rlperf):
        rlperf(work)


    @pytest.mark.skipif("sys.platform != 'nowhere'", reason="by condition")
    def test_skip_condition(rlperf):
        rlperf(work)


    def test_skip_fixture(rlperf, skips):
        rlperf(work)


    def test_skip_before(rlperf):
        pytest.skip("before the call")


    def test_skip_after(rlperf):
        rlperf(work)
        pytest.skip("after the call")


    @pytest.mark.xfail(reason="known")
    def test_xfail(rlperf):
        rlperf(work)
        raise ValueError("as known")


    @pytest.mark.xfail(reason="known", strict=True)
    def test_xfail_strict(rlperf):
        assert rlperf(work) is None


    @pytest.mark.xfail(reason="known", raises=ValueError)
    def test_xfail_raises(rlperf):
        rlperf(work)
        raise ValueError("the one")


    @pytest.mark.xfail(reason="known", raises=ValueError)
    def test_xfail_raises_other(rlperf):
        rlperf(work)
        raise TypeError("not the one")


    @pytest.mark.xfail(reason="never run", run=False)
    def test_xfail_norun(rlperf):
        raise AssertionError("ran")


    def test_xfail_imperative(rlperf):
        rlperf(work)
        pytest.xfail("on second thought")


    @pytest.mark.xfail(reason="outdated")
    def test_xpass(rlperf):
        print("passes unexpectedly")
        rlperf(work)


    @pytest.mark.xfail(reason="outdated", strict=True)
    def test_xpass_strict(rlperf):
        rlperf(work)


    def test_capsys(rlperf, capsys):
        print("one")
        rlperf(work)
        print("two", file=sys.stderr)
        assert capsys.readouterr() == ("one\\n", "two\\n")
        print("left over")
        assert 0, "shows what is left over"


    def test_capfd(rlperf, capfd):
        print("one")
        rlperf(work)
        assert capfd.readouterr().out == "one\\n"


    @pytest.mark.rlperf(max_time=0.05)  # calls in slices too
    def test_caplog(rlperf, caplog):
        with caplog.at_level("INFO"):
            log.info("quiet")
        rlperf(work)
        assert [record.message for record in caplog.records] == ["quiet"]


    @pytest.mark.rlperf(max_time=0.05)  # calls in slices too
    def test_warns(rlperf):
        for _ in range(3):
            warnings.warn("in the test", RuntimeWarning)
        rlperf(lambda: warnings.warn("in the component", FutureWarning))


    def test_warns_too(rlperf):
        warnings.warn("in the test", RuntimeWarning)
        warnings.warn(DeprecationWarning("given as an instance"))
        rlperf(work)


    @pytest.mark.rlperf(max_time=0.05)  # calls in slices too
    def test_expects_warning(rlperf):
        with pytest.warns(UserWarning, match="expected"):
            warnings.warn("expected")
        with pytest.deprecated_call():
            rlperf(lambda: warnings.warn("expected", DeprecationWarning))


    @pytest.mark.parametrize("odd", ["a/b", "a::b", "a b", "[x]", "\\u00e9\\u4e2d", "", "-k", "tab\\t", "b"])
    def test_ids(rlperf, odd):
        assert odd != "b"
        rlperf(work)


    @pytest.mark.parametrize("size", [1, 2])
    class TestClass:
        def test_method(self, rlperf, size):
            rlperf(work)

        class TestNested:
            def test_deep(self, rlperf, size):
                rlperf(work)
                assert size == 1


    def test_property(rlperf, record_property):
        record_property("library", "mine")
        rlperf(work)
        record_property("count", 3)
'''


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Run tests that end in every way there is, in place and measured."""
    directory = write(tmp_path_factory.mktemp("reports"), test_reports=REPORTS)
    args = ("-v", "-rA", "--strict-markers", "-o", "junit_family=legacy", "-p", "no:cacheprovider")
    plain = run(directory, *args, "--junitxml=plain.xml")
    return Both(plain, run(directory, *args, *ONE_CALL, "--junitxml=measured.xml", "--rlperf-json=measured.json"))


def test_every_outcome_is_plain_pytests(reports: Both) -> None:
    """Tests end, and are counted and told, as they would have been without measuring."""
    plain, measured = reports.plain, reports.measured
    assert len(plain.results) > 40
    assert measured.results == plain.results, measured.text
    assert measured.counts == plain.counts
    assert measured.code == plain.code == pytest.ExitCode.TESTS_FAILED
    assert not measured.err


@pytest.mark.parametrize("title", ["ERRORS", "FAILURES", "PASSES", "XPASSES", "XFAILURES", "short test summary info"])
def test_every_section_is_plain_pytests(reports: Both, title: str) -> None:
    """Tracebacks, captured output, assert's explanations and the short summary are those of plain pytest."""
    plain = reports.plain.section(title)
    assert plain or title == "XFAILURES"
    assert reports.measured.section(title) == plain


def test_warnings_summary_is_plain_pytests(reports: Both) -> None:
    """Warnings come with category, text, place and test, as often as without measuring."""
    plain, measured = (result.section("warnings summary") for result in (reports.plain, reports.measured))
    assert "RuntimeWarning: in the test" in plain
    assert "FutureWarning: in the component" in plain
    assert measured == plain


def test_no_frame_of_the_plugin_shows(reports: Both) -> None:
    """A traceback ends in the user's code."""
    for title in ("ERRORS", "FAILURES"):
        assert "pytest_rlperf/" not in reports.measured.section(title)


def test_junit_is_plain_pytests_with_verdicts(reports: Both) -> None:
    """JUnit XML has every case, failure, skip and property, and the verdict of each test that was measured."""
    plain = _cases(reports.plain.directory / "plain.xml")
    measured = _cases(reports.measured.directory / "measured.xml")
    properties = {case: children.pop("properties", []) for case, children in measured.items()}
    for children in plain.values():
        children.pop("properties", None)
    assert measured == plain
    assert ("library", "mine") in properties["test_reports", "test_property"]
    assert ("count", "3") in properties["test_reports", "test_property"]
    verdicts = {name: dict(pairs).get("rlperf_verdict", "") for (_, name), pairs in properties.items()}
    assert {verdicts[name] for name in ("test_speaks", "test_xpass", "test_skip_after")} == {"NEW"}
    assert {verdicts[name] for name in ("test_fails_before", "test_fails_after", "test_setup_breaks")} == {"ERROR"}
    assert {verdicts[name] for name in ("test_skip_mark", "test_skip_before")} == {""}


def test_each_test_that_failed_is_an_error_in_the_table(reports: Both) -> None:
    """In the table, in the JSON, and where that is shown: in setup, check, call or teardown, measured before or not."""
    failed = {name for name, word in reports.measured.outcomes.items() if word in ("FAILED", "ERROR")}
    assert {"test_component_wrong", "test_setup_breaks", "test_teardown_breaks", "test_fails_after"} <= failed
    run_json = reports.measured.directory / "measured.json"
    tests = json.loads(run_json.read_text(encoding="utf-8"))["tests"]
    statuses = {key.partition("::")[2]: test["verdict"]["status"] for key, test in tests.items()}
    assert {name for name, status in statuses.items() if status == "ERROR"} == failed
    shown = subprocess.run(
        [sys.executable, "-m", "pytest_rlperf", "show", run_json],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == pytest.ExitCode.TESTS_FAILED
    for text in (reports.measured.section("rlperf"), shown.stdout):
        assert set(re.findall(r"(?m)^(\S+) {2,}.*\bERROR$", text)) == failed
        assert "component's own check" in text


def _cases(path: Path) -> dict[tuple[str, str], dict[str, list[tuple[str, str]]]]:
    """Return each test case's children by tag, as pairs of their name or message and their text."""
    cases = {}
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - written by the test
        children: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for child in case:
            if child.tag == "properties":
                children["properties"] += [(item.attrib["name"], item.attrib["value"]) for item in child]
            else:
                text = re.sub(r"0x[0-9a-f]+", "0x", child.text or "")
                children[child.tag].append((re.sub(r"0x[0-9a-f]+", "0x", child.get("message", "")), text))
        cases[case.attrib["classname"], case.attrib["name"]] = dict(children)
    return cases


# ------------------------------------------------------------------ what does not travel easily

STRANGE = """
    import logging
    import sys
    import time
    import warnings
    from pathlib import Path

    import pytest


    def work():
        return sum(range(1000))


    class Outer:
        class NestedWarning(UserWarning):
            pass


    def test_lazy_category(rlperf):
        from lazy import LazyWarning

        warnings.warn("known here only", LazyWarning)
        rlperf(work)


    def test_nested_category(rlperf):
        warnings.warn("in a class", Outer.NestedWarning)
        rlperf(work)


    def test_big_property(rlperf, record_property):
        record_property("big", 2**70)
        rlperf(work)


    def test_path_property(rlperf, record_property):
        record_property("path", Path("/a/long/way/down/to/some/file/or/other/at/the/end"))
        rlperf(work)


    def test_surrogate(rlperf):
        rlperf(work)
        raise ValueError("undecodable \\udcff name")


    def test_after_surrogate(rlperf):
        rlperf(work)


    def test_subtests(rlperf, subtests):
        for part in range(3):
            with subtests.test("part", part=part):
                assert part != 1
        rlperf(work)


    @pytest.mark.parametrize("unstable", [time.time_ns()])
    def test_unstable_id(rlperf, unstable):
        rlperf(work)


    def test_uncaptured(rlperf, capsys):
        with capsys.disabled():
            print("\\nseen at once", flush=True)
        rlperf(work)


    def test_logs(rlperf, request):
        number = int(request.config.workerinput["workerid"][-1])
        logging.getLogger("component").warning("logged live by %d%s", number, " or so" * number)
        rlperf(work)


    class Opaque:
        pass


    @pytest.mark.parametrize("value", [Opaque(), 2.5, None, True, int])
    def test_opaque(rlperf, value):
        rlperf(work)
"""


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Measure tests whose reports hold what is hard to send to another process, or write past the capture."""
    directory = write(
        tmp_path_factory.mktemp("strange"), test_strange=STRANGE, lazy="class LazyWarning(UserWarning): pass\n"
    )
    return run(directory, *ONE_CALL, "-v", "--junitxml=out.xml", "-o", "log_cli=true", "--log-file=log.txt")


def test_warning_of_a_module_loaded_in_workers_only_keeps_its_category(strange: Run) -> None:
    """A warning's category is shown though this process has not imported it."""
    assert "LazyWarning: known here only" in strange.out


def test_warning_of_a_nested_class_keeps_its_category(strange: Run) -> None:
    """A warning's category is shown though it is an attribute of a class."""
    assert "NestedWarning: in a class" in strange.out


def test_property_of_any_size_is_reported(strange: Run) -> None:
    """An integer of more than 64 bits does not end the worker."""
    assert strange.outcomes["test_big_property"] == "PASSED"
    assert ("big", str(2**70)) in _cases(strange.directory / "out.xml")["test_strange", "test_big_property"][
        "properties"
    ]


def test_property_reads_as_in_plain_pytest(strange: Run) -> None:
    """A property that is no plain data is written as its text, in full."""
    properties = _cases(strange.directory / "out.xml")["test_strange", "test_path_property"]["properties"]
    assert ("path", "/a/long/way/down/to/some/file/or/other/at/the/end") in properties


def test_undecodable_text_is_reported(strange: Run) -> None:
    """A message with a lone surrogate is the test's failure, not its worker's end."""
    assert strange.outcomes["test_surrogate"] == "FAILED"
    assert "undecodable" in strange.section("FAILURES")
    assert "exited with code" not in strange.section("FAILURES")
    assert strange.outcomes["test_after_surrogate"] == "PASSED"


def test_subtests_are_reported(strange: Run) -> None:
    """Subtests of a measured test are told as such."""
    if "subtests" not in strange.out:
        pytest.skip("this pytest has no subtests")
    assert re.search(r"test_subtests SUBFAILED.*\[?part", strange.out)
    assert "1 failed subtest" in strange.out


def test_test_that_workers_do_not_collect_is_an_error(strange: Run) -> None:
    """A test whose id differs from process to process does not vanish from the report."""
    name = next(name for name in _case_names(strange) if name.startswith("test_unstable_id"))
    assert strange.outcomes.get(name) in {"ERROR", "FAILED"}
    assert "not collected" in strange.out


def _case_names(result: Run) -> list[str]:
    return [name for _, name in _cases(result.directory / "out.xml")]


def test_output_past_the_capture_is_shown(strange: Run) -> None:
    """Output under `capsys.disabled()` reaches the terminal, once."""
    assert strange.out.count("seen at once") == 1


def test_live_log_is_shown(strange: Run) -> None:
    """With `log_cli` a test's log records reach the terminal, once."""
    assert len(re.findall(r"WARNING +component:test_strange\.py:\d+ logged live by 0\n", strange.out)) == 1


def test_log_file_holds_each_record_once(strange: Run) -> None:
    """With `--log-file` the reporting worker's records are in the file, and no others."""
    (line,) = (strange.directory / "log.txt").read_text().splitlines()
    assert line.endswith("logged live by 0")


def test_ids_of_opaque_parameters_are_found(strange: Run) -> None:
    """Parameters without a text of their own are matched between the processes."""
    assert all(
        strange.outcomes[f"test_opaque[{name}]"] == "PASSED" for name in ("value0", "2.5", "None", "True", "int")
    )


# ------------------------------------------------------------------ output as it comes

SHOUTING = """
    import os
    import sys

    import pytest


    @pytest.fixture
    def loud():
        print("loud setup")
        yield
        print("loud teardown")


    def test_loud(rlperf, loud):
        print("loud before")
        result = rlperf(lambda: sum(range(1000)))
        print("loud after", result.measured)
        print("loud error", file=sys.stderr)
        os.write(1, b"loud descriptor\\n")
"""


def test_no_capture_shows_output_as_it_comes(tmp_path: Path) -> None:
    """With `-s` what the reporting worker prints is seen in order, once, and nothing of the others."""
    result = run(write(tmp_path, test_loud=SHOUTING), *ONE_CALL, "-s")
    assert result.code == 0, result.text
    said = re.findall(r"loud (setup|before|after True|descriptor|teardown)", result.out)
    assert sorted(said) == sorted(["setup", "before", "after True", "descriptor", "teardown"])
    assert [word for word in said if word != "descriptor"] == ["setup", "before", "after True", "teardown"]
    assert result.err.count("loud error") == 1


def test_tee_shows_output_and_keeps_it(tmp_path: Path) -> None:
    """With `--capture=tee-sys` output is both seen and kept for the report."""
    result = run(write(tmp_path, test_loud=SHOUTING), *ONE_CALL, "--capture=tee-sys", "-rP")
    assert result.code == 0, result.text
    assert "Captured stdout call" in result.section("PASSES")
    assert result.out.count("loud before") == 2
    assert result.out.count("loud descriptor") == 1


# ------------------------------------------------------------------ selection and stopping

SELECTION = """
    import pytest


    def work():
        return sum(range(1000))


    def test_first(rlperf):
        rlperf(work)


    def test_second_fails(rlperf):
        rlperf(work)
        assert 0


    @pytest.mark.slow
    def test_third_slow(rlperf):
        rlperf(work)


    @pytest.mark.parametrize("odd", ["a/b", "c::d", "e f", "\\u00e9"])
    def test_odd(rlperf, odd):
        rlperf(work)


    def test_fifth_fails(rlperf):
        assert 0


    def test_sixth(rlperf):
        rlperf(work)


    def test_not_measured():
        raise AssertionError("deselected")
"""


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write tests to choose from, and return their directory."""
    directory = write(tmp_path_factory.mktemp("selection"), test_select=SELECTION)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return directory


def test_first_failure_stops_the_run(selection: Path) -> None:
    """With `-x` nothing runs after the first failure, which is the one remembered for `--lf`."""
    stopped = run(selection, *ONE_CALL, "-v", "-x")
    assert stopped.code == pytest.ExitCode.TESTS_FAILED
    assert stopped.outcomes == {"test_first": "PASSED", "test_second_fails": "FAILED"}, stopped.text
    assert "stopping after 1 failures" in stopped.out
    again = run(selection, *ONE_CALL, "-v", "--lf", "--maxfail=2")
    assert again.outcomes == {"test_second_fails": "FAILED"}, again.text
    assert "rerun previous 1 failure" in again.out


def test_tests_are_selected_as_usual(selection: Path) -> None:
    """Odd node ids, `-k`, `-m` and `--deselect` choose among measured tests; what is not measured is deselected."""
    odd = [f"test_select.py::test_odd[{name}]" for name in ("a/b", "c::d", "e f", "\\xe9")]
    names = ("test_first", "test_third_slow", "test_fifth_fails", "test_sixth", "test_not_measured")
    result = run(
        selection, *ONE_CALL, "-v", "--strict-markers", "--maxfail=1", *odd,
        *(f"test_select.py::{name}" for name in names),
        "-k", "not first", "-m", "not slow", "--deselect", odd[1],
    )  # fmt: skip
    passed = ["test_odd[a/b]", "test_odd[e f]", "test_odd[\\xe9]"]
    assert result.outcomes == {**dict.fromkeys(passed, "PASSED"), "test_fifth_fails": "FAILED"}, result.text
    assert "4 deselected" in result.counts
    assert "stopping after 1 failures" in result.out


# ------------------------------------------------------------------ layouts


def layout(directory: Path) -> Path:
    """Write two packages with a test file of one name, a library on `pythonpath`, and settings in pyproject.toml."""
    directory.mkdir(exist_ok=True)
    (directory / "pyproject.toml").write_text(
        "[tool.pytest.ini_options]\n"
        'testpaths = ["checks"]\n'
        'pythonpath = ["lib"]\n'
        'markers = ["mine"]\n'
        'addopts = ["--strict-config", "--strict-markers"]\n'
    )
    test = """
        import component

        def test_name(rlperf, size, rootsize):
            result = rlperf(lambda: component.work(size), items=size)
            assert result.items == size
            assert (__name__, rootsize) == ({name!r}, 7)
    """
    conftest = """
        import pytest

        @pytest.fixture
        def size():
            return {size}
    """
    return write(
        directory,
        component_in_lib="def work(size): return sum(range(size))\n",
        __init___in_checks="",
        conftest_in_checks="import pytest\n\n@pytest.fixture(scope='session')\ndef rootsize(): return 7\n",
        __init___in_one_in_checks="",
        conftest_in_one_in_checks=conftest.format(size=100),
        test_same_in_one_in_checks=test.format(name="checks.one.test_same"),
        __init___in_two_in_checks="",
        conftest_in_two_in_checks=conftest.format(size=200),
        test_same_in_two_in_checks=test.format(name="checks.two.test_same"),
        test_ignored_in_elsewhere="def test_ignored(rlperf): raise AssertionError('not in testpaths')\n",
    )


@pytest.mark.parametrize(
    ("where", "args"),
    [
        (".", ("--import-mode=importlib",)),
        ("checks/two", (".", "../one/test_same.py")),
        (".", ("--pyargs", "checks.one", "checks.two.test_same")),
        ("elsewhere", ("--rootdir=..", "-c", "../pyproject.toml", "../checks/one")),
    ],
    ids=["testpaths and importlib", "subdirectory", "pyargs", "rootdir"],
)
def test_layouts_are_plain_pytests(tmp_path: Path, where: str, args: tuple[str, ...]) -> None:
    """Files of one name, conftests, ini settings and ways to name tests work as they do without measuring."""
    directory = layout(tmp_path / "project") / where
    plain = run(directory, "-v", *args, "-p", "no:cacheprovider")
    measured = run(directory, "-v", *args, *ONE_CALL, "-p", "no:cacheprovider")
    assert plain.code == 0, plain.text
    assert measured.code == 0, measured.text
    assert measured.results == plain.results
    assert measured.counts == plain.counts


# ------------------------------------------------------------------ fixtures' lives

SCOPES = """
    import os
    from pathlib import Path

    import pytest


    @pytest.fixture(scope="session")
    def say():
        def say(text):
            with Path(__file__).with_name("events").open("a") as file:
                file.write(f"{os.getpid()} {text}\\n")

        return say


    def make(scope):
        @pytest.fixture(scope=scope)
        def lives(request, say):
            say(f"{scope} up in {request.node.name}")
            yield
            say(f"{scope} down in {request.node.name}")

        return lives


    of_session, of_package, of_module = make("session"), make("package"), make("module")
    of_class, of_function = make("class"), make("function")


    @pytest.fixture(scope="module", params=["p", "q"])
    def of_parameter(request, say):
        say(f"parameter {request.param} up")
        yield request.param
        say(f"parameter {request.param} down")
"""

SCOPED = """
    import pytest


    def work():
        return sum(range(1000))


    def test_one(rlperf, of_session, of_module, of_function, say):
        say("test_one")
        rlperf(work)


    class TestClass:
        def test_two(self, rlperf, of_class, of_module, say):
            say("test_two")
            rlperf(work)

        @pytest.mark.skip
        def test_skipped(self, rlperf, of_class):
            pass

        def test_three(self, rlperf, of_class, of_package, say):
            say("test_three")
            rlperf(work)


    def test_parameter(rlperf, of_parameter, say):
        say("test_parameter")
        rlperf(work)


    def test_parameter_too(rlperf, of_parameter, of_function, say):
        say("test_parameter_too")
        rlperf(work)


    def test_four_fails(rlperf, of_module, of_session, tmp_path, tmp_path_factory, say):
        say("test_four")
        assert tmp_path_factory.mktemp("made").is_dir()
        (tmp_path / "file").touch()
        with (__import__("pathlib").Path(__file__).with_name("paths")).open("a") as file:
            file.write(f"{tmp_path}\\n")
        assert 0
"""


@pytest.mark.slow
def test_fixtures_live_as_in_plain_pytest(tmp_path: Path) -> None:
    """In every worker fixtures of all scopes come and go once, in plain pytest's order; temporary paths differ."""
    write(tmp_path, __init___in_pack="", conftest=SCOPES, test_a_in_pack=SCOPED, test_b_in_pack=SCOPED, test_c=SCOPED)
    events = tmp_path / "events"
    plain = run(tmp_path, "-v", "-p", "no:cacheprovider")
    (expected,) = _by_process(events).values()
    assert len([event for event in expected if "up" in event]) > 15
    events.unlink()
    (tmp_path / "pack/paths").unlink()
    measured = run(tmp_path, "-v", "-p", "no:cacheprovider", *ONE_CALL)
    assert measured.results == plain.results, measured.text
    assert list(_by_process(events).values()) == [expected] * WORKERS
    paths = (tmp_path / "pack/paths").read_text().split()
    assert len(set(paths)) == len(paths) == 2 * WORKERS


def _by_process(events: Path) -> dict[str, list[str]]:
    """Return what each process said, in order."""
    said: dict[str, list[str]] = defaultdict(list)
    for line in events.read_text().splitlines():
        process, _, text = line.partition(" ")
        said[process].append(text)
    return dict(said)


# ------------------------------------------------------------------ exit codes

NOTHING = """
    import pytest


    def test_never_calls(rlperf):
        print("not called")


    @pytest.mark.skip(reason="not today")
    def test_skipped(rlperf):
        rlperf(lambda: None)


    def test_plain():
        pass
"""


def test_nothing_measured_is_no_success(tmp_path: Path) -> None:
    """A test that never calls its fixture passes, a skipped one is skipped, and the run exits with 5 and says why."""
    result = run(write(tmp_path, test_nothing=NOTHING), *ONE_CALL, "-v")
    assert result.code == pytest.ExitCode.NO_TESTS_COLLECTED, result.text
    assert result.outcomes == {"test_never_calls": "PASSED", "test_skipped": "SKIPPED"}
    assert "1 deselected" in result.counts
    assert "nothing was measured" in result.out
    assert re.search(r"test_nothing\.py::test_never_calls\s[^,]*\srlperf\(", result.out), result.text
    assert "PytestWarning" not in result.text


def test_no_measured_tests_is_no_success(tmp_path: Path) -> None:
    """Where no test uses a fixture everything is deselected, and the run exits with 5."""
    result = run(write(tmp_path, test_plain="def test_plain(): pass\n"), *ONE_CALL)
    assert result.code == pytest.ExitCode.NO_TESTS_COLLECTED, result.text
    assert "1 deselected" in result.counts


def test_collection_errors_stop_the_run(tmp_path: Path) -> None:
    """A file that cannot be imported stops the run before measuring; on request the other files' tests are measured."""
    directory = write(tmp_path, test_bad="import no_such_module\n", test_select=SELECTION)
    stopped = run(directory, *ONE_CALL)
    assert stopped.code == pytest.ExitCode.INTERRUPTED, stopped.text
    assert "no_such_module" in stopped.out
    goes_on = run(directory, *ONE_CALL, "--continue-on-collection-errors", "-v", "-k", "first")
    assert goes_on.outcomes == {"test_first": "PASSED"}, goes_on.text
    assert goes_on.code == pytest.ExitCode.TESTS_FAILED


# ------------------------------------------------------------------ under a debugger

DEBUGGED = """
    calls = 0


    def work():
        global calls
        calls += 1
        return calls


    def test_wrong(rlperf):
        rlperf(work, check=lambda found: found / 0)


    def test_work(rlperf):
        assert not rlperf(work).measured


    def test_plain():
        assert calls
"""


@pytest.mark.parametrize(("debugger", "stdin"), [("--pdb", "p calls\nc\n"), ("--trace", "c\n" * 3)])
def test_a_debugger_takes_tests_unmeasured(tmp_path: Path, debugger: str, stdin: str) -> None:
    """Every test runs once in pytest's own process, where the debugger has a terminal; one line says why."""
    directory = write(tmp_path, test_it=DEBUGGED)
    result = run(directory, "--rlperf", "--rlperf-json=run.json", debugger, stdin=stdin)
    assert result.code == pytest.ExitCode.TESTS_FAILED, result.text
    assert "1 failed, 2 passed" in result.counts
    assert "(Pdb)" in result.out
    (line,) = (line for line in result.out.splitlines() if line.startswith("rlperf: "))
    assert debugger in line
    assert not (directory / "run.json").exists()
    if debugger == "--pdb":
        assert "(Pdb) 1\n" in result.out


TRACED = "import sys\nsys.settrace(lambda *_: None)\n"
MONITORED = "import sys\nsys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, 'a debugger')\n"
needs_monitoring = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring is of Python 3.12")


@pytest.mark.parametrize(
    ("conftest", "named"), [(TRACED, "conftest"), pytest.param(MONITORED, "a debugger", marks=needs_monitoring)]
)
def test_a_debugger_from_outside_takes_tests_unmeasured(tmp_path: Path, conftest: str, named: str) -> None:
    """So does one that an editor has attached to pytest."""
    result = run(write(tmp_path, conftest=conftest, test_it=DEBUGGED), "--rlperf", "-k", "not wrong")
    assert result.code == pytest.ExitCode.OK, result.text
    assert "2 passed" in result.counts
    (line,) = (line for line in result.out.splitlines() if line.startswith("rlperf: "))
    assert named in line


@pytest.mark.parametrize("core", ["ctrace", "pytrace", pytest.param("sysmon", marks=needs_monitoring)])
def test_coverage_is_no_debugger(tmp_path: Path, core: str) -> None:
    """A run beside coverage measures, whatever coverage traces with."""
    directory = write(tmp_path, test_it="def test_sum(rlperf): assert rlperf(lambda: sum(range(9))).measured\n")
    result = run(directory, *ONE_CALL, "-p", "pytest_cov", "--cov=.", env={"COVERAGE_CORE": core})
    assert result.code == pytest.ExitCode.OK, result.text
    assert "1 passed" in result.counts


# ------------------------------------------------------------------ without --rlperf

ONCE = """
    import sys
    from collections import Counter
    from types import SimpleNamespace

    import numpy as np
    import pytest

    calls = Counter()


    def gae(rewards, values, dones, last_values, gamma, lam):
        calls["gae"] += 1
        advantages, running = np.zeros_like(rewards), 0.0
        following = last_values
        for t in reversed(range(len(rewards))):
            alive = 1.0 - dones[t]
            delta = rewards[t] + gamma * following * alive - values[t]
            running = advantages[t] = delta + gamma * lam * alive * running
            following = values[t]
        return advantages


    class Buffer:
        def sample(self, batch_size):
            calls["replay"] += 1
            return {"observations": np.zeros((batch_size, 3)), "rewards": np.zeros(batch_size)}


    class Collector:
        def collect(self, n_steps):
            calls["ppo"] += 1
            return {"rewards": np.zeros((n_steps, 2))}


    def count(name):
        def call():
            calls[name] += 1

        return call


    def test_rlperf(rlperf):
        result = rlperf(count("rlperf"), setup=count("setup"), check=lambda output: count("check")(), items=3)
        assert result.items == 3
        assert not result.measured
        assert calls["rlperf"] == calls["setup"] == calls["check"] == 1


    def test_gae(rlperf_gae):
        assert rlperf_gae(gae, n_steps=16, n_envs=2).items == 32
        assert calls["gae"] == 1


    def test_replay(rlperf_replay_sample):
        assert rlperf_replay_sample(Buffer(), batch_size=8).items == 8
        assert calls["replay"] == 1


    weights = np.zeros(3)


    def update():
        calls["sac"] += 1
        weights[:] += 0.5


    def test_sac(rlperf_sac_update):
        rlperf_sac_update(update)
        assert calls["sac"] == 1


    def test_ppo(rlperf_ppo_collect):
        rlperf_ppo_collect(Collector(), n_steps=4)
        assert calls["ppo"] == 1


    def test_vecenv(rlperf_vecenv_step):
        gym = pytest.importorskip("gymnasium")

        class Env(gym.Env):
            observation_space = gym.spaces.Box(-1, 1, (3,))
            action_space = gym.spaces.Discrete(2)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return self.observation_space.sample(), {}

            def step(self, action):
                calls["vecenv"] += 1
                return self.observation_space.sample(), 0.0, False, False, {}

        assert rlperf_vecenv_step(lambda: gym.vector.SyncVectorEnv([Env])).items == 1
        assert 1 <= calls["vecenv"] <= 100  # its check steps until an episode ends, or so often


    def test_wrong_component(rlperf):
        with pytest.raises(ValueError, match="wrong"):
            rlperf(lambda: 1, check=lambda output: int("wrong"))


    def test_twice(rlperf):
        rlperf(lambda: None)
        rlperf(lambda: None)


    def test_nothing_else_is_loaded():
        loaded = {name for name in sys.modules if name.startswith("pytest_rlperf.")}
        assert not loaded & {"pytest_rlperf.run.hooks", "pytest_rlperf.run.loop", "pytest_rlperf.workers.pool"}
"""

AUDIT = """
    import sys

    def hook(event, args):
        if event in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}:
            with open("started", "a") as file:
                file.write(f"{event} {args}\\n")

    sys.addaudithook(hook)
"""


def test_without_the_option_components_run_once(tmp_path: Path) -> None:
    """In an ordinary run each fixture runs its component once, unmeasured and checked, in this process."""
    directory = write(tmp_path, conftest=AUDIT, test_once=ONCE)
    result = run(directory, "-v", "-p", "no:cacheprovider")
    failed = {name for name, outcome in result.outcomes.items() if outcome not in {"PASSED", "SKIPPED"}}
    assert failed == {"test_twice"}, result.text
    assert "a second time" in result.out
    assert "== rlperf ==" not in result.out
    assert not [line for line in _lines(directory / "started") if "rlperf" in line]
    assert not (directory / "baselines").exists()


CALLED_OR_NOT = """
    import unittest

    import pytest


    def test_uncalled(rlperf_gae):
        pass


    def test_called(rlperf):
        rlperf(lambda: None)


    @pytest.mark.parametrize("number", [1, 2])
    def test_parametrized(rlperf, number):
        if number == 1:
            rlperf(lambda: None)


    def test_skipped(rlperf):
        pytest.skip("not today")


    def test_failed(rlperf):
        raise AssertionError


    @pytest.mark.xfail
    def test_xfailed(rlperf):
        raise AssertionError


    @pytest.fixture
    def measure(rlperf):
        return rlperf


    def test_of_another_fixture(measure):
        pass


    class TestClass:
        def test_method(self, rlperf_sac_update):
            pass


    class TestUnit(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def take(self, rlperf):
            self.rlperf = rlperf

        def test_passed(self):
            pass

        def test_failed(self):
            self.fail()
"""


@pytest.mark.usefixtures("alone")
def test_a_test_that_never_calls_its_fixture_is_a_warning(pytester: pytest.Pytester) -> None:
    """Where a test itself takes a fixture and passes without the call, a warning at the test names both."""
    path = pytester.makepyfile(test_it=textwrap.dedent(CALLED_OR_NOT))
    run = pytester.inline_run("-p", "no:cacheprovider")
    run.assertoutcome(passed=7, skipped=2, failed=2)
    warned = {call.nodeid: call.warning_message for call in run.getcalls("pytest_warning_recorded")}
    calls = {
        "test_it.py::test_uncalled": "rlperf_gae(",
        "test_it.py::test_parametrized[2]": "rlperf(",
        "test_it.py::TestClass::test_method": "rlperf_sac_update(",
    }
    assert warned.keys() == calls.keys()
    for nodeid, call in calls.items():
        assert issubclass(warned[nodeid].category, pytest.PytestWarning)
        assert nodeid in str(warned[nodeid].message)
        assert f" {call}" in str(warned[nodeid].message)
        assert Path(warned[nodeid].filename).name == path.name


@pytest.mark.usefixtures("alone")
def test_warnings_as_errors_fail_a_test_that_never_calls_its_fixture(pytester: pytest.Pytester) -> None:
    """With `-W error` the test fails as for any warning that it causes, and no other does."""
    pytester.makepyfile(test_it=textwrap.dedent(CALLED_OR_NOT))
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error", "-k", "not test_failed")
    result.assert_outcomes(passed=4, failed=3, skipped=1, xfailed=1, deselected=2)
    result.stdout.fnmatch_lines(["*PytestWarning: *test_it.py::test_uncalled*rlperf_gae(*"])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_disabled_plugin_is_absent(tmp_path: Path) -> None:
    """With `-p no:rlperf` neither options nor fixtures exist, as for any plugin."""
    directory = write(tmp_path, test_nothing=NOTHING)
    assert run(directory, "-p", "no:rlperf", "--rlperf").code == pytest.ExitCode.USAGE_ERROR
    result = run(directory, "-p", "no:rlperf", "-v")
    assert "fixture 'rlperf' not found" in result.out, result.text
    assert result.outcomes["test_plain"] == "PASSED"
