"""A measured test's life as its user sees it: what is selected, set up, reported and torn down, beside plain pytest."""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from collections import defaultdict
from pathlib import Path

import pytest
from builders import FIRST_CALLS, ONE_CALL, source
from example import FAILED, INTERRUPTED, NOTHING, OK, Example, Run
from wording import Wording

WORKERS = 3


@dataclasses.dataclass(frozen=True)
class Both:
    example: Example
    plain: Run
    measured: Run


def lines(run: Run) -> list[str]:
    """Return the lines of `-v`, without the progress."""
    found = [re.sub(r"\s+\[ *\d+%\]$", "", line) for line in run.out.splitlines()]
    return [line for line in found if re.match(r"\S+\.py::.* (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", line)]


def section(run: Run, title: str) -> str:
    """Return a section of a run's output, without what differs between any two runs."""
    found = [line for line in run.section(title).splitlines() if "generated xml file" not in line]
    return re.sub(r"0x[0-9a-f]+", "0x", "\n".join(found))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Run tests that end in every way there is, in place and measured."""
    example = Example(tmp_path_factory.mktemp("reports"), {"test_reports.py": source("lifecycle/reports.py")})
    args = ("-v", "-rA", "--strict-markers", "-o", "junit_family=legacy")
    plain = example.pytest(*args, "--junitxml=plain.xml", code=FAILED)
    return Both(example, plain, example.pytest(*args, *ONE_CALL, "--junitxml=measured.xml", code=FAILED))


def test_every_outcome_is_plain_pytests(reports: Both) -> None:
    """Tests end, and are counted and told, as they would have been without measuring."""
    plain, measured = reports.plain, reports.measured
    assert len(lines(plain)) > 30
    assert lines(measured) == lines(plain), measured.text
    assert measured.counts == plain.counts != ""
    assert not measured.err


@pytest.mark.parametrize("title", ["ERRORS", "FAILURES", "PASSES", "XPASSES", "XFAILURES", "short test summary info"])
def test_every_section_is_plain_pytests(reports: Both, title: str) -> None:
    """Tracebacks, captured output, assert's explanations and the short summary are those of plain pytest."""
    plain = section(reports.plain, title)
    assert plain or title == "XFAILURES"
    assert section(reports.measured, title) == plain


def test_warnings_summary_is_plain_pytests(reports: Both) -> None:
    """Warnings come with category, text, place and test, as often as without measuring."""
    plain, measured = (section(result, "warnings summary") for result in (reports.plain, reports.measured))
    assert "RuntimeWarning: in the test" in plain
    assert "FutureWarning: in the component" in plain
    assert measured == plain


def test_junit_is_plain_pytests_with_verdicts(reports: Both) -> None:
    """JUnit XML has every case, failure, skip and property, and the verdict of each test that was measured."""
    plain = _cases(reports.example.root / "plain.xml")
    measured = _cases(reports.example.root / "measured.xml")
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
    assert {name for name, status in reports.measured.statuses.items() if status == "ERROR"} == failed
    shown = reports.example.rlperf("show", str(reports.example.json), code=FAILED)
    for text in (reports.measured.section("rlperf"), shown.out):
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


def test_strange_reports_and_output_arrive(tmp_path: Path) -> None:
    """What is hard to send to another process, or is not captured, is shown as plain pytest shows it."""
    tests = {"test_strange.py": source("lifecycle/strange.py"), "lazy.py": "class LazyWarning(UserWarning): pass\n"}
    example = Example(tmp_path, tests)
    run, out = example.pytest(*ONE_CALL, "-v", "--junitxml=out.xml"), example.root / "out.xml"
    cases = {name: children.get("properties", []) for (_, name), children in _cases(out).items()}
    assert "LazyWarning: known here only" in run.out, "a category that this process has not imported"
    assert ("big", str(2**70)) in cases["test_big_property"]
    assert ("path", "/a/long/way/down/to/some/file/or/other/at/the/end") in cases["test_path_property"]
    assert "undecodable" in run.section("FAILURES")
    assert "exited with code" not in run.section("FAILURES")
    unstable = next(name for name in cases if name.startswith("test_unstable_id"))
    assert "not collected" in run.out
    passed = (
        "test_big_property",
        "test_after_surrogate",
        *(f"test_opaque[{name}]" for name in ("value0", "2.5", "int")),
    )
    assert {name: run.outcomes[name] for name in passed} == dict.fromkeys(passed, "PASSED")
    assert run.outcomes["test_surrogate"] == "FAILED"
    assert run.outcomes.get(unstable) in {"ERROR", "FAILED"}
    assert "subtests" not in run.out or re.search(r"test_subtests SUBFAILED.*\[?part", run.out)
    assert run.out.count("seen at once") == 1, "output under capsys.disabled()"


SHOUTING = source("lifecycle/loud.py")


def test_no_capture_shows_output_as_it_comes(tmp_path: Path) -> None:
    """With `-s` what the reporting worker prints is seen in order, once, and nothing of the others."""
    result = Example(tmp_path, {"test_loud.py": SHOUTING}).pytest(*ONE_CALL, "-s", code=OK)
    said = re.findall(r"loud (setup|before|after True|descriptor|teardown)", result.out)
    assert sorted(said) == sorted(["setup", "before", "after True", "descriptor", "teardown"])
    assert [word for word in said if word != "descriptor"] == ["setup", "before", "after True", "teardown"]
    assert result.err.count("loud error") == 1


SELECTION = source("lifecycle/selection.py")


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Example:
    files = {"test_select.py": SELECTION, "pytest.ini": "[pytest]\nmarkers = slow\n"}
    return Example(tmp_path_factory.mktemp("selection"), files)


def test_first_failure_stops_the_run(selection: Example) -> None:
    """With `-x` nothing runs after the first failure, which is the one remembered for `--lf`."""
    stopped = selection.pytest(*ONE_CALL, "-v", "-x", "-p", "cacheprovider", code=FAILED)
    assert stopped.outcomes == {"test_first": "PASSED", "test_second_fails": "FAILED"}, stopped.text
    assert "stopping after 1 failures" in stopped.out
    (note,) = stopped.notes("before it had reported")
    assert "test_third_slow" in note
    again = selection.pytest(*ONE_CALL, "-v", "--lf", "--maxfail=2", "-p", "cacheprovider")
    assert again.outcomes == {"test_second_fails": "FAILED"}, again.text
    assert "rerun previous 1 failure" in again.out


def test_tests_are_selected_as_usual(selection: Example) -> None:
    """Odd node ids, `-k`, `-m` and `--deselect` choose among measured tests; what is not measured is deselected."""
    odd = [f"test_select.py::test_odd[{name}]" for name in ("a/b", "c::d", "e f", "\\xe9")]
    names = ("test_first", "test_third_slow", "test_fifth_fails", "test_sixth", "test_not_measured")
    result = selection.pytest(
        *ONE_CALL, "-v", "--strict-markers", "--maxfail=1", *odd,
        *(f"test_select.py::{name}" for name in names),
        "-k", "not first", "-m", "not slow", "--deselect", odd[1],
    )  # fmt: skip
    passed = ["test_odd[a/b]", "test_odd[e f]", "test_odd[\\xe9]"]
    assert result.outcomes == {**dict.fromkeys(passed, "PASSED"), "test_fifth_fails": "FAILED"}, result.text
    assert "4 deselected" in result.counts
    assert "stopping after 1 failures" in result.out


@pytest.mark.slow
def test_fixtures_live_as_in_plain_pytest(tmp_path: Path) -> None:
    """In a new interpreter fixtures of all scopes come and go once, in plain pytest's order; temporary paths differ.

    A copy for one test sets up and tears down what that test needs.
    """
    scoped = source("lifecycle/scoped.py")
    files = {"pack/__init__.py": "", "pack/test_a.py": scoped, "pack/test_b.py": scoped, "test_c.py": scoped}
    example = Example(tmp_path, {**files, "conftest.py": source("lifecycle/scopes.py")})
    events, made = example.root / "events", example.root / "pack/paths"
    plain = example.pytest("-v")
    (expected,) = _by_process(events).values()
    assert len([event for event in expected if "up" in event]) > 15
    events.unlink()
    made.unlink()
    copies = example.pytest("-v", *FIRST_CALLS)
    assert lines(copies) == lines(plain), copies.text
    for said in _by_process(events).values():
        ups, downs = ([event.replace(way, "") for event in said if way in event] for way in (" up", " down"))
        assert sorted(downs) == sorted(ups)
    events.unlink()
    made.unlink()
    one_lane = ("-o", "rlperf_lanes=1")  # two tests at once have other processes
    measured = example.pytest("-v", *FIRST_CALLS, *one_lane, "-o", "rlperf_workers=fresh")
    assert lines(measured) == lines(plain), measured.text
    assert list(_by_process(events).values()) == [expected] * WORKERS
    paths = made.read_text().split()
    assert len(set(paths)) == len(paths) == 2 * WORKERS


def _by_process(events: Path) -> dict[str, list[str]]:
    said: dict[str, list[str]] = defaultdict(list)
    for line in events.read_text().splitlines():
        process, _, text = line.partition(" ")
        said[process].append(text)
    return dict(said)


UNMEASURED = source("lifecycle/nothing.py")


def test_nothing_measured_is_no_success(tmp_path: Path, wording: Wording) -> None:
    """A test that never calls its fixture passes, a skipped one is skipped, and the run exits with 5 and says why."""
    result = Example(tmp_path, {"test_nothing.py": UNMEASURED}).pytest(*ONE_CALL, "-v", code=NOTHING)
    assert result.outcomes == {"test_never_calls": "PASSED", "test_skipped": "SKIPPED"}
    assert "1 deselected" in result.counts
    assert re.findall(r"(?m)^note +nothing.*", result.out) == wording
    assert "PytestWarning: test_nothing.py::test_never_calls passed" in result.out, result.text


@pytest.mark.usefixtures("alone")
def test_collection_errors_stop_the_run(tmp_path: Path, pytester: pytest.Pytester) -> None:
    """A file that cannot be imported stops the run before measuring; on request the other files' tests are measured."""
    bad = "import no_such_module\n"
    pytester.makepyfile(test_bad=bad, test_select=SELECTION)
    stopped = pytester.runpytest_inprocess(*ONE_CALL, "-p", "no:cacheprovider")
    assert stopped.ret == INTERRUPTED
    assert "no_such_module" in str(stopped.stdout)
    example = Example(tmp_path, {"test_bad.py": bad, "test_select.py": SELECTION})
    goes_on = example.pytest(*ONE_CALL, "--continue-on-collection-errors", "-v", "-k", "first", code=FAILED)
    assert goes_on.outcomes == {"test_first": "PASSED"}, goes_on.text


@pytest.mark.parametrize("debugger", ["--pdb", "--trace"])
def test_under_a_debugger_each_test_runs_once(tmp_path: Path, debugger: str) -> None:
    """It would have no terminal in the processes that measure; the run says that nothing is measured."""
    example = Example(tmp_path, {"test_it.py": "def test_it(rlperf): rlperf(int)\n"})
    result = example.pytest("--rlperf", debugger, stdin="c\n" * 3)
    assert "nothing is measured under --pdb or --trace" in result.out
    assert not result.section("rlperf")


def test_without_the_option_components_run_once(tmp_path: Path, wording: Wording) -> None:
    """In an ordinary run each fixture runs its component once, unmeasured and checked, in this process."""
    files = {"conftest.py": source("lifecycle/audit.py"), "test_once.py": source("lifecycle/once.py")}
    example = Example(tmp_path, files)
    result = example.pytest("-v")
    failed = {name for name, outcome in result.outcomes.items() if outcome not in {"PASSED", "SKIPPED"}}
    assert failed == {"test_twice"}, result.text
    assert re.findall(r"(?m)^E .*", result.failure("test_twice")) == wording
    assert not result.section("rlperf")
    assert not [line for line in _lines(example.root / "started") if "rlperf" in line]
    assert not (example.root / "baselines").exists()


CLOSES = """
    import gymnasium
    import pytest

    class Closing(gymnasium.vector.VectorWrapper):
        def close(self, **kwargs):
            print("closed", self.env.num_envs)
            super().close(**kwargs)

    class Broken(Closing):
        def step(self, actions):
            raise ValueError("a pole fell")

    @pytest.mark.parametrize(("kind", "num_envs"), [(Closing, 2), (Broken, 3)])
    def test_it(rlperf_vecenv_step, kind, num_envs):
        rlperf_vecenv_step(lambda: kind(gymnasium.make_vec("CartPole-v1", num_envs=num_envs)))
"""


def test_the_engine_closes_what_the_fixture_made(tmp_path: Path) -> None:
    """Whether a test is measured or just run, passes or fails its check, a thunk's env is closed at the end."""
    pytest.importorskip("gymnasium")
    example = Example(tmp_path, {"test_it.py": CLOSES})
    for args in ((), ONE_CALL):
        run = example.pytest("-rA", *args, code=FAILED)
        assert run.counts == "1 failed, 1 passed"
        assert {"closed 2", "closed 3", "E       ValueError: a pole fell"} <= {*run.out.splitlines()}


CALLED_OR_NOT = source("lifecycle/called_or_not.py")


@pytest.mark.usefixtures("alone")
def test_a_test_that_never_calls_its_fixture_is_a_warning(pytester: pytest.Pytester) -> None:
    """Where a test itself takes a fixture and passes without the call, a warning at the test names both."""
    path = pytester.makepyfile(test_it=CALLED_OR_NOT)
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


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
