"""The documentation: its links lead somewhere, its Python is Python, and its tutorial works."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from pytest_rlperf.cli import main
from pytest_rlperf.errors import DOCS as DOCS_ADDRESS
from pytest_rlperf.model.judged import Status

ROOT = Path(__file__).parents[1]
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
    for kept in tests.split("\n\n\n")[1:-1]:
        assert kept in written
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
