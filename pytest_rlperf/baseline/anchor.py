"""The anchor of a baseline: a commit that saving does not move, kept in a file beside the figures of every machine."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import msgspec

from pytest_rlperf.baseline.schema import FormatError, is_sha
from pytest_rlperf.baseline.store import BaselineError, content
from pytest_rlperf.model.stored import ANCHOR_FILE, Anchor, Baseline, Provenance
from pytest_rlperf.writing import check_directory, write_whole

FIRST = "the first commit that was stored"
_WAY_OUT = "restore it from version control, or set it anew: rlperf anchor REF --reason TEXT"


def read_anchor(directory: Path) -> Anchor | None:
    """Return the anchor of a baseline, None where it has none; BaselineError where it cannot be read."""
    path = directory / ANCHOR_FILE
    if not path.exists():
        return None
    try:
        anchor = msgspec.json.decode(content(path), type=Anchor)
    except OSError as error:
        raise BaselineError(f"cannot read {path}: {error.strerror}; make it readable") from None
    except (FormatError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(f"{path} is not an anchor: {error}; {_WAY_OUT}") from None
    if not is_sha(anchor.commit):
        raise BaselineError(f"{path}: $.commit is {anchor.commit!r}, expected a full hexadecimal SHA; {_WAY_OUT}")
    return anchor


def write_anchor(directory: Path, commit: str, reason: str, by: str) -> Anchor:
    """Make a commit the anchor of the baseline in a directory; BaselineError where that cannot be written."""
    anchor = Anchor(commit, datetime.now(timezone.utc).isoformat(timespec="seconds"), reason, by)
    _write(directory, anchor)
    return anchor


def keep_first(directory: Path, old: Baseline | None, stored: Provenance, by: str) -> None:
    """Where a baseline has no anchor yet, make it the oldest commit that its figures are of; ``stored`` are the newest.

    Figures without a commit, or of uncommitted changes, make none.
    """
    sessions = [*(() if old is None else old.sessions.values()), stored]
    known = sorted((each for each in sessions if each.settleable), key=lambda each: each.created)
    if known and not (directory / ANCHOR_FILE).exists():
        assert known[0].commit is not None
        _write(directory, Anchor(known[0].commit, known[0].created, FIRST, by))


def _write(directory: Path, anchor: Anchor) -> None:
    path = directory / ANCHOR_FILE
    try:
        check_directory(directory)
        write_whole(path, msgspec.json.format(msgspec.json.encode(anchor), indent=1) + b"\n")
    except OSError as error:
        raise BaselineError(f"cannot write {path}: {error.strerror}") from None
