"""Timer trees in files: our own JSON, ML-Agents' JSON, Sample Factory's text, Chrome traces and speedscope's JSON."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import TimerFileError
from pytest_rlperf.model import TimerTree
from pytest_rlperf.traces import chrome, mlagents, own, sample_factory, speedscope
from pytest_rlperf.traces.reading import LARGEST_FILE, Document, Malformed, opened

__all__ = ["FORMATS", "LARGEST_FILE", "Format", "parse", "read", "tree_from_json", "tree_to_json", "write"]


@dataclass(frozen=True)
class Format:
    """A kind of file: its title in messages, and the functions that recognise, read and write it."""

    title: str
    recognises: Callable[[Document], bool]
    read: Callable[[Document], list[TimerTree]]
    write: Callable[[Sequence[TimerTree]], str]


# In the order in which they are tried: formats that name themselves come first.
FORMATS = {
    "json": Format("pytest-rlperf's JSON of timers", own.recognises, own.read, own.write),
    "speedscope": Format("speedscope's JSON", speedscope.recognises, speedscope.read, speedscope.write),
    "chrome": Format("a Chrome trace", chrome.recognises, chrome.read, chrome.write),
    "mlagents": Format("ML-Agents' JSON", mlagents.recognises, mlagents.read, mlagents.write),
    "sample-factory": Format(
        "Sample Factory's text", sample_factory.recognises, sample_factory.read, sample_factory.write
    ),
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
    return _read(data, source, FORMATS.values())


def _read(data: bytes, source: str, forms: Collection[Format]) -> list[TimerTree]:
    title = ""
    try:
        document = opened(data)
        form = next((form for form in forms if form.recognises(document)), None)
        if form is None:
            what = "text" if document.item is None else "JSON"
            *others, last = (form.title for form in forms)
            known = f"{', '.join(others)} and {last}" if others else last
            raise Malformed(f"this {what} is in none of the formats that can be read", f"those are {known}")
        title = f" as {form.title}"
        return form.read(document)
    except Malformed as malformed:
        finding, way_out = str(malformed), malformed.way_out
    except RecursionError:
        finding, way_out = "it is nested too deeply", "keep fewer levels"
    raise TimerFileError(f"{source} cannot be read{title}: {finding}; {way_out}")


def write(trees: Sequence[TimerTree], name: str) -> str:
    """Return trees as text in the format that FORMATS calls ``name``; TimerFileError where it cannot hold them."""
    form = FORMATS[name]
    try:
        return form.write(trees)
    except RecursionError:
        raise TimerFileError(f"the trees are nested too deeply for {form.title}; write them as json") from None


def tree_to_json(tree: TimerTree) -> str:
    """Return one tree as our own JSON, which keeps everything in it."""
    return write([tree], "json")


def tree_from_json(text: str | bytes, source: str = "the text") -> TimerTree:
    """Return the one tree that :func:`tree_to_json` wrote; TimerFileError, with the name ``source``, otherwise."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    trees = _read(data, source, [FORMATS["json"]])
    if len(trees) != 1:
        raise TimerFileError(f"{source} holds {len(trees)} trees, expected one: read them with parse()")
    return trees[0]
