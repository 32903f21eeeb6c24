"""The commits or releases between a good one and a bad one, and the sides that compare two of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.bisection import Candidate, Suspect
from pytest_rlperf.model.sides import OnStep, Project, Side, Sides
from pytest_rlperf.sides.build import last_lines, run_pip
from pytest_rlperf.sides.environment import installed_versions
from pytest_rlperf.sides.git import Repository, find_repository, short
from pytest_rlperf.sides.packages import normalized
from pytest_rlperf.sides.prepare import commit_sides, prepare_sides, uncommitted

_RELEASES = re.compile(r"pip:\s*(?P<name>[A-Za-z0-9][\w.-]*?)\s*==\s*(?P<good>.+?)(?:\.\.(?P<bad>.+))?")
_FORMS = "GOOD[..BAD] of commits, pip:NAME==GOOD[..BAD] of releases, or continue"

# Files by which projects declare or pin what they run on.
_DEPENDENCY_FILES = (
    *("*requirements*.txt", "*requirements*.in", "*constraints*.txt", "*.lock", "*environment*.y*ml"),
    *("*pyproject.toml", "*setup.py", "*setup.cfg", "*Pipfile"),
)


@dataclass
class History:
    """Candidates from 1 on, each of which may be the first slower one; 0 is the good one."""

    good: Candidate
    candidates: tuple[Candidate, ...]
    suspects: tuple[Suspect, ...]
    project: Project
    on_step: OnStep
    release_of: str = ""  # the distribution whose releases these are, empty for commits
    _sides: dict[str, Sides] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Candidate:
        return self.candidates[number - 1] if number else self.good

    def spec(self, good: int, bad: int, digits: int = 40) -> str:
        """Return a range of candidates as ``--rlperf-bisect`` takes it, with so many digits of SHAs."""
        before, after = self[good].key, self[bad].key
        if self.release_of:
            return f"pip:{self.release_of}=={before}..{after}"
        return f"{before[:digits]}..{after[:digits]}"

    def sides(self, base: int, head: int) -> Sides:
        """Return the comparison of two candidates; SideError where one of them cannot be had."""
        (before, packages), (after, others) = self._side(base), self._side(head)
        commit = None if self.release_of else self[base].key
        return Sides(before, after, tuple(dict.fromkeys((*packages, *others))), None, (), commit)

    def additions(self) -> list[Sides]:
        """Return the sides so far for which packages were installed beside those of this environment."""
        return [sides for sides in self._sides.values() if sides.additions is not None]

    def _side(self, number: int) -> tuple[Side, tuple[str, ...]]:
        key = self[number].key
        if self.release_of and key == installed_versions().get(normalized(self.release_of)):
            other = next(each.key for each in (self.good, *self.candidates) if each.key != key)
            today = self._prepared(other)
            return today.head, today.packages
        prepared = self._prepared(key)
        return prepared.base, prepared.packages

    def _prepared(self, key: str) -> Sides:
        if key not in self._sides:
            if self.release_of:
                self._sides[key] = prepare_sides(f"pip:{self.release_of}=={key}", self.project, self.on_step)
            else:
                self._sides[key] = commit_sides(key, self.project, self.on_step)
        return self._sides[key]


def find_history(spec: str, project: Project, on_step: OnStep) -> History:
    """Return the candidates of ``--rlperf-bisect``; SideError where there are none, with the reason."""
    if spec.startswith("pip:"):
        return _releases(spec, project, on_step)
    repository = find_repository(project.rootdir)
    good, _, bad = spec.partition("..")
    if not good or good.startswith("-") or bad.startswith(("-", ".")):
        raise SideError(f"{spec!r} names no commits: give {_FORMS}")
    changed = uncommitted(project, on_step)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise SideError(
            f"the working tree has uncommitted changes ({', '.join(changed[:3])}{more}), which are in no commit of the "
            "search: commit them, or git stash"
        )
    return _commits(repository, good, bad or "HEAD", project, on_step)


def _commits(repository: Repository, good: str, bad: str, project: Project, on_step: OnStep) -> History:
    first, last = repository.exactly(good), repository.exactly(bad)
    logged = repository.first_parents(first.sha, last.sha)
    if not logged:
        raise SideError(f"there is no commit after {good} ({short(first.sha)}) up to {bad} ({short(last.sha)})")
    candidates = {
        sha: Candidate(sha, f"commit {short(sha)}", subject, author, day) for sha, author, day, subject in logged
    }
    touched = repository.touching(first.sha, last.sha, _DEPENDENCY_FILES)
    suspects = tuple(Suspect(candidates[sha], tuple(files)) for sha, files in touched if sha in candidates)
    before = Candidate(first.sha, f"commit {short(first.sha)}")
    return History(before, tuple(candidates.values()), suspects, project, on_step)


def _releases(spec: str, project: Project, on_step: OnStep) -> History:
    found = _RELEASES.fullmatch(spec.strip())
    if found is None:
        raise SideError(f"{spec!r} names no releases: give pip:NAME==GOOD or pip:NAME==GOOD..BAD")
    name = found["name"]
    installed = installed_versions().get(normalized(name))
    bad = found["bad"] or installed
    if bad is None:
        raise SideError(f"{name} is not installed, so name the last release too: pip:{name}=={found['good']}..BAD")
    try:
        good_version, bad_version = Version(found["good"]), Version(bad)
    except InvalidVersion as error:
        raise SideError(f"{spec!r}: {error}") from None
    if good_version >= bad_version:
        raise SideError(f"{name} {good_version} is no earlier release than {bad_version}: give pip:{name}==GOOD..BAD")
    on_step(f"listing the releases of {name}")
    known = [version for version in _listed(name) if good_version < version <= bad_version]
    if bad_version not in known:
        known.append(bad_version)
    candidates = tuple(Candidate(str(version), f"{name} {version}") for version in sorted(set(known)))
    return History(
        Candidate(str(good_version), f"{name} {good_version}"), candidates, (), project, on_step, release_of=name
    )


def _listed(name: str) -> list[Version]:
    """Return the final releases of a distribution that pip finds."""
    completed = run_pip(sys.executable, ["index", "versions", name], f"list the releases of {name}")
    found = re.search(r"^Available versions:(.*)$", completed.out, re.MULTILINE)
    if completed.code or found is None:
        raise SideError(f"pip cannot list the releases of {name}:\n{last_lines(completed)}")
    return _versions(found[1].split(","))


def _versions(texts: Sequence[str]) -> list[Version]:
    versions = []
    for text in texts:
        try:
            versions.append(Version(text.strip()))
        except InvalidVersion:  # of long ago: pip itself installs none of them
            continue
    return versions
