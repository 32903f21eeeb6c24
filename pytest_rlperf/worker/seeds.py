"""Seeds of the global random generators: both sides of a pair draw the same numbers, in imports and in tests."""

from __future__ import annotations

import importlib.util
import random
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

_OF_IMPORTS, _OTHER = 1000, 1001
_GENERATORS = ("numpy", "torch")


class Seeds:
    """Seeds the global generators of Python and of the libraries that are loaded, without importing any of them.

    Modules are imported with one seed in all drivers but the one of number 2: a count that depends on it is not exact.
    """

    def __init__(self, driver: int) -> None:
        self._of_imports = _OTHER if driver == 2 else _OF_IMPORTS
        self._seed = 0
        self._seeded: set[str] = set()

    def begin_imports(self) -> None:
        """Seed the generators for modules that draw while they are imported, such as the weights of a policy."""
        self.begin(self._of_imports)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def begin(self, seed: int) -> None:
        """Seed every loaded generator."""
        self._seed = seed
        self._seeded = set()
        random.seed(seed)
        self.seed_loaded()

    def seed_loaded(self) -> None:
        """Seed the generators that have been loaded since :meth:`begin`, each once."""
        for name in _GENERATORS:
            module = sys.modules.get(name)
            if module is not None and name not in self._seeded:
                seed = module.random.seed if name == "numpy" else module.manual_seed
                seed(self._seed)
                self._seeded.add(name)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Find a library as without this finder, and seed its generator as soon as it is loaded."""
        if name not in _GENERATORS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_seed(module: ModuleType) -> None:
                load(module)
                self.seed_loaded()

            spec.loader.exec_module = load_and_seed  # type: ignore[method-assign]
        return spec
