"""The formatting of numbers in base units, all in one place."""

from __future__ import annotations

import math
from collections.abc import Sequence

_TIME_STEPS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_COUNT_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _significant(value: float, digits: int) -> str:
    """Write ``value`` with ``digits`` significant digits and no exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded figure: 9.996 is 10.0
    decimals = max(0, digits - 1 - exponent)
    return f"{value:.{decimals}f}"


def _scaled(value: float, steps: tuple[tuple[float, str], ...], gap: str) -> str:
    """Write ``value`` in the largest of ``steps`` that gives a figure of at least one."""
    for step, name in steps:
        # The rounded figure decides: 999.6 µs is 1.00 ms, never 1000 µs.
        if float(_significant(abs(value) / step, 3)) >= 1:
            return f"{_significant(value / step, 3)}{gap}{name}".rstrip()
    step, name = steps[-1]
    return f"{_significant(value / step, 3)}{gap}{name}".rstrip()


def seconds(value: float) -> str:
    """Write a duration given in seconds: ``48.2 µs``."""
    return _scaled(value, _TIME_STEPS, " ")


def changes_s(values: Sequence[float]) -> list[str]:
    """Write changes in seconds in the unit of the last, their whole; only the last names it: ``+1.9``, ``+2.1 ms``."""
    whole = abs(values[-1])
    # Two digits, as changes are known no better; the rounded figure decides, as with durations.
    fitting = (unit for unit in _TIME_STEPS if float(_significant(whole / unit[0], 2)) >= 1)
    step, name = next(fitting, _TIME_STEPS[-1])
    decimals = len(_significant(whole / step, 2).partition(".")[2])
    *parts, last = (f"{value / step:+.{decimals}f}" for value in values)
    return [*parts, f"{last} {name}"]


def duration(value: float) -> str:
    """Write a waiting time: ``45 s``, ``1 min 20 s``, ``5 min``."""
    minutes, rest = divmod(round(value), 60)
    parts = [f"{minutes} min"] if minutes else []
    return " ".join([*parts, f"{rest} s"] if rest or not minutes else parts)


def roughly(value: float) -> str:
    """Write an estimated waiting time in round figures: ``25 s``, ``1 min 20 s``, ``7 min``."""
    step = 5 if value < 60 else 10 if value < 300 else 60
    return duration(max(5, step * round(value / step)))


def signed_seconds(value: float) -> str:
    """Write a difference of durations: ``+1.90 ms``."""
    return f"{'-' if value < 0 else '+'}{seconds(abs(value))}"


def quantity(value: float) -> str:
    """Write a large count: ``166k``."""
    return _scaled(value, _COUNT_STEPS, "")


def number(value: float, digits: int = 2) -> str:
    """Write a count or a mean of counts: ``1,800``, ``0.01``; with an exponent if there are too many zeros."""
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits}g}"
    rounded = round_significant(value, digits)
    decimals = len(_significant(rounded, digits).partition(".")[2])
    text = f"{rounded:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def counted(count: int, noun: str) -> str:
    """Write how many there are of something: ``1 test``, ``7 tests``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(fraction: float, *, signed: bool = True) -> str:
    """Write a fraction as a percentage: ``+4.2 %``, from 100 % on without decimals."""
    value = 100 * fraction
    decimals = 1 if abs(value) < 99.95 else 0
    sign = "+" if signed else ""
    return f"{value:{sign}.{decimals}f} %"


def change(ratio: float, estimate: float | None = None) -> str:
    """Write a ratio head/base as a change: 1.042 is ``+4.2 %``; from a factor of two on: ``×2.1``, ``×0.00049``.

    A bound has the form of its ``estimate``.
    """
    return f"×{_multiple(ratio)}" if _is_multiple(ratio if estimate is None else estimate) else percent(ratio - 1)


def interval(estimate: float, low: float, high: float) -> str:
    """Write the interval of a change in the form that the change has: ``[-3.6, +4.4]``, ``[.00048, .00050]``."""
    if _is_multiple(estimate):
        least, most = (f".{text[2:]}" if text.startswith("0.") else text for text in map(_multiple, (low, high)))
        return f"[{least}, {most}]"
    low, high = 100 * (low - 1), 100 * (high - 1)
    digits = 0 if max(abs(low), abs(high)) >= 10 else 1
    return f"[{low:+.{digits}f}, {high:+.{digits}f}]"


def _is_multiple(ratio: float) -> bool:
    """Whether a percentage would show too little of a change."""
    return not 0.5 < ratio < 2


def _multiple(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 1000 else _significant(ratio, 2 if ratio < 10 else 3)


def round_significant(value: float, digits: int = 5) -> float:
    """Round to ``digits`` significant digits, the precision of stored figures."""
    return float(f"{value:.{digits - 1}e}")
