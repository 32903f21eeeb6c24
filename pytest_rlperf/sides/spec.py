"""The value of ``--rlperf-against``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_rlperf.errors import SideError

_KINDS = "a git ref, pip:REQUIREMENT[,REQUIREMENT…], dir:PATH or python:PATH"

# A name, extras, and then nothing, a version, a marker or a URL.
_REQUIREMENT = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?\s*(?:\[[^\]]*\]\s*)?(?:$|[<>=!~;@(].*)", re.ASCII)


@dataclass(frozen=True)
class GitSpec:
    """The code of a commit."""

    ref: str


@dataclass(frozen=True)
class PipSpec:
    """Today's code with other versions of its dependencies."""

    requirements: tuple[str, ...]


@dataclass(frozen=True)
class DirSpec:
    """The code in another directory."""

    path: Path


@dataclass(frozen=True)
class PythonSpec:
    """Today's code under another interpreter: its path, or its name on the PATH."""

    path: str


Spec: TypeAlias = GitSpec | PipSpec | DirSpec | PythonSpec


def parse_spec(text: str) -> Spec:
    """Read the value; SideError with the possible forms where it has none of them."""
    kind, colon, rest = text.partition(":")
    if colon and kind == "pip":
        return PipSpec(tuple(_requirements(rest)))
    if colon and kind == "dir":
        return DirSpec(user_path(_path(text, rest)))
    if colon and kind == "python":
        return PythonSpec(_path(text, rest))
    return GitSpec(_ref(rest if colon and kind == "git" else text))


def _ref(text: str) -> str:
    ref = text.strip()
    if not ref:
        raise SideError(f"there is nothing to compare with: name {_KINDS}")
    if ref.startswith("-"):
        raise SideError(f"{ref!r} looks like an option, not like a git ref; name {_KINDS}")
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
    for part in _split(text):
        requirement = part.strip()
        if not requirement:
            raise SideError(f"'pip:{text}' has an empty requirement; pip:gymnasium==1.0.0,numpy==2.1 has two")
        if requirement.startswith("-"):
            raise SideError(f"'pip:{text}': {requirement!r} is an option; pip: takes requirements only")
        if not _REQUIREMENT.fullmatch(requirement):
            raise SideError(
                f"'pip:{text}': {requirement!r} is no requirement; one begins with the name of a distribution, such "
                "as gymnasium==1.0.0 or 'mylib @ file:///path'. dir:PATH compares with the code in a directory"
            )
        yield requirement


def _split(text: str) -> list[str]:
    """Split at the commas between requirements: outside brackets and quotes, and not before an operator of versions."""
    parts, depth, quote = [""], 0, ""
    for index, character in enumerate(text):
        if character == "," and not (depth or quote) and not re.match(r"\s*[<>=!~]", text[index + 1 :]):
            parts.append("")
            continue
        parts[-1] += character
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth = max(0, depth + (character in "[(") - (character in "])"))
    return parts
