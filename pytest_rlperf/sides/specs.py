"""The kinds of base, commits and releases that ``--rlperf-against`` and ``rlperf bisect`` take."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep
from pytest_rlperf.sides.environment import installed_versions
from pytest_rlperf.sides.installs import normalized
from pytest_rlperf.sides.programs import last_lines, run_pip

_KINDS = "a git ref, pip:REQUIREMENT[,REQUIREMENT…], dir:PATH or python:PATH"
_RELEASES = re.compile(r"pip:\s*(?P<name>[A-Za-z0-9][\w.-]*?)\s*==\s*(?P<good>.+?)(?:\.\.(?P<bad>.+))?")


def parse_spec(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of base that a value names, and its parts; SideError with the possible forms if it names none.

    The kinds are ``git`` with a ref, ``pip`` with requirements, ``dir`` with a directory's path, and ``python`` with an
    interpreter's path, or its name on the PATH.
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in {"git", "pip", "dir", "python"}:
        kind, rest = "git", text
    named = rest.strip()
    if not named or named.startswith("-"):  # git or pip would take that for an option
        raise SideError(f"{text!r} names nothing to compare with: name {_KINDS}")
    if kind == "pip":
        return kind, tuple(_requirements(named))
    # Unlike this function, Path.expanduser raises if the user does not exist.
    return kind, (named if kind == "git" else os.path.expanduser(named),)  # noqa: PTH111


def has_todays_packages(text: str | None) -> bool:
    """Whether both sides have the packages of the running environment; None stands for stored figures."""
    return text is None or parse_spec(text)[0] in {"git", "dir"}


def _requirements(text: str) -> Iterator[str]:
    """Yield the requirements in a list; a comma before a version operator or within brackets does not end one."""
    for piece in re.split(r",(?!\s*[<>=!~]|[^\[]*\])", text):
        if not _is_requirement(piece):
            raise SideError(
                f"'pip:{text}': {piece.strip()!r} is not a requirement; a requirement begins with the name of a "
                "distribution, such as gymnasium==1.0.0; pip:gymnasium==1.0.0,numpy==2.1 has two. dir:PATH compares "
                "with the code in another checkout, python:PATH with an environment that has a file of yours installed"
            )
        yield piece.strip()


def _is_requirement(text: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement  # here, as few runs need them

    try:
        return not (Requirement(text).url or "").startswith("file:")  # its content may differ every time
    except InvalidRequirement:
        return False


class Candidate(msgspec.Struct, frozen=True):
    """A commit or a release: ``spec`` is its name for --rlperf-against; a commit has a subject, a day and an author."""

    spec: str
    title: str
    subject: str = ""
    written: str = ""

    @property
    def is_commit(self) -> bool:
        """Whether it is a commit."""
        return not self.spec.startswith("pip:")

    def range_to(self, last: Candidate) -> str:
        """Return the range from this candidate to another, as `rlperf bisect` takes it."""
        return f"{self.spec}..{last.spec.rpartition('=')[2]}"


def releases(spec: str, on_step: OnStep) -> list[Candidate]:
    """Return the releases from the first to the last that a value names."""
    from packaging.version import InvalidVersion, Version

    found = _RELEASES.fullmatch(spec.strip())
    if found is None:
        raise SideError(f"{spec!r} names no releases: give pip:NAME==GOOD or pip:NAME==GOOD..BAD")
    name = found["name"]
    bad = found["bad"] or installed_versions().get(normalized(name))
    if bad is None:
        raise SideError(f"{name} is not installed, so name the last release too: pip:{name}=={found['good']}..BAD")
    try:
        first, last = Version(found["good"]), Version(bad)
        if first >= last:
            raise SideError(f"{name} {first} is not an earlier release than {last}: give pip:{name}==GOOD..BAD")
        on_step(f"listing the releases of {name}")
        between = {version for version in map(Version, _listed(name)) if first < version < last}
    except InvalidVersion as error:
        raise SideError(f"{spec!r}: {error}") from None
    return [Candidate(f"pip:{name}=={version}", f"{name} {version}") for version in (first, *sorted(between), last)]


def _listed(name: str) -> list[str]:
    """Return a distribution's final releases that pip finds."""
    completed = run_pip(sys.executable, ["index", "versions", name], f"list the releases of {name}")
    found = re.search(r"^Available versions:(.*)$", completed.out, re.MULTILINE)
    if completed.code or found is None:
        raise SideError(f"pip cannot list the releases of {name}:\n{last_lines(completed)}")
    return found[1].split(",")
