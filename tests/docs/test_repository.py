"""What this repository's own files name is there: tests, scripts, pages, and the catalogue's sentences."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.location import PyTestLocation

ROOT = Path(__file__).parents[2]
CATALOGUE = Path(__file__).parents[1] / "wording"
NAMES = re.compile(r"^# name: (.*)$", re.MULTILINE)
# A path below one of this repository's directories; in pages `tests/` is a user's, but for names of files that end so.
TOPS = r"(?<![\w./~-])(?:tests|benchmarks|examples|docs|pytest_rlperf|\.ci|\.github)/"
PLACES = re.compile(rf"{TOPS}(?:[\w./*-]|\{{[\w,]+\}})*[\w*]")
BRACES = re.compile(r"\{([\w,]+)\}")  # of a shell: one word each
OF_USERS = {"tests/perf", "tests/test_perf.py", "tests/test_it.py"}
OF_OTHER_COMMITS = re.compile(r"git checkout \w+ && python \S+")
MADE = ("docs/_build/",)


def own_files() -> list[Path]:
    """Return the files that run or describe the tests: workflows, scripts, settings and pages."""
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    patterns = (r"\.github/.*\.yml", r"\.ci/.*", r"action\.yml", r"[^/]*\.(?:md|toml|yaml)", r"docs/[^/]*\.md")
    return [ROOT / name for name in git.stdout.splitlines() if any(re.fullmatch(pattern, name) for pattern in patterns)]


def named_places(text: str) -> Iterator[str]:
    for place in PLACES.findall(OF_OTHER_COMMITS.sub("", text)):
        words = BRACES.search(place)
        for each in [place] if words is None else [BRACES.sub(word, place) for word in words[1].split(",")]:
            if each not in OF_USERS and not each.startswith(MADE):
                yield each


def is_there(place: str) -> bool:
    """Whether a path, or a pattern of a shell's or of a regular expression, is that of files of this repository."""
    return any(ROOT.glob(place.replace(".*", "*"))) if "*" in place else (ROOT / place).exists()


def test_every_path_that_is_named_is_there() -> None:
    """Workflows, scripts, settings and pages name no file that was renamed or removed."""
    files = own_files()
    if not files:
        pytest.skip("git lists the files")
    found = [f"{file.relative_to(ROOT)}: {place}" for file in files for place in named_places(file.read_text("utf-8"))]
    assert len(found) > 100
    assert [each for each in found if not is_there(each.partition(": ")[2])] == []


def test_a_path_that_is_not_there_is_found() -> None:
    """In a command, a pattern and a sentence; addresses and a user's paths are left alone."""
    text = """
        run: pytest tests/test_gone.py tests/libraries/test_library_*.py --ignore=tests/libraries
        See `benchmarks/gone.py`, https://example.org/docs/gone.md and pytest tests/perf.
    """
    assert [place for place in named_places(text) if not is_there(place)] == [
        "tests/test_gone.py",
        "benchmarks/gone.py",
    ]


def test_the_lists_of_tests_in_scripts_are_of_files() -> None:
    """A script that leaves out a file that is gone would claim what it did not run."""
    tree = ast.parse((ROOT / "benchmarks" / "strength.py").read_text("utf-8"))
    lists = {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    names = [name for key in ("JUDGED", "STORED", "STARTED", "WITHIN") for name in ast.literal_eval(lists[key])]
    assert len(names) > 20
    assert [name for name in names if not [*(ROOT / "tests").rglob(f"test_{name}.py")]] == []


def test_every_sentence_of_the_catalogue_is_used(all_items: list[pytest.Item]) -> None:
    """Where a whole file was collected, each of its entries is of a test there; else of a function of the file."""
    collected: dict[str, set[str]] = {}
    for item in all_items:
        collected.setdefault(item.path.stem, set()).add(PyTestLocation(item).snapshot_name)
    unused = []
    for catalogue in sorted(CATALOGUE.glob("*.ambr")):
        found = Path(__file__).parents[1].rglob(f"{catalogue.stem}.py")
        (file,) = (each for each in found if "samples" not in each.parts)  # which are projects of their own
        functions = set(re.findall(r"(?m)^def (test_\w+)", file.read_text("utf-8")))
        for entry in NAMES.findall(catalogue.read_text("utf-8")):
            name = re.sub(r"\.\d+$", "", entry)
            known = collected.get(catalogue.stem)
            if (known is not None and name not in known) or re.split(r"[\[.]", name)[0] not in functions:
                unused.append(f"{catalogue.stem}: {entry}")
    assert unused == []
