"""Seeds of the global random generators: both sides of a pair draw the same numbers, in imports and in tests."""

from __future__ import annotations

import random
import sys

_OF_IMPORTS, _OTHER = 1000, 1001
GENERATORS = "numpy", "torch"
"""The libraries whose global generators are seeded, beside Python's."""


class Seeds:
    """Seeds the global generators of Python and of the libraries that are loaded, without importing any of them.

    Modules are imported with one seed in all drivers but the one of number 2: a count that depends on it is not exact.
    """

    def __init__(self, driver: int) -> None:
        self._of_imports = _OTHER if driver == 2 else _OF_IMPORTS
        self._seed = self._of_imports
        self._seeded: set[str] = set()

    def begin_imports(self) -> None:
        """Seed every loaded generator for imports, as of a module that makes the weights of a policy."""
        self.begin(self._of_imports)

    def begin(self, seed: int) -> None:
        """Seed every loaded generator."""
        self._seed = seed
        self._seeded = set()
        random.seed(seed)
        self.seed_loaded()

    def seed_loaded(self) -> None:
        """Seed the generators that have been loaded since :meth:`begin`, each once."""
        for name in GENERATORS:
            if name in sys.modules:
                self.seed_once(name)

    def seed_once(self, name: str) -> None:
        """Seed a loaded library's generator, unless it has been seeded since :meth:`begin`."""
        if name not in self._seeded:
            module = sys.modules[name]
            seed = module.random.seed if name == "numpy" else module.manual_seed
            seed(self._seed)
            self._seeded.add(name)
