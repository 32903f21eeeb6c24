"""Where figures come from: the commit, whether the tree was clean, and the versions of what was loaded."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

from pytest_rlperf.model import Provenance


def provenance(root: Path, baseline_dir: Path, modules: Iterable[str]) -> Provenance:
    """Return the provenance of figures measured now from the tree at ``root``.

    The tree is dirty where anything but the baselines differs from the commit. ``modules`` are the top-level modules
    the workers had loaded; their distributions' versions are kept.
    """
    commit = _git(root, "rev-parse", "--verify", "HEAD^{commit}")
    status = None
    if commit is not None:
        ignored = [":(exclude,glob,top)**/__pycache__/**"]
        if baseline_dir.resolve().is_relative_to(root.resolve()):
            files = baseline_dir.resolve().relative_to(root.resolve()) / "*" / "*.json"
            ignored.append(f":(exclude,glob){files.as_posix()}")
        status = _git(root, "status", "--porcelain", "--", ":(top)", *ignored)
    return Provenance(
        commit=commit,
        tree=_git(root, "rev-parse", "--verify", "HEAD^{tree}") if commit is not None else None,
        dirty=bool(status),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        packages=_versions(modules),
    )


def _git(root: Path, *arguments: str) -> str | None:
    """Return what git says, or None where there is no git, or no repository of this user's."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions that provide ``modules``."""
    providers = packages_distributions()
    names = {name for module in modules for name in providers.get(module, ())}
    versions = {}
    for name in sorted(names, key=str.lower):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue  # an editable install half removed; what has no version cannot be told apart by it
    return versions
