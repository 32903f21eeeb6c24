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
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]

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


# A fence, a line or a role that only Sphinx knows: GitHub shows an empty box, the raw text, or nothing at all.
DIRECTIVES = re.compile(r"(?m)^ *(?:[`~:]{3,} *\{.*|:{3,}.*|\([\w-]+\)=|\+\+\+.*|% .*)$|\{[\w:-]+\}`")


@each_page
def test_github_shows_the_whole_page(page: Path) -> None:
    """No page has a directive, a role or a target of Sphinx, and no page is without text."""
    assert DIRECTIVES.findall(page.read_text(encoding="utf-8")) == []
    assert len(text_of(page).split()) > 30


@pytest.mark.parametrize(
    "text",
    ["```{literalinclude} a.py\n```", ":::{note}\nWatch out.\n:::", "~~~ {tab}\n~~~", "(place)=\n# A", "see {doc}`a`"],
)
def test_a_directive_is_found(text: str) -> None:
    """Also between other lines, while blocks of code, braces and brackets are left alone."""
    plain = "A word.\n```python\nprint(f'{a}' % b)\n```\n`${{ a }}` (b)\n"
    assert DIRECTIVES.findall(plain) == []
    assert len(DIRECTIVES.findall(f"{plain}{text}\n{plain}")) in (1, 2)


def test_every_page_is_listed() -> None:
    """The list of pages, which is the site's navigation, has each of them once."""
    index = DOCS / "README.md"
    listed = re.findall(r"(?m)^- \[[^\]]+\]\((\S+)\)", index.read_text(encoding="utf-8"))
    assert sorted((DOCS / name).resolve() for name in listed) == [
        page for page in sorted(PAGES) if page not in (index, ROOT / "README.md")
    ]


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
    assert "\npip install pytest-rlperf\n" in page
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(targets) > 15
    own = "https://(?:github|raw.githubusercontent).com/pytest-rlperf/pytest-rlperf/(?:blob/)?main/"
    for target in targets:
        assert target.startswith("https://")
        assert not (found := re.match(f"{own}(.*)", target)) or (ROOT / found[1].partition("#")[0]).exists(), target


# --------------------------------------------------------------------------- plain English

# What a native technical writer would put otherwise, each with what to write.
PLAIN = {
    "is not a, there are no": r"(?<![Tt]here )\b(?:is|are|was|were) (?:no|none)\b",
    "the base, the head": r"\b(?:both|by|from|in|of|on|than|to|with) (?:base|head)\b(?! branch)",
    "if, when, in which": r"\bwhere\b|^Where\b",
    "only, by itself": r"\balone\b",
    "per call": r"\d\S*(?: [µmkMGK]?(?:s|i?B|objects))? a (?:call|job|step|test)\b",
    "the level, such as 99 %": r"\bfor certain\b|\bsurely\b",
    "a word of today": r"\b(?:anew|commonest|gravest|hitherto|lest|likewise|mend(?:ed)?|parted|thrice|unasked)\b",
    "a named subject first": r"(?:^|(?<=[.:] ))(?:Of (?:an?|one|the)|What|Whose) [^?]*?[.]",
    "one relative clause": r"\bwhose\b[^.:;|]*\bwhose\b",
    "an active verb": r"(?:^|(?<=[.] ))Have \w|\b(?:are|is) told\b|\b(?:are|is) to (?!the\b)\w+",
    "without, not, beyond": r"\bthrough no\b|\bout of sight\b",
    "except": r"\b(?:all|any|everything|none|nothing) but\b|\b(?:but|save) for\b",
}
# Of the engine, and not of its users; docs/measuring.md defines them.
PRIVATE = (
    r"\b(?:anchor|carrier|driver|entr(?:y|ie)|kernel|lane|lever|preload server|slice|stem|tape|template|thunk)s?\b"
)
TRUE_USES = (
    "(?:GPU|a GPU's|faster|larger) kernels|kernel factories|NVIDIA(?:'s)? drivers?|slices with bursts",
    "entry points|A \\*thunk\\* in this table",
    "commit where (?:the|your) branch|what runs where|Where the time goes|where their objects lie",
    "where libraries were placed|frozen heap, where",
    "numbers alone|instruction counts alone|test alone|By chance alone|that alone makes|`x` alone",
)


def sentences(text: str) -> list[str]:
    """Return a page's paragraphs, points and cells, without code, and without reports that stand between marks."""
    text = re.sub(r"(?ms)^([ >]*)(```+).*?^\1\2`*$", "", text)
    text = re.sub(r"(?s)<!-- (summary|messages-of-findings) -->.*?<!-- end of \1 -->", "", text)
    text = re.sub(r"<!--.*?-->", "", text)
    text = re.sub(r"(?m)^\[[\w-]+\]: .*$", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "`x`", text))
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-#>]|\d+\. ))|\|", text)
    return [" ".join(part.split()).lstrip("-># ") for part in parts]


def faults(text: str, rules: dict[str, str]) -> list[str]:
    """Return each place where a page says something that a rule names, but for the uses that are true ones."""
    found = []
    for sentence in sentences(text):
        for use in TRUE_USES:
            sentence = re.sub(use, "", sentence)
        found += [
            f"{better}: …{sentence[max(0, place.start() - 40) : place.end() + 40]}…"
            for better, rule in rules.items()
            for place in re.finditer(rule, sentence)
        ]
    return found


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "CHANGELOG.md"],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_pages_are_in_plain_english(page: Path) -> None:
    """No page has a turn of phrase that a reader stumbles over, and a user's page no word of the engine."""
    rules = PLAIN if page.name in ("measuring.md", "CONTRIBUTING.md") else {**PLAIN, "a word of users": PRIVATE}
    assert faults(page.read_text(encoding="utf-8"), rules) == []


@pytest.mark.parametrize(
    "text",
    [
        "A turn is no hot loop.",
        "A process of head keeps more.",
        "The run ends where a test fails.",
        "Stored figures count within one class alone.",
        "It takes 49.5 to 86.6 s a job.",
        "It is slower for certain.",
        "A test's verdict is the gravest of all.",
        "Of a SAC update the plugin finds the networks.",
        "a test whose module is one whose name is gone",
        "Have every scope record.",
        "It could not be measured, through no finding.",
        "all but SAC updates",
        "Each lane measures one pair.",
    ],
)
def test_a_turn_of_phrase_is_found(text: str) -> None:
    """In a sentence, a point and a row of a table, also over the end of a line, and not in code."""
    rules = {**PLAIN, "a word of users": PRIVATE}
    for shown in (text, f"- {text}", f"| a | {text} |", text.replace(" ", "\n")):
        assert faults(f"A word.\n\n{shown}\n", rules), shown
    assert faults(f"```text\n{text}\n```\n`{text}`\n<!-- summary -->\n{text}\n<!-- end of summary -->", rules) == []


# --------------------------------------------------------------------------- what pages teach

_TUTORIAL = (DOCS / "tutorial.md").read_text(encoding="utf-8")
TAUGHT = [page for page in PAGES if page.name != "CHANGELOG.md"]  # which names what is gone
each_taught = pytest.mark.parametrize("page", TAUGHT, ids=lambda page: page.relative_to(ROOT).as_posix())


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the commands of ours in a page's consoles and in its sentences, by their words."""
    text = page.read_text(encoding="utf-8")
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    lines += re.findall(r"`((?:rlperf|pytest) [^`\n]+)`", text)
    for line in lines:
        for part in re.split(r"&&|;|\|", line):
            with suppress(ValueError):  # a quotation that another part ends
                words = shlex.split(part, comments=True)
                if words[:1] in (["rlperf"], ["pytest"]):
                    yield words


def has_placeholder(value: str) -> bool:
    """Whether a value stands for another one, as in `--rlperf-shard=K/N`."""
    return bool(re.search(r"[A-Z]{2,}|…|\.\.\.|^[NK]|\[", value))


def test_the_commands_of_pages_are_seen() -> None:
    """The tests below would pass without any."""
    found = [" ".join(words) for page in TAUGHT for words in commands_of(page)]
    assert {"rlperf init", "rlperf bisect v1.2.0..v1.3.0", "pytest --rlperf-against=HEAD"} <= {*found}
    assert len(found) > 60


@each_page
def test_a_block_of_commands_can_be_copied(page: Path) -> None:
    """It has neither a prompt, which a button that copies would copy, nor output."""
    for block in blocks(page, "console"):
        for line in block.splitlines():
            assert re.match(r"(?:[a-z.]|# )", line), line


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
    text = re.sub(r'(?m)^    "--rlperf-.*": ', "", text)  # an old name, with the new one
    flags = {option.flag for option in OPTIONS}
    named = set(re.findall(r"--rlperf-[a-z-]*[a-z]\b(?![-{])", text))
    assert len(named) > 10
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


def test_pages_show_every_example_and_workflow(generate: Any) -> None:
    """Each file to copy stands in a page, where GitHub shows it, too."""
    text = "".join(page.read_text(encoding="utf-8") for page in generate.PAGES)
    files = [
        *(ROOT / "examples").glob("*.py"),
        *(ROOT / "examples" / "cleanrl").glob("*.py"),
        *(DOCS / "workflows").glob("*.yml"),
    ]
    assert sorted(generate.FILES.findall(text)) == sorted(path.relative_to(ROOT).as_posix() for path in files)


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
    (shown,) = re.findall(r"(?ms)^```console\nrlperf init\n```\n\n```text\n(.*?)^```$", _TUTORIAL)
    assert capsys.readouterr().out.startswith(shown)
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
