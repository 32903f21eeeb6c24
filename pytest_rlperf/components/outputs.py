"""What a component returned, in a form that two processes can compare: types, shapes, digests and some values."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from typing import Any

from pytest_rlperf.components.checks import leaves, to_numpy
from pytest_rlperf.model.measured import OutputPart

_PARTS_MOST = 256  # arrays and values of one output
_SAMPLE_MOST = 64  # values of an array
_BYTES_MOST = 1 << 28  # of an array: the rest of a larger one is not looked at


def output_parts(output: Any) -> tuple[OutputPart, ...]:
    """Return the arrays and plain values within an output; none where it has none, or where they cannot be read."""
    found: list[OutputPart] = []
    try:
        for path, value in leaves(output, plain=True):
            if len(found) == _PARTS_MOST:
                break
            part = _plain_part(path, value) if _is_plain(value) else _array_part(path, value)
            found += [] if part is None else [part]
    except Exception:  # of any library's arrays: a comparison of outputs is not worth a failing test
        return ()
    return tuple(found)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _plain_part(path: str, value: bool | float | str) -> OutputPart:
    is_number = not isinstance(value, str) and math.isfinite(value) and abs(value) < sys.float_info.max
    return OutputPart(path, type(value).__name__, repr(value)[:200], (float(value),) if is_number else ())


def _array_part(path: str, value: Any) -> OutputPart | None:
    """Return an array with a digest of its bytes and values spread over it; None of objects, which have no bytes."""
    array = to_numpy(value)
    if array.dtype.hasobject:
        return None
    flat = array.reshape(-1)
    flat = flat[: _BYTES_MOST // max(1, array.itemsize)]
    digest = hashlib.blake2b(flat.tobytes(), digest_size=16).hexdigest()
    kind = f"{array.dtype} {array.shape}"
    return OutputPart(path, kind, digest, tuple(_sample(flat)) if array.dtype.kind in "biuf" else ())


def _sample(flat: Any) -> Iterator[float]:
    """Yield the mean of an array without what is not finite, and values spread over it evenly; NaN as 0, and so on."""
    import numpy as np

    if not flat.size:
        return
    numbers = np.nan_to_num(flat.astype(np.float64))
    yield float(numbers.mean())
    for index in np.linspace(0, flat.size - 1, min(flat.size, _SAMPLE_MOST)).astype(int):
        yield float(numbers[index])
