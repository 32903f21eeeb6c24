"""Baselines as JSON: one file per name and machine class, checked on reading, written whole or not at all."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from pytest_rlperf.baseline.machine import slug
from pytest_rlperf.model import Baseline, FirstFigures, Machine, Provenance, StoredResult, impossible_figures
from pytest_rlperf.units import round_significant
from pytest_rlperf.writing import check_directory, write_whole

# 1: the first.
SCHEMA = 1


class BaselineError(Exception):
    """A baseline cannot be read or written; the text names the file, the place in it and the way out."""


class Store:
    """The baselines of one name in one directory, seen from one machine."""

    def __init__(self, directory: Path, name: str, machine: Machine) -> None:
        self.directory = directory / name
        self.name = name
        self._root = directory
        self._machine = machine
        self.path = self.directory / f"{slug(machine)}.json"

    def read(self) -> Baseline | None:
        """Return this machine class's baseline, None where there is none; BaselineError where it cannot be used."""
        self._check_directories()
        return self._read(self.path) if self.path.exists() else None

    def others(self) -> list[Baseline]:
        """Return the baselines this name has of other machine classes."""
        paths = sorted(path for path in self.directory.glob("*.json") if path != self.path)
        return [self._read(path) for path in paths]

    def names(self) -> list[str]:
        """Return the names there are baselines of."""
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if any(path.glob("*.json")))

    def check_writable(self) -> None:
        """Raise BaselineError where :meth:`write` would fail, before any time is spent on measuring."""
        self._check_directories()
        try:
            check_directory(self.directory)
        except OSError as error:
            raise BaselineError(
                f"cannot write baselines to {self.directory}: {error.strerror}; choose another place with "
                "--rlperf-baseline-dir=DIR"
            ) from None

    def write(self, session: str, provenance: Provenance, results: dict[str, StoredResult]) -> None:
        """Store ``results`` of one session, keeping what the file has of other tests."""
        old = self.read()
        merged = ({} if old is None else dict(old.results)) | {
            key: replace(stored, result=_rounded(stored.result), first=_first_figures(old, key, stored))
            for key, stored in results.items()
        }
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
        try:
            text = msgspec.json.format(msgspec.json.encode(_plain(baseline), order="sorted"), indent=1) + b"\n"
            write_whole(self.path, text)
        except UnicodeEncodeError as error:
            raise BaselineError(
                f"cannot write {self.path}: {error.object!r} is not valid text; nothing was replaced"
            ) from None
        except OSError as error:
            raise BaselineError(f"cannot write {self.path}: {error.strerror}; nothing was replaced") from None

    def _check_directories(self) -> None:
        for directory in (self._root, self.directory):
            if directory.exists() and not directory.is_dir():
                raise BaselineError(
                    f"{directory} is a file, where a directory of baselines should be: move it away, or choose another "
                    "with --rlperf-baseline-dir=DIR"
                )

    def _read(self, path: Path) -> Baseline:
        way_out = "restore it from version control, or move it away and store a new one with --rlperf-save-baseline"
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise BaselineError(
                f"cannot read {path}: {error.strerror}; make it readable, or choose another place with "
                "--rlperf-baseline-dir=DIR"
            ) from None
        if not raw.strip():
            raise BaselineError(f"{path} is empty; {way_out}")
        try:
            version = msgspec.json.decode(raw, type=_Versioned).schema
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BaselineError(f"{path} is not a baseline: {error}; {way_out}") from None
        if version < 1:
            raise BaselineError(f"{path} is not a baseline: $.schema is {version}, the first was 1; {way_out}")
        if version > SCHEMA:
            raise BaselineError(
                f"{path} has schema version {version}, this pytest-rlperf reads up to {SCHEMA}: upgrade pytest-rlperf, "
                "or choose another baseline with --rlperf-baseline=NAME"
            )
        try:
            baseline = msgspec.json.decode(raw, type=Baseline)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BaselineError(f"{path} is not a baseline: {error}; {way_out}") from None
        fault = senseless(baseline)
        if fault is not None:
            raise BaselineError(f"{path} is not a baseline: {fault}; {way_out}")
        if path == self.path and baseline.machine != self._machine:
            raise BaselineError(f"{path} is of another machine class; {way_out}")
        return baseline


def _first_figures(old: Baseline | None, key: str, new: StoredResult) -> FirstFigures | None:
    """Return the oldest figures of a test that ``new`` comes after; None where it is the first of its workload."""
    stored = None if old is None else old.results.get(key)
    if old is None or stored is None or not stored.result.is_same_work(new.result):
        return None
    if stored.first is not None or stored.session == new.session:
        return stored.first
    session, clock = old.sessions[stored.session], stored.result.clock
    relative = tuple(getattr(worker, clock).relative for worker in stored.result.workers)
    return FirstFigures(session.created, session.commit, clock, relative)


def senseless(baseline: Baseline) -> str | None:
    """Return the first thing that no measurement can have given, by its place."""
    for key, stored in baseline.results.items():
        place = f"$.results[{key!r}]"
        if stored.session not in baseline.sessions:
            return f"{place}.session is {stored.session!r}, which is not in $.sessions"
        if not stored.result.workers:
            return f"{place}.result.workers is empty"
        for fault in impossible_figures(stored.result, stored=True):
            return f"{place}.result.{fault}"
    return None


class _Versioned(msgspec.Struct):
    """Reads the version alone, whatever the rest looks like."""

    schema: int


def _rounded(record: Any) -> Any:
    """Return ``record`` with every figure in it at the precision that is stored."""
    if isinstance(record, float):
        return round_significant(record)
    if isinstance(record, tuple):
        return tuple(_rounded(part) for part in record)
    if is_dataclass(record) and not isinstance(record, type):
        return replace(record, **{field.name: _rounded(getattr(record, field.name)) for field in fields(record)})
    return record


def _plain(record: Any) -> Any:
    """Return ``record`` as JSON has it, without what reading it would fill in anyway: most tests have no use for it."""
    if is_dataclass(record) and not isinstance(record, type):
        values = {field.name: (getattr(record, field.name), field.default) for field in fields(record)}
        return {
            name: _plain(value) for name, (value, default) in values.items() if default is MISSING or value != default
        }
    if isinstance(record, dict):
        return {name: _plain(value) for name, value in record.items()}
    if isinstance(record, tuple):
        return [_plain(value) for value in record]
    return record
