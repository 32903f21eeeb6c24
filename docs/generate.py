"""Write what pages have from the code, and whole files, between two marks each: ``python docs/generate.py``."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from html import unescape
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest_rlperf
from pytest_rlperf import fixtures, timers
from pytest_rlperf.cli import COMMANDS, main
from pytest_rlperf.cli.command import Command
from pytest_rlperf.counters.instrument import NAMES
from pytest_rlperf.options import OPTIONS, Option
from pytest_rlperf.timers import files

DOCS = Path(__file__).parent
ROOT = DOCS.parent
_SHOWN = (bool, float, int, str, type(None))  # defaults that a signature shows

_RESULT = ("measured", "name", "clock", "call_s", "mean_call_s", "items_per_s", "phase")
_ERRORS = ("PerformanceRegression", "ComponentError", "MeasurementError", "NotMeasuredError")
_TIMERS = (
    *("hierarchical_timer", "timed", "snapshot", "reset", "merge_tree", "enable", "disable", "is_recording"),
    *("recording", "recording_into", "child_environment"),
)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def option_rows(options: tuple[Option, ...] = OPTIONS) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of pytest's options: the name, the places where it can be set, and the meaning."""
    for option in options:
        if option.help == argparse.SUPPRESS:
            continue
        name = option.name.removesuffix("_s")
        places = {"flag": option.flag is not None, "ini": option.ini, "marker": option.marker}
        value = f"={option.metavar}" if option.bare is None else f"[={option.metavar}]"
        shown = f"{option.flag}{value}" if option.metavar else option.flag
        yield (
            f"`{shown or (f'rlperf_{name}' if option.ini else name)}`",
            ", ".join(place for place, is_there in places.items() if is_there),
            _flags_as_code(option.help.replace("%%", "%")),
        )


def options() -> str:
    """Return the options of pytest as a table."""
    return table(("option", "set by", "meaning"), option_rows())


def commands() -> str:
    """Return the commands, each with its arguments as a table."""
    return "\n".join(_command(command) for command in COMMANDS)


def _command(command: Command) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    rows = [(_invocation(action), _flags_as_code(_help(action))) for action in parser._actions]
    more, example, code = " ".join((parser.epilog or "").split()).partition("For example: ")
    words = " ".join(
        part for part in (_flags_as_code(command.help), _flags_as_code(more), code and f"{example}`{code}`.") if part
    )
    return f"### rlperf {command.name}\n\n{words}\n" + (f"\n{table(('argument', 'meaning'), rows)}" if rows else "")


def _invocation(action: argparse.Action) -> str:
    shown = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = " ".join(shown) if isinstance(shown, tuple) else shown
    flags = ", ".join(action.option_strings)
    return f"`{f'{flags} {value}' if flags and action.nargs != 0 else flags or value}`"


def _help(action: argparse.Action) -> str:
    default = "" if action.default is None else action.default
    return (action.help or "").replace("%(default)r", repr(default)).replace("%(default)s", str(default))


def _flags_as_code(text: str) -> str:
    words, such_as, command = text.partition("such as: ")
    marked = re.sub(r"(?<![\w`-])--[a-z][\w-]*(=[\w/.:]+)?", r"`\g<0>`", words)
    return f"{marked}such as `{command}`" if such_as else marked


def fixture_calls() -> str:
    """Return the fixtures: how each is called, what it measures, what it expects, and its errors."""
    made = {name: inspect.unwrap(getattr(fixtures, name)) for name in vars(fixtures) if name in fixtures.CALLS}
    calls = {name: fixture(SimpleNamespace(fixturename=name)) for name, fixture in made.items()}
    return _sections((_fixture_call(name, calls[name]), _doc(fixture)) for name, fixture in made.items())


def _fixture_call(name: str, measure: Callable[..., object]) -> str:
    called = _called(name, measure).removesuffix(")")
    return f"{called}{', ' if '*' in called else ', *, '}phases=None)"


def results() -> str:
    """Return the classes of results and verdicts, and the members of a result."""
    classes = [(name, _doc(getattr(pytest_rlperf, name))) for name in ("Result", "Verdict", "Status")]
    statuses = ", ".join(f"`{each.name}`" for each in pytest_rlperf.Status)
    described = [(name, f"{text} {statuses}." if name == "Status" else text) for name, text in classes]
    members = [(f"Result.{name}", getattr(pytest_rlperf.Result, name)) for name in _RESULT]
    return _sections([*described, *((_called(*each), _doc(each[1])) for each in members)])


def errors() -> str:
    """Return the errors."""
    return _sections((name, _doc(getattr(pytest_rlperf, name))) for name in _ERRORS)


def timer_functions() -> str:
    """Return the functions of timers."""
    found = [(name, getattr(timers, name)) for name in _TIMERS]
    return _sections((_called(*each), _doc(each[1])) for each in found)


def trace_functions() -> str:
    """Return the functions of files of timer trees, and the clock for tests."""
    found = [("timers.files." + name, getattr(files, name)) for name in ("read", "parse", "write")]
    found += [("timers.FakeClock", timers.FakeClock), ("timers.FakeClock.advance", timers.FakeClock.advance)]
    return _sections((_called(*each), _doc(each[1])) for each in found)


def counters() -> str:
    """Return the counters, each with its unit."""
    rows = ((f"`{name}`", "bytes" if name.endswith("_bytes") else "", meaning) for name, meaning in NAMES.items())
    return table(("counter", "unit", "what it counts"), rows)


def summary() -> str:
    """Return the job summary of a run that is stored as a sample, as a quotation."""
    with redirect_stdout(StringIO()) as printed:
        main(["show", str(ROOT / "tests" / "samples" / "run.json"), "--format=github"])
    return "".join(f"> {line}".rstrip() + "\n" for line in printed.getvalue().strip().splitlines())


def failure() -> str:
    """Return the text of the picture of a run that fails, without the command."""
    svg = (DOCS / "images" / "failure.svg").read_text(encoding="utf-8").partition('class="terminal-matrix"')[2]
    lines: dict[str, str] = {}
    for place, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg, re.DOTALL):
        lines[place] = lines.get(place, "") + unescape(text).replace("\xa0", " ").rstrip("\n")
    shown = "\n".join(line.rstrip() for line in list(lines.values())[1:])
    return f"```text\n{shown.strip()}\n```\n"


def _sections(described: Iterable[tuple[str, str]]) -> str:
    """Return a section for each of several things: how it is written in code, and its docstring."""
    return "\n".join(f"#### `{code}`\n\n{text}\n" for code, text in described)


def _called(name: str, function: Any) -> str:
    """Return how something is called: its name alone where it is a property."""
    if not callable(function):
        return name
    parameters = [
        each.replace(annotation=inspect.Parameter.empty, default=_default(each.default))
        for each in inspect.signature(function).parameters.values()
        if each.name != "self"
    ]
    return f"{name}{inspect.Signature(parameters)}"


def _default(value: Any) -> Any:
    return value if value is inspect.Parameter.empty or type(value) in _SHOWN else _Any()


class _Any:
    """Stands for a default that a signature does not show."""

    def __repr__(self) -> str:
        return "…"


def _doc(thing: Any) -> str:
    """Return a docstring as Markdown, whose paragraphs are one line each."""
    text = re.sub(r":\w+:`[~.]*([^`]+)`", r"`\1`", inspect.getdoc(thing) or "").replace("``", "`")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


PARTS: dict[str, Callable[[], str]] = {
    "options": options,
    "commands": commands,
    "fixtures": fixture_calls,
    "results": results,
    "errors": errors,
    "timers": timer_functions,
    "traces": trace_functions,
    "counters": counters,
    "summary": summary,
    "failure": failure,
}
_NAMES = ("reference", "counters", "libraries", "github-actions", "reading-a-report")
PAGES = tuple(DOCS / f"{name}.md" for name in _NAMES)
# The marks of a file that a page shows are its path: GitHub renders no directive that includes it.
FILES = re.compile(r"<!-- (?P<path>[\w.-]+/[\w./-]+) -->\n.*?<!-- end of (?P=path) -->", re.DOTALL)
_LANGUAGES = {".py": "python", ".yml": "yaml"}


def shown_file(mark: re.Match[str]) -> str:
    """Return a file between its marks, as a block of code."""
    path = ROOT / mark["path"]
    block = f"```{_LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}```"
    return f"<!-- {mark['path']} -->\n\n{block}\n\n<!-- end of {mark['path']} -->"


def filled(text: str) -> str:
    """Return a page with what the code knows, and the files, between the marks."""
    for name, part in PARTS.items():
        before, mark, after = text.partition(f"<!-- {name} -->\n")
        if mark:
            end = f"<!-- end of {name} -->"
            text = f"{before}{mark}\n{part()}\n{end}{after.partition(end)[2]}"
    return FILES.sub(shown_file, text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
