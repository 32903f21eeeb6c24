"""Where a call's time goes, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_rlperf import units
from pytest_rlperf.model.counting import Share

_BAR_COLUMNS = 40
_NAME_COLUMNS = 24  # what leaves a line within 80 columns


def shares_lines(shares: Sequence[Share]) -> list[str]:
    """Return a line for each share: its name, percent and a bar; none where there are none."""
    width = min(_NAME_COLUMNS, max((len(share.name) for share in shares), default=0))
    return [
        f"{share.name[:width]:<{width}}  {units.percent(share.share, signed=False):>7}  "
        f"{'#' * round(_BAR_COLUMNS * share.share)}".rstrip()
        for share in shares
    ]
