"""The log of a whole run: what a pipe has of it, line by line, while the run goes on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders import ONE_CALL
from example import FAILED, OK, Example

from pytest_rlperf.run.lanes import count_lanes

QUICK = ("-o", "rlperf_pairs=2..3", "--rlperf-max-time=2", "--rlperf-tolerance=50%", "--rlperf-findings=growth=off")
LIBRARY = """
    def touched():
        return sum(range(2000))

    def untouched():
        return sum(range(2001))
    """
TESTS = """
    import os
    import time
    from itertools import count

    import pytest
    from library import touched, untouched

    def wait():
        '''Wait, in all processes but the two that observe, until the reader of the log has seen enough of it.'''
        for number in count():
            try:
                os.close(os.open(f"{os.environ['SEEN']}.{number}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            break
        while number > 1 and not os.path.exists(os.environ["SEEN"]):
            time.sleep(0.01)

    def test_waits(rlperf):
        wait()
        rlperf(touched)

    def test_of_another_name(rlperf):
        rlperf(touched)

    def test_untouched(rlperf):
        rlperf(untouched)
    """
ENDS = """
    import pytest
    from library import touched

    def test_skipped(rlperf):
        pytest.skip("not today")

    def test_failed(rlperf):
        raise AssertionError

    @pytest.mark.xfail
    def test_xfailed(rlperf):
        raise AssertionError

    def test_fails_after(rlperf):
        assert not rlperf(touched).measured

    @pytest.fixture
    def broken():
        yield
        raise AssertionError

    def test_torn_down(rlperf, broken):
        rlperf(touched)

    def test_twice(rlperf):
        rlperf(touched)
    """
UNDER_WAY = re.compile(r"rlperf: (?:\d+ min )?\d+ s: ")
VERDICT = re.compile(r"^  ([A-Z]+) +(?:.+? {2,})?(\S+?)(?: +\d+\.\d s)? +\[ *(\d+)%\]$")


def changed(directory: Path, files: dict[str, str]) -> Example:
    """Return a project whose tests call a function that has changed since the last commit."""
    example = Example(directory, {"pytest.ini": "[pytest]\npythonpath = .\n", "library.py": LIBRARY, **files})
    example.commit()
    example.write({"library.py": LIBRARY.replace("range(2000)", "range(1, 2000)")})
    return example


def lines_of(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines of a run as they come, each whole."""
    assert process.stdout is not None
    for line in process.stdout:
        assert line.endswith("\n")
        yield line[:-1]


def read(process: subprocess.Popen[str], code: int, seen: Callable[[list[str]], None]) -> list[str]:
    """Return a run's lines up to its table, with ``seen`` called after each; kill it if that raises."""
    lines: list[str] = []
    with process:
        try:
            for line in lines_of(process):
                lines.append(line)
                seen(lines)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == code, lines
    end = next(number for number, line in enumerate(lines) if re.fullmatch("=+ (rlperf|FAILURES|ERRORS) =+", line))
    begin = next(number for number, line in enumerate(lines) if line.startswith("collected "))
    return lines[begin + 1 : end]


def verdicts(lines: list[str]) -> list[tuple[str, str]]:
    """Return the words and the names in lines on tests."""
    return [(found[1], found[2]) for line in lines if (found := VERDICT.match(line))]


@pytest.mark.slow  # it waits for a line that comes after 15 s
@pytest.mark.skipif(count_lanes().most < 2, reason="one test at a time")
@pytest.mark.timeout(170)
def test_a_pipe_has_each_line_when_it_is_there(tmp_path: Path) -> None:
    """The plan, verdicts in the order in which tests end, and a line on a test that takes long.

    The first test waits until the reader has seen these, so the run ends only if none of them is kept back.
    """
    example, seen = changed(tmp_path, {"test_it.py": TESTS}), tmp_path / "seen"

    def see(lines: list[str]) -> None:
        if ("SAME", "test_of_another_name") in verdicts(lines) and UNDER_WAY.match(lines[-1]):
            seen.touch()

    arguments = ("--rlperf-against=HEAD", *QUICK, "-o", "rlperf_lanes=2")
    lines = read(example.start(*arguments, SEEN=str(seen)), OK, see)
    # A slow machine has more lines on what is under way, and earlier ones.
    plan, untouched, another, waits = (line for line in lines if line and not UNDER_WAY.match(line))
    assert plan == "rlperf: 3 tests, 1 not touched by the change, 2 to measure; 2 to 3 pairs each"
    assert verdicts([untouched, another, waits]) == [
        ("SAME", "test_untouched"),
        ("SAME", "test_of_another_name"),
        ("SAME", "test_waits"),
    ]
    assert [line[-6:] for line in (untouched, another, waits)] == ["[ 33%]", "[ 66%]", "[100%]"]
    (*_, long) = lines[lines.index(another) : lines.index(waits)]
    assert re.fullmatch(r"rlperf: [^:]+: test_waits [^;]+; 2 of 3 tests done", long)
    assert not any(re.search(r"[\r\x1b]", line) for line in lines)
    assert not any("test_it.py" in line for line in lines)  # a name says enough


def test_each_test_has_one_line_however_it_ends(tmp_path: Path) -> None:
    """A test that ends otherwise than by its verdict has pytest's word; one of two tests of a name has its id."""
    files = {
        "test_it.py": ENDS,
        "test_more.py": ENDS.partition("def test_skipped")[0] + ENDS[ENDS.index("def test_tw") :],
    }
    example = changed(tmp_path, files)
    lines = read(example.start(*ONE_CALL), FAILED, lambda lines: None)
    assert lines.count("rlperf: 7 tests") == 1
    assert not any("\x1b" in line for line in lines)
    assert sorted(verdicts(lines)) == [
        ("ERROR", "test_torn_down"),
        ("FAILED", "test_failed"),
        ("FAILED", "test_fails_after"),
        ("NEW", "test_it.py::test_twice"),
        ("NEW", "test_more.py::test_twice"),
        ("NEW", "test_torn_down"),
        ("SKIPPED", "test_skipped"),
        ("XFAIL", "test_xfailed"),
    ]


@pytest.mark.parametrize(
    ("arguments", "plugins", "plans", "told"),
    [
        pytest.param((), (), 1, 1, marks=pytest.mark.slow),  # test_each_test_has_one_line_however_it_ends
        pytest.param(("-v",), (), 1, 0, marks=pytest.mark.slow),
        (("-q",), (), 1, 0),
        pytest.param(("-qq",), (), 0, 0, marks=pytest.mark.slow),
        pytest.param(("-s", "--color=yes"), (), 1, 1, marks=pytest.mark.slow),
        pytest.param((), ("no:terminal",), 0, 0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_log_has_as_much_as_is_asked_for(
    tmp_path: Path, arguments: tuple[str, ...], plugins: tuple[str, ...], plans: int, told: int
) -> None:
    """-q leaves the plan and pytest's dots, -qq the dots; with -v pytest's own lines name the tests."""
    example = Example(
        tmp_path, {"test_it.py": "def test_a(rlperf):\n    rlperf(lambda: None)\n    print('of the test')\n"}
    )
    loaded = [word for plugin in plugins for word in ("-p", plugin)]
    run = example.pytest(*ONE_CALL, *loaded, *arguments, code=OK)
    text = re.sub(r"\x1b\[[0-9;]*m", "", run.out)
    assert ("\x1b" in run.out) == ("--color=yes" in arguments)
    lines = text.splitlines()
    assert lines.count("rlperf: 1 test") == plans
    assert len(verdicts(lines)) == told
    assert ("test_it.py::test_a PASSED" in text) == ("-v" in arguments)
    assert bool(re.search(r"^\. +\[100%\]$", text, re.MULTILINE)) == ("-q" in arguments or "-qq" in arguments)
    assert run.statuses == {"test_a": "NEW"}
