"""Seeds of the global random generators: both sides of a pair draw the same numbers, in imports and in tests."""

from __future__ import annotations

import random
import sys
from typing import Any

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
        self._of_torch: tuple[int, Any] = (-1, None)  # the last seed, and the generator's state right after it

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
            if name == "numpy":
                module.random.seed(self._seed)
            else:
                self._seed_torch(module)
            self._seeded.add(name)

    def _seed_torch(self, torch: Any) -> None:
        """Seed PyTorch's generators, unless they have been seeded so and nothing was drawn since.

        PyTorch keeps each seed for devices that are not in use yet, with a stack trace, which takes a millisecond or
        two: a tenth of the time to collect tests.
        """
        last, state = self._of_torch
        is_drawn = last != self._seed or not torch.equal(torch.get_rng_state(), state)
        if is_drawn or _device_may_draw(torch):
            torch.manual_seed(self._seed)
            self._of_torch = self._seed, torch.get_rng_state()


def _device_may_draw(torch: Any) -> bool:
    """Whether a device is in use that has a generator of its own."""
    in_use = any(hasattr(torch, name) and getattr(torch, name).is_initialized() for name in ("cuda", "xpu"))
    return in_use or bool(torch.backends.mps.is_built())
