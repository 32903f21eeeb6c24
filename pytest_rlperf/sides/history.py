"""The commits or releases between a good one and a bad one, and the sides that compare two of them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import OnStep, Project, Side, Sides
from pytest_rlperf.sides.build import last_lines, run_pip
from pytest_rlperf.sides.environment import installed_versions
from pytest_rlperf.sides.git import find_repository, short
from pytest_rlperf.sides.packages import normalized
from pytest_rlperf.sides.prepare import prepare_sides, uncommitted

_RELEASES = re.compile(r"pip:\s*(?P<name>[A-Za-z0-9][\w.-]*?)\s*==\s*(?P<good>.+?)(?:\.\.(?P<bad>.+))?")


@dataclass(frozen=True)
class Candidate:
    """A commit or a release: ``spec`` is its name for --rlperf-against; ``about`` is a commit in one line."""

    spec: str
    title: str
    about: str = ""

    def range_to(self, last: Candidate) -> str:
        """Return the range from here to another one, as --rlperf-bisect takes it."""
        return f"{self.spec}..{last.spec.rpartition('=')[2]}"


def find_candidates(spec: str, project: Project, on_step: OnStep) -> list[Candidate]:
    """Return the candidates of ``--rlperf-bisect`` in order, behind the good one; SideError where there are none."""
    if spec.startswith("pip:"):
        return _releases(spec, on_step)
    repository = find_repository(project.rootdir)
    good, _, bad = spec.partition("..")
    if not good:
        raise SideError("no good commit is named: give GOOD[..BAD], or pip:NAME==GOOD[..BAD] for releases")
    first, last = repository.exactly(good), repository.exactly(bad or "HEAD")
    logged = repository.first_parents(first.sha, last.sha)
    if not logged:
        raise SideError(f"there is no commit after {good} ({short(first.sha)}) up to {last.title} ({short(last.sha)})")
    changed = uncommitted(project, on_step)
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise SideError(
            f"the working tree has uncommitted changes ({', '.join(changed[:3])}{more}), which are in no commit of the "
            "search: commit them, or git stash -u"
        )
    found = [(first.sha, ""), *((sha, f"{day} {author}: {subject}") for sha, author, day, subject in logged)]
    return [Candidate(short(sha), f"commit {short(sha)}", about) for sha, about in found]


def compared(base: Candidate, head: Candidate, project: Project, on_step: OnStep) -> Sides:
    """Return the comparison of two candidates, both with today's tests; SideError where one of them cannot be had."""
    before, packages = _side(base, head, project, on_step)
    after, others = _side(head, base, project, on_step)
    return Sides(before, after, tuple(dict.fromkeys((*packages, *others))), None, ())


def _side(wanted: Candidate, other: Candidate, project: Project, on_step: OnStep) -> tuple[Side, tuple[str, ...]]:
    """Return the side of a candidate, and the packages under test; a release that is installed is today's side."""
    name, _, version = wanted.spec.removeprefix("pip:").partition("==")
    is_here = bool(version) and installed_versions().get(normalized(name)) == version
    sides = prepare_sides((other if is_here else wanted).spec, project, on_step)
    return sides.head if is_here else sides.base, sides.packages


def _releases(spec: str, on_step: OnStep) -> list[Candidate]:
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
            raise SideError(f"{name} {first} is no earlier release than {last}: give pip:{name}==GOOD..BAD")
        on_step(f"listing the releases of {name}")
        between = {version for version in map(Version, _listed(name)) if first < version < last}
    except InvalidVersion as error:
        raise SideError(f"{spec!r}: {error}") from None
    return [Candidate(f"pip:{name}=={version}", f"{name} {version}") for version in (first, *sorted(between), last)]


def _listed(name: str) -> list[str]:
    """Return the final releases of a distribution that pip finds."""
    completed = run_pip(sys.executable, ["index", "versions", name], f"list the releases of {name}")
    found = re.search(r"^Available versions:(.*)$", completed.out, re.MULTILINE)
    if completed.code or found is None:
        raise SideError(f"pip cannot list the releases of {name}:\n{last_lines(completed)}")
    return found[1].split(",")
