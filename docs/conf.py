"""How Sphinx builds the documentation: `.ci/docs` does it in a fresh environment, with warnings as errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from pytest_rlperf import fixtures
from pytest_rlperf.options import OPTIONS, Option

project = "pytest-rlperf"
author = "the pytest-rlperf authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = False
myst_heading_anchors = 4
copybutton_prompt_text = "$ "
pygments_style = "default"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings give shapes and units
autodoc_preserve_defaults = True
nitpicky = True
smartquotes = False  # `--rlperf` keeps its hyphens
suppress_warnings = ["myst.header"]  # the changelog's headings repeat


def option_rows(options: tuple[Option, ...] = OPTIONS) -> Iterator[tuple[str, str, str]]:
    """Yield the table of options: the name, the places where it can be set, and the meaning."""
    for option in options:
        name = option.name.removesuffix("_s")
        places = {"flag": option.flag is not None, "ini": option.ini, "marker": option.marker}
        value = f"={option.metavar}" if option.bare is None else f"[={option.metavar}]"
        shown = f"{option.flag}{value}" if option.metavar else option.flag
        yield (
            f"`{shown or (f'rlperf_{name}' if option.ini else name)}`",
            ", ".join(place for place, is_there in places.items() if is_there),
            re.sub(r"--rlperf[\w-]*", r"`\g<0>`", option.help.replace("%%", "%")),
        )


def options_table() -> str:
    """Return the options as a table in Markdown."""
    rows = [("option", "set by", "meaning"), ("---",) * 3, *option_rows()]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |\n" for row in rows)


def fixture_entries() -> str:
    """Return the fixtures as reStructuredText: the signature of what each returns, and its docstring."""
    names = [name for name in vars(fixtures) if name in fixtures.CALLS]
    return "\n".join(_entry(name, getattr(fixtures, name)) for name in names)


def _entry(name: str, fixture: Any) -> str:
    measure = inspect.unwrap(fixture)(None)
    parameters = inspect.signature(measure).parameters.values()
    signature = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
    doc = inspect.getdoc(inspect.unwrap(fixture)) or ""
    indented = "\n".join(f"   {line}".rstrip() for line in doc.splitlines())
    return f".. py:function:: {name}{signature}\n\n{indented}\n"


GENERATED = {"<!-- options -->": options_table, "<!-- fixtures -->": fixture_entries}


def _fill_in(app: Any, name: str, source: list[str]) -> None:
    """Put what the code knows in the place of its mark."""
    for mark, generate in GENERATED.items():
        source[0] = source[0].replace(mark, generate())


def setup(app: Any) -> None:
    """Register with Sphinx, which calls this."""
    app.connect("source-read", _fill_in)
