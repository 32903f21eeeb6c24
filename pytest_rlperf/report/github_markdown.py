"""Markdown as GitHub renders it: the job summary and the pull request's comment, from untrusted text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_rlperf import units
from pytest_rlperf.model import Status
from pytest_rlperf.report.github_findings import (
    Finding,
    acceptance_lines,
    advice,
    broken,
    headline,
    improvements,
    ordered,
    untold,
)
from pytest_rlperf.report.statuses import LOOKS
from pytest_rlperf.report.wording import count_text

_LONGEST = 300  # characters of one name or message
_LONGEST_COMMAND = 2000
_MOST_LINES = 20  # lines to accept slowdowns, environment differences, notes
_SAFE = frozenset(" ,.;/+-=%")


@dataclass(frozen=True)
class Page:
    """A run as GitHub shows it.

    ``compared`` says what was compared with what, ``environment`` what differs between then and now, ``facts`` what is
    in small print. ``link`` names the run in a comment, Markdown of our own making.
    """

    findings: Sequence[Finding]
    unmeasured: Mapping[str, str]
    compared: Sequence[str]
    environment: Sequence[str]
    facts: Sequence[str]
    command: str
    link: str = ""


def render(page: Page, limit_bytes: int, prefix: str = "") -> str:
    """Return the page in at most ``limit_bytes`` of UTF-8.

    What finds no room is left out, and that is said: first details of tests, then tests, the gravest last of all.
    Where there is no room for the headline there is no page.
    """
    for shown, detailed, with_rest in _sizes(len(page.findings)):
        text = prefix + _page(page, shown, detailed, with_rest=with_rest)
        if len(text.encode()) <= limit_bytes:
            return text
    return ""


def _sizes(total: int) -> Iterator[tuple[int, int, bool]]:
    """Yield how many tests to show, how many of them with details, and whether with the rest, from all to nothing."""
    shown = detailed = total
    yield shown, detailed, True
    while shown:
        if detailed:
            detailed //= 2
        else:
            shown //= 2
        yield shown, detailed, True
    yield 0, 0, False


def _page(page: Page, shown: int, detailed: int, *, with_rest: bool) -> str:
    findings = ordered(page.findings)
    gated = [found for found in findings[:shown] if found.gated]
    others = [found for found in findings[:shown] if not found.gated]
    sign = "❌" if any(found.fails for found in findings) or broken(findings, page.unmeasured) else "✅"
    blocks = [
        f"## {sign} {escape(headline(findings, page.unmeasured))}",
        _compared(page) if with_rest else "",
        escape(advice(findings, page.unmeasured)),
        escape(improvements(findings)),
        _fenced("text", acceptance_lines(findings)) if with_rest else "",
        _table(gated),
        _left_out(len(findings), shown, detailed),
        _accepted(findings[:shown]),
        *(_details(found) for found in findings[:detailed] if _is_told(found)),
        _folded("Not gated: these fail nothing", _table(others)),
        _folded("Phases of the other tests", _phase_tables(findings[:detailed])),
        *(_rest(page) if with_rest else []),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _compared(page: Page) -> str:
    return "<br>".join(f"Compared {escape(origin)}." for origin in page.compared[:_MOST_LINES])


def _rest(page: Page) -> list[str]:
    """Return what is said of the run and not of its tests' verdicts."""
    small = [*([page.link] if page.link else []), *(escape(fact) for fact in page.facts[:_MOST_LINES])]
    others = untold(page.findings, page.unmeasured)
    return [
        _list("Not judged", [f"{code(key)}: {escape(why)}" for key, why in others.items()]),
        _list("What differs from then", [escape(line) for line in page.environment]),
        f"Run it again:\n\n{_fenced('console', [page.command])}" if page.command else "",
        f"<sub>{' · '.join(small)}</sub>" if small else "",
    ]


def _left_out(total: int, shown: int, detailed: int) -> str:
    """Say what was left out to keep within GitHub's size."""
    if shown < total:
        return (
            f"**{total - shown} more tests are left out: GitHub allows no longer text. The run's JSON has them all.**"
        )
    if detailed < total:
        rest = units.counted(total - detailed, "test")
        return f"**The details of {rest} are left out: GitHub allows no longer text. The run's JSON has them all.**"
    return ""


def _accepted(findings: Sequence[Finding]) -> str:
    """Say why what is slower may be."""
    accepted = [(found.name, "; ".join(found.message.splitlines())) for found in findings if found.is_accepted]
    return _list("Slower on purpose", [f"{code(name)}: {escape(message)}" for name, message in accepted])


def _is_told(found: Finding) -> bool:
    """Whether a test's reason is worth a place of its own."""
    return found.status is not Status.SAME or bool(found.notes or found.counters)


# --------------------------------------------------------------------------- one test


def _details(found: Finding) -> str:
    """Return a test's reason, blame and phases, folded away below the line that names it."""
    title = f"{_verdict(found)} {code(found.name)}"
    sentences = [escape(line) for line in _sentences(found)]
    if found.blame:
        title += f": {escape(found.blame)}"
    blocks = [f"{title_}:\n\n{_fenced('text', lines)}" for title_, lines in found.more.items() if lines]
    parts = (code(found.key), "<br>".join(sentences), _counted(found), _phases(found), *blocks)
    return _folded(title, "\n\n".join(part for part in parts if part))


def _counted(found: Finding) -> str:
    return _list("Exact counts that changed", [escape(count_text(change)) for change in found.counters])


def _sentences(found: Finding) -> list[str]:
    lines = [*found.message.splitlines(), *found.notes]
    return [line for line in lines if line.strip()][:_MOST_LINES]


_COLUMNS: tuple[tuple[str, str, Callable[[Finding], str]], ...] = (
    ("verdict", ":--", lambda found: _verdict(found)),
    ("test", ":--", lambda found: code(found.name)),
    ("change", "--:", lambda found: _change(found)),
    ("99 % interval", "--:", lambda found: _interval(found)),
    ("since first", "--:", lambda found: "" if found.since_first is None else units.change(found.since_first)),
    ("exact counts", ":--", lambda found: _first_count(found)),
    ("was", "--:", lambda found: "" if found.was_s is None else units.seconds(found.was_s)),
    ("now", "--:", lambda found: "" if found.now_s is None else units.seconds(found.now_s)),
)


def _verdict(found: Finding) -> str:
    if found.is_accepted:
        return "☑️ accepted"
    if found.status is Status.SLOWER and not found.fails:
        return f"⚠️ {found.status.value}"
    return f"{LOOKS[found.status].emoji} {found.status.value}"


def _change(found: Finding) -> str:
    """Return the change of the time, in bold where that is what the verdict rests on."""
    return found.change_text if found.by_counts or not found.change_text else f"**{found.change_text}**"


def _first_count(found: Finding) -> str:
    """Return the first of the counts that changed, and how many others did."""
    if not found.counters:
        return ""
    first = escape(count_text(found.counters[0]))
    others = f" and {len(found.counters) - 1} more" if len(found.counters) > 1 else ""
    return f"**{first}**{others}" if found.by_counts else f"{first}{others}"


def _interval(found: Finding) -> str:
    if found.change is None:
        return ""
    return f"{units.change(found.change.low)} to {units.change(found.change.high)}"


def _table(findings: Sequence[Finding]) -> str:
    if not findings:
        return ""
    kept = [column for column in _COLUMNS if any(column[2](found) for found in findings)]
    rows = [[text(found) for _, _, text in kept] for found in findings]
    return _grid([title for title, _, _ in kept], [align for _, align, _ in kept], rows)


def _phases(found: Finding) -> str:
    if not found.phases:
        return ""
    rows = [
        [
            f"{'&nbsp;' * 4 * row.depth}{escape(row.name)}",
            "" if row.was_s is None else units.seconds(row.was_s),
            units.seconds(row.total_s),
            "" if row.change_s is None else f"**{units.signed_seconds(row.change_s)}**",
            units.percent(row.share, signed=False),
            "" if row.count is None else f"{row.count:.3g}",
        ]
        for row in found.phases
    ]
    titles = ["phase", "was", "now", "adds to the change", "share of a call", "entries a call"]
    table = _grid(titles, [":--", *["--:"] * 5], rows)
    return f"{table}\n\n{escape(found.phases_note)}" if found.phases_note else table


def _phase_tables(findings: Sequence[Finding]) -> str:
    tables = [f"{code(found.name)}\n\n{_phases(found)}" for found in findings if found.phases and not _is_told(found)]
    return "\n\n".join(tables)


# --------------------------------------------------------------------------- Markdown


def code(text: str) -> str:
    """Return untrusted text as code, in one line; GitHub looks for neither mentions nor references there."""
    return f"<code>{_entities(_one_line(text))}</code>"


def escape(text: str) -> str:
    """Return untrusted text as nothing but text, in one line: no markup, no link, no mention, no reference."""
    # What GitHub looks for in the rendered text is torn apart by a space that has no width.
    return re.sub(r"(&#64;|&#35;|GH(?=-))", r"\1&#8203;", _entities(_one_line(text))).replace("www.", "www&#46;")


def _one_line(text: str, longest: int = _LONGEST) -> str:
    """Return text cut to a length one can read; what cannot be seen, line breaks too, is spelt out."""
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _entities(text: str) -> str:
    return "".join(char if char.isalnum() or char in _SAFE or char > "\x7f" else f"&#{ord(char)};" for char in text)


def _fenced(language: str, lines: Sequence[str]) -> str:
    """Return lines as a block of code whose fence is longer than any in it."""
    if not lines:
        return ""
    more = [f"… and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    text = "\n".join([*(_one_line(line, _LONGEST_COMMAND) for line in lines[:_MOST_LINES]), *more])
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"


def _grid(titles: Sequence[str], aligns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, aligns, *rows))


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>" if text else ""


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    more = [f"… and {len(lines) - _MOST_LINES} more"] if len(lines) > _MOST_LINES else []
    return "\n".join([f"{title}:", "", *(f"- {line}" for line in [*lines[:_MOST_LINES], *more])])
