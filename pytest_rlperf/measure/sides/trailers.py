"""Slowdowns that a change says it means, in the messages of its commits: ``Rlperf-Accept: test_gae* <= +9% reason``."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.measure.sides.command import run
from pytest_rlperf.measure.sides.git import short
from pytest_rlperf.model import Allowance

TRAILER = "Rlperf-Accept"
_FORM = re.compile(r"(?P<pattern>\S.*?)\s*<=\s*\+?(?P<percent>[0-9]*\.?[0-9]+)\s*%\s*(?P<reason>\S.*)")
_MENTION = re.compile(rf"^{TRAILER}\s*:.*\S", re.MULTILINE | re.IGNORECASE)
_LIMIT_S = 60.0


def read_allowances(root: Path, base: str) -> tuple[list[Allowance], list[str]]:
    """Return what commits after ``base`` allow, today's first, and notes on trailers that cannot be read.

    ``base`` is a full SHA. Where git does not tell, nothing is allowed.
    """
    form = f"--format=%H%x00%(trailers:key={TRAILER},valueonly,unfold)%x00%B%x01"
    try:
        done = run(["git", "-C", root, "-c", "log.showSignature=false", "log", form, f"{base}..HEAD"], limit_s=_LIMIT_S)
    except SideError:
        return [], []
    allowances: list[Allowance] = []
    notes: list[str] = []
    for entry in done.out.split("\x01") if done.code == 0 else []:
        sha, values, message = (*entry.strip().split("\0"), "", "")[:3]
        found = [value for value in map(str.strip, values.splitlines()) if value]
        if len(_MENTION.findall(message)) > len(found):
            notes.append(
                f"{TRAILER} of {short(sha)} accepts nothing: it is not in the last paragraph of the message, "
                "where git has its trailers"
            )
        for value in found:
            allowance = parse_allowance(value, short(sha))
            if allowance is not None:
                allowances.append(allowance)
            else:
                notes.append(
                    f"{TRAILER} of {short(sha)} is not understood and accepts nothing: {value!r}; expected "
                    f"'{TRAILER}: test_name* <= +10% the reason'"
                )
    return allowances, notes


def parse_allowance(value: str, commit: str) -> Allowance | None:
    """Read a trailer's value, None where it is not of the form ``<glob> <= +N% <reason>``."""
    match = _FORM.fullmatch(value)
    if match is None:
        return None
    return Allowance(match["pattern"], float(match["percent"]) / 100, match["reason"], commit)
