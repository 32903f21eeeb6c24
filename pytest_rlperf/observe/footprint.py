"""What a process that observes a test has run and read."""

from __future__ import annotations

import sys

from pytest_rlperf.model.reach import Footprint
from pytest_rlperf.observe.objects import AsObjects, functions_as_objects, specially_loaded
from pytest_rlperf.observe.observer import LoadedFiles, Observer, paths_of
from pytest_rlperf.observe.recorder import FunctionRecorder


def footprint(
    observer: Observer,
    recorder: FunctionRecorder,
    loaded_files: LoadedFiles,
    alike: frozenset[str],
    *,
    searches: bool = False,
) -> Footprint:
    """Return what this process has run and read by now, without modules that are ``alike`` on all sides.

    Only children that an event reports are known. Which functions are kept, and whose annotations were read, is known
    only if it ``searches`` all objects, which takes a tenth of a second.
    """
    loaded = loaded_files.now()
    recorded = recorder.read(observer.below)
    objects = functions_as_objects(observer.changed) if searches else AsObjects({}, {})
    return Footprint(
        # Modules that were loaded before the process could note anything are known by their files.
        files=sorted({*observer.files(), *loaded.values()}),
        children=observer.has_children or recorded.has_spawned,
        functions=recorded.functions,
        data=observer.data(),
        modules=sorted({*sys.modules} - alike - {*loaded}),
        whole=recorder.is_whole and not observer.has_hooks,
        compiled=recorded.has_compiled,
        kept=objects.kept,
        annotated=objects.read,
        special=sorted({place for file in specially_loaded(loaded) for place in paths_of(file)}),
        opened=observer.opened(),
        unwatched=observer.unwatched,
        loaded=[*loaded],
    )
