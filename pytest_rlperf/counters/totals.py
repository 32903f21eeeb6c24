"""Running totals of many names in one integer, which a tree of phases takes for its clock."""

from __future__ import annotations

_BITS = 64  # a field, more than any total needs; in sums and differences of totals no field runs over


class Totals:
    """Counts by name that only grow, each in a field of its own of one integer.

    What is ``packed`` at two moments can be subtracted, and differences added up, name by name in one operation: so the
    tree that times phases by a clock tells what was counted in each phase, where its clock reads this.
    """

    def __init__(self) -> None:
        self.packed = 0
        self._units: dict[str, int] = {}

    def unit(self, *names: str) -> int:
        """Return what to add to ``packed`` to count one of each of the names."""
        return sum(self._units.setdefault(name, 1 << (_BITS * len(self._units))) for name in names)

    def read(self) -> int:
        """Return the totals so far, packed: a clock."""
        return self.packed

    def unpack(self, packed: int) -> dict[str, int]:
        """Return the counts by name of a difference of totals, or of a sum of such; those of 0 are left out."""
        mask = (1 << _BITS) - 1
        fields = ((name, packed >> (_BITS * place) & mask) for place, name in enumerate(self._units))
        return {name: value for name, value in fields if value}
