"""The value of ``--rlperf-against``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from pytest_rlperf.errors import SideError

_KINDS = "a git ref, pip:REQUIREMENT[,REQUIREMENT…], dir:PATH or python:PATH"


def parse_spec(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the kind of base that a value names, and its parts; SideError with the possible forms where it names none.

    The kinds are ``git`` with a ref, ``pip`` with requirements, ``dir`` with the path of a directory, and ``python``
    with an interpreter's path, or its name on the PATH.
    """
    kind, colon, rest = text.partition(":")
    if colon and kind == "pip":
        return kind, tuple(_requirements(rest))
    if colon and kind in ("dir", "python"):
        return kind, (_path(text, rest),)
    return "git", (_ref(rest if colon and kind == "git" else text),)


def _ref(text: str) -> str:
    ref = text.strip()
    if not ref or ref.startswith("-"):  # which git would take for an option
        raise SideError(f"{ref!r} names nothing to compare with: name {_KINDS}")
    return ref


def user_path(text: str) -> Path:
    """Return a path with the home of ``~`` or ``~user``; where there is no such user, as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises then


def _path(text: str, rest: str) -> str:
    path = rest.strip()
    if not path or "\0" in path:
        raise SideError(f"{text!r} names no path: name {_KINDS}")
    return path


def _requirements(text: str) -> Iterator[str]:
    """Yield the requirements in a list; a comma before an operator of versions or within brackets ends none."""
    for piece in re.split(r",(?!\s*[<>=!~]|[^\[]*\])", text):
        if not _is_requirement(piece):
            raise SideError(
                f"'pip:{text}': {piece.strip()!r} is no requirement; one begins with the name of a distribution, such "
                "as gymnasium==1.0.0; pip:gymnasium==1.0.0,numpy==2.1 has two. dir:PATH compares with the code in "
                "another checkout, python:PATH with an environment that has a file of yours installed"
            )
        yield piece.strip()


def _is_requirement(text: str) -> bool:
    try:
        return not (Requirement(text).url or "").startswith("file:")  # what it holds may be another thing every time
    except InvalidRequirement:
        return False
