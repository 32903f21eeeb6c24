"""The catalogue of this product's sentences: `tests/wording/`, a file for each module of tests.

A test asserts behaviour by statuses, codes and values, and leaves the sentence to the catalogue::

    assert read_error(path) == wording

After a sentence was improved, ``pytest --snapshot-update`` writes the catalogue anew, and its diff is what to review.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import DiffMode, SnapshotAssertion
from syrupy.extensions.amber import AmberSnapshotExtension
from syrupy.location import PyTestLocation
from syrupy.terminal import disable_color

from pytest_rlperf.baseline.machine import this_machine

_DIRECTORY = Path(__file__).parents[1] / "wording"

# What differs between any two runs, and what stands for it.
_CHANGING = (
    (re.compile(r"(?:/[^\s/'\"`:]+)+/pytest-of-[^/\s]+/pytest-\d+/(?:popen-gw\d+/)?[^/\s'\"`:,)]+"), "TMP"),
    (re.compile(re.escape(sys.executable)), "PYTHON"),
    (re.compile(re.escape(str(Path(__file__).parents[2]))), "ROOT"),
    (re.compile(re.escape(EXTENSION_SUFFIXES[0])), ".EXTENSION"),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "COMMIT"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "DIGEST"),  # a commit's beginning, or a directory of the cache
    (re.compile(r"(?<=-[0-9a-f]{20}/)[a-z0-9_]{8}\b"), "ATTEMPT"),
    # The figures of components that compute something wrong, whose last digits are the processor's.
    (re.compile(r"(?<=reference: )\S+ at \(\d+, \d+\), expected [^ ]+(?=\. )"), "FIGURES"),
    (re.compile(r"(?<=most of all )\S+ where the policy now gives [^ ;]+"), "FIGURES"),
    (re.compile(r"(?<=deviation are )\S+ and [^ ,]+"), "FIGURES"),
)
_FIGURE = re.compile(r"(?<![\w-])[+\-<≤]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def without_figures(text: object) -> str:
    """Return a text with ``#`` for each figure: what a measured run writes, whose figures no test knows."""
    return _FIGURE.sub("#", str(text))


class Catalogue(AmberSnapshotExtension):
    """Plain text instead of Python's representation, in one directory for all tests."""

    def serialize(self, data: Any, **_: Any) -> str:
        """Return a sentence, or several below each other, without what differs between any two runs."""
        lines = map(str, data) if isinstance(data, list | tuple) else [str(data)]
        text = "\n".join(lines).encode(errors="backslashreplace").decode()  # bytes of a command line may be no text
        here = this_machine()
        host = f"{here.cpu}, {here.cores} cores, {here.system} {here.arch}, {here.python}"
        text = text.replace(host, "MACHINE")
        for changing, name in _CHANGING:
            text = changing.sub(name, text)
        return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) or "(nothing)"

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the catalogue's directory."""
        return str(_DIRECTORY)


class Wording:
    """What the catalogue has for one test: compare a text with it by ``==``, each comparison the next entry."""

    def __init__(self, snapshot: SnapshotAssertion) -> None:
        self._snapshot = snapshot

    def __eq__(self, text: object) -> bool:
        """Whether the catalogue has this text of a string, an error, or a list of them."""
        return self._snapshot == text

    def __hash__(self) -> int:
        """Refuse: it stands for another text at each comparison."""
        raise TypeError("the catalogue's wording is compared by ==, and is no key")

    @property
    def catalogue_difference(self) -> list[str]:
        """Return the lines that differ in the last comparison."""
        with disable_color():
            lines = self._snapshot.get_assert_diff(diff_mode=DiffMode.DETAILED)
        return ["the catalogue differs; `pytest --snapshot-update` accepts the new words", *lines]

    def raises(self, error: type[BaseException] | tuple[type[BaseException], ...]) -> _Raises:
        """Expect an error, like ``pytest.raises``, in the words of the catalogue."""
        return _Raises(error, self)


class _Raises:
    """The block that has to raise an error."""

    def __init__(self, error: type[BaseException] | tuple[type[BaseException], ...], wording: Wording) -> None:
        self._raises = pytest.raises(error)
        self._wording = wording

    def __enter__(self) -> pytest.ExceptionInfo[BaseException]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(self, *raised: Any) -> bool:
        expected = self._raises.__exit__(*raised)
        if expected:
            assert str(self._caught.value) == self._wording
        return expected
