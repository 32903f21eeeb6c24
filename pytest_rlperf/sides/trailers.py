"""Slowdowns that a change says it means, in the messages of its commits.

``Rlperf-Accept: test_gae* <= +9% reason`` accepts so much more time, ``Rlperf-Accept: test_gae* counts reason`` more of
what is counted and no more time.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model import Allowance
from pytest_rlperf.model.judged import TRAILER
from pytest_rlperf.sides.command import run
from pytest_rlperf.sides.git import short

_TIME = re.compile(r"(?P<pattern>\S.*?)\s*<=\s*\+?(?P<percent>[0-9]*\.?[0-9]+)\s*%\s*(?P<reason>\S.*)")
# A pattern without blanks, so that no slip of the other form reads as this one.
_COUNTS = re.compile(r"(?P<pattern>\S+)\s+counts\s+(?!<=)(?P<reason>\S.*)")
_FORMS = f"'{TRAILER}: test_name* <= +10% the reason', or for counts alone '{TRAILER}: test_name* counts the reason'"
_MENTION = re.compile(rf"^{TRAILER}\s*:.*\S", re.MULTILINE | re.IGNORECASE)
_LOG_LIMIT_S = 60.0


def read_allowances(root: Path, base: str) -> tuple[list[Allowance], list[str]]:
    """Return what commits after ``base`` allow, today's first, and notes on trailers that cannot be read.

    ``base`` is a full SHA. Where git does not tell, nothing is allowed.
    """
    form = f"--format=%H%x00%(trailers:key={TRAILER},valueonly,unfold)%x00%B"
    settings = ("-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8")
    try:
        done = run(["git", "-C", root, *settings, "log", "-z", form, f"{base}..HEAD"], limit_s=_LOG_LIMIT_S)
    except SideError:
        return [], []
    allowances: list[Allowance] = []
    notes: list[str] = []
    # What is not UTF-8 whatever git is asked for: reasons are stored, and bytes that are no text cannot be.
    text = done.out.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if done.code == 0 else ""
    fields = text.split("\0")  # which no message can hold; other marks could forge one
    for sha, values, message in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        found = [value for value in map(str.strip, values.split("\n")) if value]
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
                    f"{TRAILER} of {short(sha)} is not understood and accepts nothing: {value!r}; expected {_FORMS}"
                )
    return allowances, notes


def parse_allowance(value: str, commit: str) -> Allowance | None:
    """Read a trailer's value, None where it is of neither form: ``<glob> <= +N% <reason>``, ``<glob> counts <reason>``.

    What accepts counts alone accepts no more time: its ``most`` is 0.
    """
    counts, time = _COUNTS.fullmatch(value), _TIME.fullmatch(value)
    if counts is not None:  # whose reason may speak of a percentage, too
        return Allowance(counts["pattern"], 0.0, counts["reason"], commit)
    if time is None or not math.isfinite(most := float(time["percent"]) / 100):
        return None
    return Allowance(time["pattern"], most, time["reason"], commit)
