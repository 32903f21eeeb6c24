"""HTML that is escaped by construction: what is not made here as markup is text."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_rlperf.report.printable import shown

_VOID = {"br", "input", "link", "meta"}


class Markup(str):
    """A string that is markup already; any other string is text, escaped where it is put into markup."""

    __slots__ = ()


EMPTY = Markup("")
NOTHING = "–"  # in a table, where there is no figure


def text(value: str) -> Markup:
    """Return a text as markup: its lines kept, and what no reader can see spelled out.

    Control characters, marks that turn the direction of writing and lone surrogates are written as Python writes them.
    """
    if isinstance(value, Markup):
        return value
    return Markup("<br>".join(html.escape(shown(line)) if line else "" for line in value.split("\n")))


def join(parts: Iterable[str]) -> Markup:
    """Return parts one after the other."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """Return an element; ``class_`` is written class, ``aria_label`` aria-label.

    An attribute of True has no value, one of False or None is left out.
    """
    written = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Markup(f"<{name}{written}>{'' if name in _VOID else f'{join(children)}</{name}>'}")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(" ".join(map(shown, value.splitlines())))}"'


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], *, texts: int = 1) -> Markup:
    """Return a table in a box that scrolls where it is too wide; the first column names its rows.

    The first ``texts`` columns hold words, the others figures. A column of nothing but ``NOTHING`` is left out.
    """
    whole = list(rows)
    kept = [place for place in range(len(header)) if not place or any(cells[place] != NOTHING for cells in whole)]
    heads = join(tag("th", header[place], scope="col", class_=_words(place, texts)) for place in kept)
    body = (
        tag(
            "tr",
            tag("th", cells[0], scope="row", class_=_words(0, texts)),
            *(tag("td", cells[place], class_=_words(place, texts)) for place in kept[1:]),
        )
        for cells in whole
    )
    content = tag("table", tag("caption", title), tag("thead", tag("tr", heads)), tag("tbody", *body))
    return scrolling(content, title)


def _words(place: int, texts: int) -> str | None:
    return "words" if place < texts else None


def scrolling(content: Markup, label: str) -> Markup:
    """Return a box that scrolls sideways, by keyboard too."""
    return tag("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    """Return terms with what is said of them, less those of which nothing is."""
    return tag("dl", *(tag("div", tag("dt", term), tag("dd", said)) for term, said in pairs if said))


def embedded(document: Mapping[str, Any], name: str) -> Markup:
    """Return data as a script element that no text in it can end or break out of.

    Beside ``<``, ``>`` and ``&`` all that is not ASCII is escaped: line separators and lone surrogates too.
    """
    written = json.dumps(document, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        written = written.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{name}">{written}</script>')
