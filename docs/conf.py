"""How Sphinx builds the site: `.ci/docs` does it in a fresh environment, with warnings as errors.

Its pages are those that GitHub shows, links included: the source is the repository, and no page has a directive. The
navigation is the list of pages in docs/README.md.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pygments.lexers.shell import BashLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INDEX = Path(__file__).with_name("README.md")

project = "pytest-rlperf"
author = "the pytest-rlperf authors"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "examples/README.md"]
exclude_patterns = [".*", "baselines", "benchmarks", "build", "dist", "docs/_build", "pytest_rlperf", "tests"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_copyright = False
myst_heading_anchors = 4
pygments_style = "default"
nitpicky = True
smartquotes = False  # `--rlperf` keeps its hyphens
suppress_warnings = ["myst.header"]  # the changelog's headings repeat


def navigation() -> str:
    """Return a hidden toctree for each section of the list of pages."""
    parts = ["```{toctree}\n:hidden:\n\ndocs/README\n```\n"]
    for section in INDEX.read_text(encoding="utf-8").split("\n## ")[1:]:
        caption, _, text = section.partition("\n")
        pages = [f"/docs/{page}" for page in re.findall(r"^- \[[^\]]+\]\((\S+)\.md\)", text, re.MULTILINE)]
        parts.append("\n".join([f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *pages, "```\n"]))
    return "\n".join(parts).replace("/docs/../", "/")


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Put the navigation at the end of the first page."""
    if page == root_doc:
        source[0] += f"\n{navigation()}"


def write_index(app: Sphinx, error: Exception | None) -> None:
    """Write the first page also under the name that web servers show for a directory."""
    if error is None:
        shutil.copy(app.outdir / f"{root_doc}.html", app.outdir / "index.html")


def setup(app: Sphinx) -> None:
    """Connect both to the build, and colour commands, which have no prompt."""
    app.add_lexer("console", BashLexer)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", write_index)
