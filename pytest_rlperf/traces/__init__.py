"""Timer trees in files: reads our own JSON, ML-Agents' JSON and Sample Factory's text, writes JSON for viewers too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model.timing import TimerTree
from pytest_rlperf.traces import chrome, own, sample_factory
from pytest_rlperf.traces.reading import LARGEST_FILE, Document, Malformed, opened

__all__ = ["LARGEST_FILE", "WRITERS", "parse", "read", "tree_from_json", "tree_to_json", "write"]


@dataclass(frozen=True)
class _Format:
    """A kind of file: its title in messages, and the functions that recognise and read it."""

    title: str
    recognises: Callable[[Document], bool]
    read: Callable[[Document], list[TimerTree]]


_OWN = _Format("pytest-rlperf's JSON of timers", own.recognises, own.read)
_FORMATS = (
    _OWN,
    _Format("ML-Agents' JSON", own.recognises_mlagents, own.read_mlagents),
    _Format("Sample Factory's text", sample_factory.recognises, sample_factory.read),
)
WRITERS: dict[str, Callable[[Sequence[TimerTree]], str]] = {
    "json": own.write,
    "chrome": chrome.write,
    "speedscope": chrome.write_speedscope,
}


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
    return _read(data, source, _FORMATS)


def _read(data: bytes, source: str, forms: Collection[_Format]) -> list[TimerTree]:
    title = ""
    try:
        document = opened(data)
        form = next((form for form in forms if form.recognises(document)), None)
        if form is None:
            raise _unknown(document, forms)
        title = f" as {form.title}"
        return form.read(document)
    except Malformed as malformed:
        finding, way_out = str(malformed), malformed.way_out
    except RecursionError:
        finding, way_out = "it is nested too deeply", "keep fewer levels"
    raise TimerFileError(f"{source} cannot be read{title}: {finding}; {way_out}")


def _unknown(document: Document, forms: Collection[_Format]) -> Malformed:
    """Return the error for a document in none of ``forms``."""
    if _is_time_line(document):
        finding = "it is a Chrome trace or speedscope's JSON, which rlperf does not read"
        return Malformed(finding, "open it at https://ui.perfetto.dev or https://www.speedscope.app")
    kind = "text" if document.value is None else "JSON"
    *others, last = (form.title for form in forms)
    known = f"{', '.join(others)} and {last}" if others else last
    return Malformed(f"this {kind} is in none of the formats that can be read", f"those are {known}")


def _is_time_line(document: Document) -> bool:
    """Whether this is a Chrome trace, an object or a bare list of events, or a file of speedscope."""
    first = document.value[0] if isinstance(document.value, list) and document.value else None
    is_list_of_events = isinstance(first, dict) and "ph" in first
    return is_list_of_events or not document.top.keys().isdisjoint({"traceEvents", "profiles"})


def write(trees: Sequence[TimerTree], name: str) -> str:
    """Return trees as text in the format ``name``, one of WRITERS."""
    return WRITERS[name](trees)


def tree_to_json(tree: TimerTree) -> str:
    """Return one tree as our own JSON, which keeps everything in it."""
    return own.write([tree])


def tree_from_json(text: str | bytes, source: str = "the text") -> TimerTree:
    """Return the one tree that :func:`tree_to_json` wrote; TimerFileError, with the name ``source``, otherwise."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    trees = _read(data, source, [_OWN])
    if len(trees) != 1:
        raise TimerFileError(f"{source} holds {len(trees)} trees, expected one: read them with parse()")
    return trees[0]
