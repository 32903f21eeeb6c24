"""Where a call's time goes, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model.counting import Share

_BAR_COLUMNS = 40
_NAME_COLUMNS = 24  # a line must fit into 80 columns
_LABELS = {"python": "python and operators"}  # a profiler does not see an extension's operators


def owner_label(name: str) -> str:
    """Return the name that a report shows for an owner of time."""
    return _LABELS.get(name, name)


def shares_lines(shares: Sequence[Share]) -> list[str]:
    """Return a line for each share: its name, percent and a bar; none where there are none."""
    named = [(owner_label(share.name), share.share) for share in shares]
    width = min(_NAME_COLUMNS, max((len(name) for name, _ in named), default=0))
    return [
        f"{name[:width]:<{width}}  {units.percent(share, signed=False):>7}  "
        f"{'#' * round(_BAR_COLUMNS * share)}".rstrip()
        for name, share in named
    ]
