"""The sessions and live comparisons in the versions of a baseline, in git's history and in the working tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytest_rlperf.baseline.schema import FormatError, decode
from pytest_rlperf.baseline.store import LARGEST_BYTES, content
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.stored import (
    Baseline,
    Link,
    Machine,
    Provenance,
    SessionFigures,
    StoredResult,
    StoredSession,
)
from pytest_rlperf.sides.git import Repository, short


@dataclass
class Sessions:
    """Sessions by test, each once, and live comparisons by test; ``skipped`` are versions that cannot be read."""

    tests: dict[str, dict[tuple[Machine, str], StoredSession]] = field(default_factory=dict)
    links: dict[str, list[Link]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def add_baseline(self, baseline: Baseline) -> None:
        """Add all that one version of a file has; the version that a session stored itself knows the most about it."""
        for test, stored in baseline.results.items():
            for figures in stored.history:
                session = _session(baseline, stored, figures)
                self.tests.setdefault(test, {}).setdefault((baseline.machine, figures.session), session)
            for link in stored.links:
                if link not in self.links.setdefault(test, []):
                    self.links[test].append(link)


def session_name(origin: Provenance) -> str:
    """Return the name under which a baseline keeps a session."""
    return origin.created if origin.commit is None else f"{origin.created} {short(origin.commit)}"


def read_sessions(repository: Repository | None, directory: Path) -> Sessions:
    """Return all sessions that a baseline's directory has held; SideError if git cannot list its versions."""
    found = Sessions()
    for place, raw in _contents(repository, directory, found):
        try:
            found.add_baseline(decode(raw))
        except FormatError as error:
            found.skipped.append(f"{place}: {error}")
    return found


def _contents(repository: Repository | None, directory: Path, found: Sessions) -> Iterator[tuple[str, bytes]]:
    """Yield every version of the files once, oldest first and the working tree's last, each with its place."""
    blobs: set[str] = set()
    for version in () if repository is None else repository.versions(directory):
        if not version.name.endswith(".json") or version.blob in blobs:
            continue
        assert repository is not None
        blobs.add(version.blob)
        place = f"{version.name} of {short(version.commit)}"
        try:
            raw = repository.blob(version.blob)
        except SideError as error:
            found.skipped.append(f"{place}: {error}")
            continue
        if len(raw) > LARGEST_BYTES:
            found.skipped.append(f"{place}: it is larger than {LARGEST_BYTES >> 20} MiB")
            continue
        yield place, raw
    for path in sorted(directory.glob("*.json")):
        try:
            yield str(path), content(path)
        except OSError as error:
            found.skipped.append(f"{path}: {error.strerror}")
        except FormatError as error:
            found.skipped.append(f"{path}: {error}")


def _session(baseline: Baseline, stored: StoredResult, figures: SessionFigures) -> StoredSession:
    """Return a session of a version, with as much of its origin as that version has."""
    created, _, commit = figures.session.partition(" ")
    origin = baseline.sessions.get(figures.session)
    result = stored.result
    return StoredSession(
        machine=baseline.machine,
        name=figures.session,
        created=created if origin is None else origin.created,
        commit=commit if origin is None else origin.clean_commit,
        clock=figures.clock,
        work=(result.component, result.unit, result.items),
        relative=figures.relative,
        relative_memory=figures.relative_memory,
        call_s=result.call_s if figures.session == stored.session else None,
    )
