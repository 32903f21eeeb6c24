"""Baselines as files: one per name and machine class, checked on reading, merged and replaced under a lock."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_rlperf.baseline.machine import slug
from pytest_rlperf.baseline.schema import (
    SCHEMA,
    FormatError,
    NewerFormatError,
    decode,
    encode,
    senseless,
)
from pytest_rlperf.model.stored import (
    Baseline,
    Machine,
    PairSpread,
    Provenance,
    StoredResult,
)
from pytest_rlperf.writing import check_directory, write_whole

LARGEST_BYTES = 64 * 1024 * 1024  # 5,000 tests of ten sessions have 24 MB
SESSIONS_MOST = 10  # of a test's earlier figures
LINKS_MOST = 20  # of a test's live comparisons with the commit before; git has the older ones
FREEDOM_MOST = 30.0  # degrees of freedom for earlier pairs: older ones count less and less

_ELSEWHERE = "choose another place with -o rlperf_baseline=DIR/NAME"
_WAY_OUT = "restore it from version control, or move it away and store a new one with --rlperf-save-baseline"


class BaselineError(Exception):
    """A baseline cannot be read or written; the text names the file, the place in it and the way out."""


class OtherBaselines(NamedTuple):
    """The baselines of other machine classes, and why files beside them cannot be read."""

    baselines: list[Baseline]
    faults: list[str]


class Store:
    """The baselines of one name in one directory, seen from one machine."""

    def __init__(self, directory: Path, name: str, machine: Machine) -> None:
        self.directory = directory / name
        self.name = name
        self._root = directory
        self._machine = machine
        self.path = self.directory / f"{slug(machine)}.json"

    def read(self) -> Baseline | None:
        """Return this machine class's baseline; None if there is none, BaselineError if it cannot be used."""
        self._check_directories()
        if not os.path.lexists(self.path):
            return None
        baseline = _read(self.path)
        if baseline.machine != self._machine:
            raise BaselineError(f"{self.path} belongs to another machine class; {_WAY_OUT}")
        return baseline

    def others(self) -> OtherBaselines:
        """Return this name's baselines for other machine classes; files that cannot be read are not an error here."""
        found = OtherBaselines([], [])
        for path in sorted(path for path in self.directory.glob("*.json") if path != self.path):
            try:
                found.baselines.append(_read(path))
            except BaselineError as error:
                found.faults.append(str(error))
        return found

    def names(self) -> list[str]:
        """Return the names that have baselines."""
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if any(path.glob("*.json")))

    def check_writable(self) -> None:
        """Raise BaselineError if :meth:`write` would fail, before any time is spent on measuring."""
        self._check_directories()
        _refuse_links(self.path)
        try:
            check_directory(self.directory)
        except OSError as error:
            raise BaselineError(f"cannot write baselines to {self.directory}: {error.strerror}; {_ELSEWHERE}") from None

    def write(self, session: str, provenance: Provenance, results: dict[str, StoredResult]) -> None:
        """Store ``results`` of one session, and keep the file's other tests and earlier sessions.

        Each result's ``history`` has this session's figures, ``pairs`` its pairs' spread and ``links`` the comparison
        with the commit before, if they are kept.
        """
        self._check_directories()
        _refuse_links(self.path)
        try:
            with _locked(self.directory):
                write_whole(self.path, self._merged(session, provenance, results))
        except UnicodeEncodeError as error:
            raise BaselineError(
                f"cannot write {self.path}: {error.object!r} is not valid text; nothing was replaced"
            ) from None
        except OSError as error:
            raise BaselineError(f"cannot write {self.path}: {error.strerror}; nothing was replaced") from None

    def _merged(self, session: str, provenance: Provenance, results: dict[str, StoredResult]) -> bytes:
        """Return the file's new content, read from the old one."""
        old = self.read()
        merged = {} if old is None else old.results
        for key, stored in results.items():
            merged[key] = _after(old, key, stored)  # replaces the old entry, which frees its memory
        sessions = ({} if old is None else dict(old.sessions)) | {session: provenance}
        used = {stored.session for stored in merged.values()}
        baseline = Baseline(
            schema=SCHEMA,
            machine=self._machine,
            sessions={name: kept for name, kept in sessions.items() if name in used},
            results=merged,
        )
        fault = senseless(baseline)
        if fault is not None:
            raise BaselineError(f"not written to {self.path}, as it could not be read back: {fault}")
        return encode(baseline)

    def _check_directories(self) -> None:
        for directory in (self._root, self.directory):
            if directory.exists() and not directory.is_dir():
                raise BaselineError(
                    f"{directory} is a file, but must be a directory of baselines: move it away, or choose another "
                    "with -o rlperf_baseline=DIR/NAME"
                )


# ----------------------------------------------------------------------- reading and locking


def _read(path: Path) -> Baseline:
    """Return the baseline in a file; BaselineError if there is none."""
    try:
        raw = content(path)
        if not raw.strip():
            raise BaselineError(f"{path} is empty; {_WAY_OUT}")
        return decode(raw)
    except OSError as error:
        raise BaselineError(f"cannot read {path}: {error.strerror}; make it readable, or {_ELSEWHERE}") from None
    except NewerFormatError as error:
        raise BaselineError(f"{path} {error}, or choose another baseline with -o rlperf_baseline=DIR/NAME") from None
    except FormatError as error:
        raise BaselineError(f"{path} is not a baseline: {error}; {_WAY_OUT}") from None


def content(path: Path) -> bytes:
    """Return a file's content, without waiting for a writer; FormatError if it cannot be a baseline."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            raw = file.read(LARGEST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(raw) > LARGEST_BYTES:
        raise FormatError(f"it is larger than {LARGEST_BYTES >> 20} MiB")
    return raw


def _refuse_links(path: Path) -> None:
    """Raise BaselineError if a file of a baseline, its directory, or the directory of all baselines is a link.

    A commit can bring a link, through which writing would reach any of the user's files.
    """
    for place in (path.parent.parent, path.parent, path):
        if place.is_symlink():
            raise BaselineError(
                f"{place} is a link, and a baseline is never written through a link: put the file or directory "
                "itself in its place"
            )


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other processes from replacing files in a directory, which is made if there is none.

    File systems without locks are used without one.
    """
    import fcntl  # Windows lacks it, where baselines can only be read

    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _after(old: Baseline | None, key: str, new: StoredResult) -> StoredResult:
    """Return a test's new entry with what its old one keeps: earlier sessions, pairs and links."""
    stored = None if old is None else old.results.get(key)
    if stored is None or not stored.result.is_same_work(new.result) or stored.session == new.session:
        return new
    if stored.result.start != new.result.start:  # sessions and pairs of each start have another spread
        return replace(new, links=(*stored.links, *new.links)[-LINKS_MOST:])
    return replace(
        new,
        history=(*stored.history, *new.history)[-SESSIONS_MOST:],
        pairs=_pooled(stored.pairs, new.pairs),
        links=(*stored.links, *new.links)[-LINKS_MOST:],
    )


def _pooled(before: PairSpread | None, now: PairSpread | None) -> PairSpread | None:
    """Return the spread of earlier and new pairs; earlier ones do not raise the freedom above ``FREEDOM_MOST``."""
    if before is None or now is None:
        return now or before
    kept = min(1.0, max(0.0, FREEDOM_MOST - now.freedom) / before.freedom)
    return PairSpread(kept * before.squares + now.squares, kept * before.freedom + now.freedom)
