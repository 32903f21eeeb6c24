"""Do something with a module as soon as it is loaded, whoever imports it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from importlib.machinery import ModuleSpec
from types import ModuleType


class AfterImport:
    """A finder that finds the modules of some ``names`` as without it, and calls ``then`` with each that is loaded."""

    def __init__(self, names: Collection[str], then: Callable[[ModuleType], object]) -> None:
        self._names, self._then = names, then

    def begin(self) -> None:
        """Call ``then`` for what is loaded already, and look at all imports from now on."""
        for name in self._names:
            if name in sys.modules:
                self._then(sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a module's specification, which the other finders give; None for other modules."""
        if name not in self._names:
            return None
        place = sys.meta_path.index(self)  # pytest's own finder may stand before it
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(place, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_go_on(module: ModuleType) -> None:
                load(module)
                self._then(module)

            spec.loader.exec_module = load_and_go_on  # type: ignore[method-assign]
        return spec
