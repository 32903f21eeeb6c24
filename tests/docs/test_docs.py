"""The documentation: its links lead somewhere, its Python is Python, and its tutorial works."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from builders import write

from pytest_rlperf.cli import COMMANDS, main, make_parser
from pytest_rlperf.errors import DOCS as DOCS_ADDRESS
from pytest_rlperf.model.judged import Status
from pytest_rlperf.options import OPTIONS
from pytest_rlperf.options import _marker_settings as marker_settings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)]

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def text_of(page: Path) -> str:
    return re.sub(r"(?ms)^( *)(```+).*?^\1\2`*$", "", page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> Iterator[str]:
    for found in re.finditer(rf"(?ms)^( *)```{language}\n(.*?)^\1```$", page.read_text(encoding="utf-8")):
        yield dedent(found[2])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"(?m)^#+ (.*)$", text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """A link to a file or a heading of this repository has its target, images included."""
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{target} is missing"
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


def test_messages_lead_somewhere() -> None:
    """The address of the docs is the project's, and every place in them that a message names is there."""
    assert f'Documentation = "{DOCS_ADDRESS}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytest_rlperf").rglob("*.py"))
    places = re.findall(r"""\bsee\(["']([^"']+)["']\)""", code)
    assert len(places) > 10
    for place in [*places, *(f"reading-a-report.md#{status.value.lower()}" for status in Status)]:
        name, _, anchor = place.partition("#")
        assert not anchor or anchor in anchors(DOCS / name), place
        assert (DOCS / name).exists(), place


@each_page
def test_python_is_python(page: Path) -> None:
    """Every block of Python compiles."""
    for block in blocks(page, "python"):
        ast.parse(block)


def test_the_page_of_a_package_index() -> None:
    """It has the README without what is for a clone, and every link and picture by a whole address of this tree."""
    run = [sys.executable, "-m", "hatch_fancy_pypi_readme", "pyproject.toml"]
    page = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for absent in ("This repository", "no release", "a clone", "<!--"):
        assert absent not in page
    assert "\npip install 'pytest-rlperf[rl]'\n" in page
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(targets) > 15
    own = "https://(?:github|raw.githubusercontent).com/pytest-rlperf/pytest-rlperf/(?:blob/)?main/"
    for target in targets:
        assert target.startswith("https://")
        assert not (found := re.match(f"{own}(.*)", target)) or (ROOT / found[1].partition("#")[0]).exists(), target


# --------------------------------------------------------------------------- what pages teach

_TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
TAUGHT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names what is gone
each_taught = pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.relative_to(ROOT).as_posix())


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the commands of ours in a page's consoles and in its sentences, by their words."""
    text = page.read_text(encoding="utf-8")
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")]
    lines += re.findall(r"`((?:rlperf|pytest) [^`\n]+)`", text)
    for line in lines:
        for part in re.split(r"&&|;|\|", line):
            with suppress(ValueError):  # a quotation that another part ends
                words = shlex.split(part, comments=True)
                if words[:1] in (["rlperf"], ["pytest"]):
                    yield words


def has_placeholder(value: str) -> bool:
    """Whether a value stands for another one, as in `--rlperf-bisect=GOOD[..BAD]`."""
    return bool(re.search(r"[A-Z]{2,}|…|\.\.\.|^[NK]|\[", value))


def test_the_commands_of_pages_are_seen() -> None:
    """The tests below would pass without any."""
    found = [" ".join(words) for page in TAUGHT for words in commands_of(page)]
    assert {"rlperf init", "rlperf show --html", "pytest --rlperf-against=HEAD"} <= {*found}
    assert len(found) > 60


@each_taught
def test_every_option_is_one(page: Path) -> None:
    """Each flag and each setting of an ini file that a page names is there, by this name."""
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"--rlperf[a-z-]*\b", text)) <= {option.flag for option in OPTIONS}
    settings = {f"rlperf_{option.name.removesuffix('_s')}" for option in OPTIONS if option.ini}
    assert set(re.findall(r"^(rlperf_[a-z_]+) *=", text, re.MULTILINE)) <= settings


@each_taught
def test_every_command_can_be_typed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`rlperf` has each command of a page with its arguments, and pytest reads each value of an option of ours."""
    flags = {option.flag: option for option in OPTIONS}
    for words in commands_of(page):
        if words[0] == "rlperf":
            assert has_placeholder(words[1]) or words[1] in ("-h", *(command.name for command in COMMANDS)), words
            if len(words) > 2:
                arguments, others = make_parser().parse_known_args(words[1:])  # which ends the test where it cannot
                assert not others or arguments.command.passes_on, words
            continue
        for word in words[1:]:
            flag, is_given, value = word.partition("=")
            if flag in flags and is_given and not has_placeholder(value):
                flags[flag].parse(value)


@each_taught
def test_every_marker_is_one(page: Path) -> None:
    """Each keyword of a marker is there and takes the value, and those that a page on markers names are keywords."""
    text = page.read_text(encoding="utf-8")
    for keywords in re.findall(r"pytest\.mark\.rlperf\(([^\n]*?)\)(?=`|$|\n)", text):
        marker = eval(f"pytest.mark.rlperf({keywords})", {"pytest": pytest})  # noqa: S307 - our own page
        marker_settings(marker.mark, page.name)
    for section in re.findall(r"(?ms)^## Markers$(.*?)(?=^## )", text_of(page)):
        named = re.findall(r"`([a-z_]+)`", section)
        assert named
        assert set(named) <= {option.name.removesuffix("_s") for option in OPTIONS if option.marker}


def test_every_option_in_the_programs_own_texts_is_one() -> None:
    """Messages, workflows and written tests name flags and commands that are there."""
    files = [path for path in (ROOT / "pytest_rlperf").rglob("*") if path.suffix in (".py", ".yml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in [*files, *(ROOT / "examples").rglob("*.py")])
    flags = {option.flag for option in OPTIONS}
    named = set(re.findall(r"--rlperf-[a-z-]*[a-z]\b(?![-{])", text))
    assert len(named) > 15
    assert named <= flags
    commands = {command.name for command in COMMANDS}
    assert set(re.findall(r"\brlperf (?!fixture|test|option)([a-z]+) (?:[A-Z]|--)", text)) <= commands


@pytest.mark.slow
@pytest.mark.torch
def test_what_the_tutorial_begins_can_be_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every `rlperf init` that the tutorial names, or that one of these names, writes tests that pass."""
    for module in ("torch", "gymnasium"):
        if find_spec(module) is None:  # as below
            pytest.skip(f"needs {module}")
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        {
            "sac.py": (ROOT / "examples" / "single_file" / "sac.py").read_text(encoding="utf-8"),
            "requirements.txt": "gymnasium\nnumpy\ntorch\n",
        },
    )
    waiting, begun = ["init sac:SAC", *re.findall(r"rlperf (init(?: [\w:.]+)?)", _TUTORIAL)], set[str]()
    while waiting:
        command = waiting.pop()
        if command not in begun:
            begun.add(command)
            for path in tmp_path.glob("test_perf*.py"):
                path.unlink()
            assert main(command.split()) == 0
            waiting += re.findall(r"rlperf (init [\w:.]+)", capsys.readouterr().out)
    assert "init" in begun


@pytest.fixture(scope="module")
def generate() -> Any:
    spec = spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_current(generate: Any) -> None:
    """The pages have between their marks what the code knows today, and all of it."""
    for page in generate.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == generate.filled(text), f"{page.name} is not current; run: python docs/generate.py"
    marks = [
        mark for page in generate.PAGES for mark in re.findall(r"<!-- (\w+) -->", page.read_text(encoding="utf-8"))
    ]
    assert sorted(marks) == sorted(generate.PARTS)


@pytest.mark.slow
@pytest.mark.torch
def test_tutorial(pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
    """`rlperf init` says and writes what the page shows, and the page's tests pass, also after its slowdown."""
    for module in ("torch", "gymnasium"):
        if find_spec(module) is None:  # not imported: what is, pytester forgets, and no process imports PyTorch twice
            pytest.skip(f"needs {module}")
    page = DOCS / "tutorial.md"
    tests, phases = blocks(page, "python")
    (slowdown,) = blocks(page, "diff")
    code = (ROOT / "examples" / "single_file" / "sac.py").read_text(encoding="utf-8")
    pytester.makepyfile(sac=code)
    (pytester.path / "requirements.txt").write_text("gymnasium\nnumpy\ntorch\n", encoding="utf-8")
    assert main(["init"]) == 0
    (shown,) = (block for block in blocks(page, "console") if block.startswith("$ rlperf init\n"))
    assert capsys.readouterr().out.startswith(shown.partition("\n")[2])
    written = (pytester.path / "test_perf.py").read_text(encoding="utf-8")
    for kept in tests.split("\n\n\n"):
        assert kept.strip() in written
    assert all(command in written for command in ("pytest  ", "pytest --rlperf-against=HEAD  "))
    fast, slow = (re.search(rf"(?m)^\{sign} (.*)$", slowdown) for sign in "-+")
    assert fast is not None
    assert slow is not None
    assert code.count(fast[1]) == 1
    call = 'batch_size=256, phases={"loss": "critic_loss", "targets": "update_targets"})'
    assert call in phases
    pytester.makepyfile(test_perf=tests, test_phases=tests.replace("batch_size=256)", call))
    pytester.makepyfile(sac=code.replace(fast[1], slow[1]))
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-k", "not (test_phases and sample)").assert_outcomes(
        passed=5, deselected=3
    )
