"""Written tests on trial: pytest runs each version of each test, until one passes or none is left."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pytest_rlperf.cli.first_tests.drafts import Draft, composed, tests_in, without
from pytest_rlperf.cli.first_tests.messages import DESELECTED, ROOT, TOPS, Told, Tried, told
from pytest_rlperf.cli.first_tests.search import Search

_PLUGIN = "pytest_rlperf.cli.first_tests.trial_plugin"
_LONG_S = 5.0  # if a test takes this long, its last version is tried, which does least
_PYTEST = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
_NO_CODE = "it runs none of your code"
_NO_FAULT = (_NO_CODE, DESELECTED)  # for tests in which their author has nothing to complete


class Trial:
    """The drafts of a project's tests, and texts of tests with one version, with what each try showed."""

    def __init__(self, root: Path, output: Path, own: Search, texts: Iterable[str]) -> None:
        self._root, self._output, self.own = root, output, own
        self._texts = list(texts)
        self._versions = {each.test: 0 for each in own.drafts if not each.unknown}
        self._drafts = {each.test: each for each in own.drafts}
        self._passed: dict[str, bool] = {name: False for text in self._texts for name in tests_in(text)}
        self._passed |= dict.fromkeys(self._versions, False)
        self._slow: dict[str, int] = {}  # versions that pass, and take long
        self._errors = {
            each.test: f"{each.name} needs {', '.join(each.unknown)}" for each in own.drafts if each.unknown
        }

    @property
    def errors(self) -> dict[str, str]:
        """Return the first errors of tests that do not pass in any version, by their names."""
        return {test: error for test, error in self._errors.items() if test not in self._passed}

    def draft(self, test: str) -> Draft | None:
        """Return the draft of a test; None for a test from a text."""
        return self._drafts.get(test)

    def left(self) -> list[str]:
        """Return the tests that have a version to try."""
        return [test for test, passed in self._passed.items() if not passed]

    def passed(self) -> list[str]:
        """Return the tests that pass."""
        return [test for test, passed in self._passed.items() if passed]

    def skipped(self) -> list[str]:
        """Return the tests that their author has to complete: they do not pass, in any version."""
        return [test for test, error in self.errors.items() if test in self._drafts and error not in _NO_FAULT]

    def text(self, head: str) -> str:
        """Return the file to try or, if nothing is left to try, the file to keep, with the tests to complete."""
        drafts = [(self._drafts[test], version) for test, version in self._versions.items() if test in self._passed]
        to_complete = [] if self.left() else self.skipped()
        skipped = [self._drafts[test].source(0, skip=self.errors[test]) for test in to_complete]
        return composed(head, drafts, self._texts, skipped)

    def run(self) -> str:
        """Run the tests that are left, and go on to failing ones' next versions; return how a test ended pytest."""
        left = self.left()
        names = [f"{self._output}::{each}" for each in left]
        argv = ["-p", "rlperf", "-p", _PLUGIN, "-p", "no:cacheprovider", *names]
        roots = os.pathsep.join(map(str, [self._root.resolve(), *self.own.copies]))
        env = {**os.environ, ROOT: roots, TOPS: ",".join(sorted(self.own.tops)), "PYTHONDONTWRITEBYTECODE": "1"}
        found = told(Tried, _PYTEST, argv, env=env)
        errors: dict[str, str] = {}
        took_s: dict[str, float] = {}
        seen: dict[str, bool] = {}  # whether a test runs the project's code
        running = ""
        for each in found.facts:
            name = (each.begins or each.ends).rpartition("::")[2].partition("[")[0]
            running = name if each.begins else ""
            if each.ends:
                seen[name] = seen.get(name, False) or each.runs_code
                took_s[name] = max(took_s.get(name, 0.0), each.took_s)
                if each.error:
                    errors.setdefault(name, each.error)
            elif each.error:
                errors |= dict.fromkeys(self._importing(each.line) or left, each.error)
        if running:
            errors[running], took_s[running] = found.ended, _LONG_S
        if not (errors or seen):
            raise LookupError(_why(found))
        for test in left:
            if test in errors or test in seen:
                error = errors.get(test) or ("" if seen.get(test) else _NO_CODE)
                self._judge(test, error, took_s.get(test, 0.0))
        return f"{running} {found.ended}" if running else ""

    def _judge(self, test: str, error: str, took_s: float) -> None:
        """Keep a version that passes; else go on to the next, and drop a test that has none."""
        draft, version = self._drafts.get(test), self._versions.get(test, 0)
        if error:
            self._errors.setdefault(test, error)
        is_last = draft is None or version + 1 == len(draft.bodies)
        if not error and (is_last or took_s < _LONG_S):
            self._passed[test] = True
        elif draft is not None and not is_last:
            if not error:
                self._slow[test] = version
            self._versions[test] = version + 1 if took_s < _LONG_S else len(draft.bodies) - 1
        elif test in self._slow:  # nothing faster passes
            self._versions[test], self._passed[test] = self._slow[test], True
        else:
            del self._passed[test]
            self._texts = [without(text, [test]) for text in self._texts]
            self._texts = [text for text in self._texts if tests_in(text) or "@pytest.fixture(autouse" in text]

    def _importing(self, line: int) -> list[str]:
        """Return the tests that need the import at a line of the file."""
        lines = self._output.read_text(encoding="utf-8").splitlines()
        found = re.match(r"(?:from|import) (\S+)", lines[line - 1]) if 0 < line <= len(lines) else None
        if found is None:
            return []
        return [
            test
            for test in self.left()
            if test in self._drafts
            and any(module == found[1] or f"{module}.{name}" == found[1] for module, name in self._drafts[test].uses)
        ]


def _why(found: Told[Tried]) -> str:
    """Return why pytest runs no test, in its own words."""
    lines = [line.strip() for line in found.output.splitlines() if line.strip()]
    where = [line for line in lines if "while loading conftest" in line]
    named = [line.removeprefix("E ").strip() for line in lines if re.search(r"error: |Error: |^ERROR", line)]
    return f"pytest cannot run the tests: it {found.ended}: {' '.join([*where[:1], *(named or lines)[-1:]]):.300}"
