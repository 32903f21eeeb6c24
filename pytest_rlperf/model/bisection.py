"""The result of a search for the first slower commit or release."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_rlperf.model.judged import Outcome


@dataclass(frozen=True)
class Candidate:
    """A commit, by its full SHA, or a release, by its version, and its name in reports.

    A release has no subject, author and day.
    """

    key: str
    title: str
    subject: str = ""
    author: str = ""
    day: str = ""


@dataclass(frozen=True)
class Skipped:
    """A candidate that could not be run, and why."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True)
class Suspect:
    """A commit that changes files of dependencies, which a comparison of commits leaves as they are installed."""

    candidate: Candidate
    files: tuple[str, ...]


@dataclass(frozen=True)
class FirstSlower:
    """The end of one test's search.

    ``candidates`` have the first slower one with the chance ``chance``: one that is named, or the range that is left.
    ``is_named`` where it is one, or one beside others that cannot be run. ``step`` is the comparison of a named one
    with the last before it, ``whole`` that of the last candidate with the good one, as an interval of ratios. It is
    ``is_partial`` where the step is surely less than the whole change. ``command`` compares the two again.
    """

    test: str
    candidates: tuple[Candidate, ...]
    chance: float
    is_named: bool
    probes: int
    pairs: int
    whole: tuple[float, float, float]
    step: Outcome | None = None
    is_partial: bool = False
    command: str = ""


@dataclass(frozen=True)
class BisectionReport:
    """A search of all tests among ``count`` candidates: its results, and what it left out.

    ``stopped`` is why it ended before its time: by an interrupt or by the budget; then ``command`` goes on with it.
    """

    count: int
    seconds: float
    found: tuple[FirstSlower, ...]
    skipped: tuple[Skipped, ...]
    suspects: tuple[Suspect, ...]
    stopped: str = ""
    command: str = ""
