"""Timer trees in files: reads our own JSON and ML-Agents', writes ours and traces for viewers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.traces import chrome, own
from pytest_rlperf.traces.reading import LARGEST_FILE, Malformed, opened

__all__ = ["LARGEST_FILE", "WRITERS", "parse", "read", "write"]

WRITERS: dict[str, Callable[[Sequence[TimerTree]], str]] = {"json": own.write, "chrome": chrome.write}


def read(path: str | Path) -> list[TimerTree]:
    """Return the trees of a file, in the format that its content shows; TimerFileError where it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TimerFileError(f"cannot read {path}: {reason}; give the path of a file that can be read") from None
    return parse(data, str(path))


def parse(data: bytes, source: str) -> list[TimerTree]:
    """Return the trees in ``data``; TimerFileError, with the name ``source``, where there are none."""
    try:
        return _read(opened(data))
    except Malformed as malformed:
        finding, way_out = str(malformed), malformed.way_out
    except RecursionError:
        finding, way_out = "it is nested too deeply", "keep fewer levels"
    raise TimerFileError(f"{source} cannot be read: {finding}; {way_out}")


def _read(value: Any) -> list[TimerTree]:
    top = value if isinstance(value, dict) else {}
    if top.get("format") == own.NAME:
        return own.read(value)
    if {"total", "count"} <= top.keys():
        return own.read_mlagents(value)
    if isinstance(value, list) or not top.keys().isdisjoint({"traceEvents", "profiles"}):
        finding = "it looks like a Chrome trace or speedscope's JSON, which rlperf does not read"
        raise Malformed(finding, "open it at https://ui.perfetto.dev or https://www.speedscope.app")
    raise Malformed("it holds no timer tree", "timer trees are read from this package's JSON and from ML-Agents'")


def write(trees: Sequence[TimerTree], name: str) -> str:
    """Return trees as text in the format ``name``, one of WRITERS."""
    return WRITERS[name](trees)
