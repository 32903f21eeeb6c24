"""What a process that observes a test has run and read."""

from __future__ import annotations

import sys

from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.reach.recorder import FunctionRecorder
from pytest_rlperf.sides.observer import LoadedFiles, Observer


def footprint(
    observer: Observer, recorder: FunctionRecorder, loaded_files: LoadedFiles, alike: frozenset[str]
) -> Footprint:
    """Return what this process has run and read by now; modules that are ``alike`` on all sides are left out.

    Of children only those are known that an event tells of.
    """
    loaded = loaded_files.now()
    recorded = recorder.read(observer.below)
    return Footprint(
        # Modules that the process had loaded before it could note anything are known by their files.
        files=sorted({*observer.files(), *loaded.values()}),
        children=observer.has_children or recorded.has_spawned,
        functions=recorded.functions,
        data=observer.data(),
        modules=sorted({*sys.modules} - alike - {*loaded}),
        whole=recorder.is_whole and not observer.has_hooks,
        compiled=recorded.has_compiled,
    )
