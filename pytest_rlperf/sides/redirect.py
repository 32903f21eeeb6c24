"""A finder of a side's modules, first in every process of its environment: no module comes from the user's own tree.

A ``.pth`` file, a build tool's import hook or a link may lead to the user's tree. This finder asks the others, and
loads what they found there from the same place in the side's tree. The environment has a copy of this file with its own
values for the variables below, so the file imports only the standard library.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location

TOP = ""  # the user's tree, its path without links
TREE = ""  # the side's
TREES: tuple[str, ...] = ()  # both sides': a path belongs to the tree if any of them has a file with that name
BUILT = ""  # the directory of what was built for the side, which comes before everything else
HIDDEN: frozenset[str] = frozenset()  # what this environment must not have, though the running one does


class Redirect:
    """Finds modules by the other finders, and moves those of the user's tree to the side's."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module is on the side; ModuleNotFoundError if only the user's tree has it."""
        if name in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        built = PathFinder.find_spec(name, [BUILT]) if BUILT and path is None else None
        if built is not None and built.loader is not None:
            return built
        is_refused = False
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                moved = _moved(spec, resolve=path is None)
                if moved is not None:
                    return moved if built is None else _joined(built, moved)
                is_refused = True
        if is_refused:  # the finders behind this one would be asked again
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _moved(spec: ModuleSpec, *, resolve: bool) -> ModuleSpec | None:
    """Return the same module on the side, None if the side lacks it; with ``resolve``, follow links into the tree."""
    places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    file = spec.origin if spec.has_location else None
    own_file, own_places = _own(file, resolve), None if places is None else [_own(place, resolve) for place in places]
    if own_file == file and own_places == places:
        return spec
    if own_file is not None and not os.path.exists(own_file):  # noqa: PTH110 - without pathlib's import
        return None
    kept = None if own_places is None else [place for place in own_places if place and os.path.isdir(place)]  # noqa: PTH112
    if own_file is not None:
        return spec_from_file_location(spec.name, own_file, submodule_search_locations=kept)
    if not kept:
        return None
    namespace = ModuleSpec(spec.name, None, is_package=True)
    namespace.submodule_search_locations = kept
    return namespace


def _joined(built: ModuleSpec, found: ModuleSpec) -> ModuleSpec:
    """Return a found module, or a namespace in which the built part comes first."""
    if found.loader is None:
        places = (*(built.submodule_search_locations or ()), *(found.submodule_search_locations or ()))
        found = ModuleSpec(found.name, None, is_package=True)
        found.submodule_search_locations = list(dict.fromkeys(places))
    return found


def _own(place: str | None, resolve: bool) -> str | None:
    """Return a path's counterpart on the side, or the path itself if it is in no tree."""
    if place is None:
        return None
    real = os.path.realpath(place) if resolve else place
    if real != TOP and not real.startswith(TOP + os.sep):
        return place
    name = real[len(TOP) :]
    if any(os.path.lexists(tree + name) for tree in TREES):
        return TREE + name
    return place


if TOP:
    sys.meta_path.insert(0, Redirect())
