"""The provenance of figures: the commit, whether the tree was clean, and the versions of loaded distributions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import msgspec

from pytest_rlperf.errors import SideError
from pytest_rlperf.model.reasons import VersionChange
from pytest_rlperf.model.stored import Provenance
from pytest_rlperf.sides.git import repository_around
from pytest_rlperf.sides.installs import installs_from, normalized, projects_around, top_level

# Packages that run the tests and no measured code: counts do not depend on their versions. pytest-rlperf itself is not
# among them: its counts may change between versions.
HARNESS = frozenset(
    {"pytest", "pluggy", "iniconfig", "packaging", "pytest-benchmark", "py-cpuinfo", "msgspec"}
    | {"psutil", "rich", "markdown-it-py", "mdurl", "pygments", "coverage", "pytest-cov", "pytest-xdist", "execnet"}
    | {"pytest-timeout", "pip", "setuptools"}
)


class TreeState(msgspec.Struct, frozen=True):
    """The state of the code: full SHAs of commit and tree, None outside git, and whether the files differ from them."""

    commit: str | None
    tree: str | None
    dirty: bool


def read_tree(root: Path, baseline_dir: Path, outputs: Iterable[Path] = ()) -> TreeState:
    """Return the state of the tree at ``root``.

    Baselines below ``baseline_dir`` do not count, nor do the ``outputs`` of the run itself. SideError if git refuses
    to read the repository.
    """
    repository = repository_around(root)
    if repository is None:
        return TreeState(None, None, dirty=False)
    try:
        dirty = repository.is_dirty(baseline_dir, outputs)
    except SideError:
        dirty = True  # without git's answer any file may have changed
    return TreeState(repository.head, repository.tree(), dirty=dirty)


def make_provenance(before: TreeState, after: TreeState, modules: Iterable[str]) -> Provenance:
    """Return the provenance of figures measured between the states ``before`` and ``after``.

    If they differ, the measured code is in no commit, so it counts as dirty. ``modules`` are the top-level modules that
    the workers had loaded; their distributions' versions are kept.
    """
    return Provenance(
        commit=before.commit,
        tree=before.tree,
        dirty=before.dirty or before != after,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        packages=versions(providing(modules)),
    )


def providing(modules: Iterable[str]) -> set[str]:
    """Return the installed distributions that provide ``modules``."""
    wanted = {*modules}
    found = {each.metadata["Name"] for each in distributions() if not wanted.isdisjoint(top_level(each))}
    return {name for name in found if name}  # a half-removed install has none


def free_distributions(directory: Path, top: Path) -> frozenset[str]:
    """Return the distributions whose versions do not matter, by normalized names: test tools, and the tree's own.

    The tree's own are installed from the tree at ``top``, or are the projects around ``directory`` in it, installed or
    not.
    """
    own = [install.name for install in installs_from(top)]
    own += [name for _, name in projects_around(directory, top)]
    return HARNESS | {normalized(name) for name in own}


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed ones among ``distributions``."""
    found = {}
    for name in sorted(distributions, key=str.lower):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue  # a half-removed editable install has no version
    return found


def changed_versions(then: Mapping[str, str]) -> list[VersionChange]:
    """Return the distributions that have another version now, or are gone."""
    now = versions(then)
    return [VersionChange(name, then[name], now.get(name)) for name in then if then[name] != now.get(name)]
