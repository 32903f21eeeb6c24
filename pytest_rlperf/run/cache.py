"""The things that a run keeps in pytest's cache: its JSON for ``rlperf show``, and how long tests take."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_rlperf.writing import CACHE, LATEST_RUN

SECONDS = "rlperf/seconds"  # how long tests usually take


def cache_of(config: pytest.Config) -> pytest.Cache | None:
    """Return pytest's cache; None if there is none, or if a link in the tree would lead a run's files out of it."""
    cache = getattr(config, "cache", None)
    if cache is None:
        return None
    place: Path = cache._cachedir
    top = config.rootpath if place.is_relative_to(config.rootpath) else place
    kept = (place / "d" / CACHE / LATEST_RUN, place / "v" / SECONDS)
    steps = (step for path in kept for step in (path, *path.parents) if top in step.parents)
    return None if any(step.is_symlink() for step in steps) else cache
