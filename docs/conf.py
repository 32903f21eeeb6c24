"""How Sphinx builds the documentation: `.ci/docs` does it in a fresh environment, with warnings as errors."""

from __future__ import annotations

project = "pytest-rlperf"
author = "the pytest-rlperf authors"
extensions = ["myst_parser", "sphinx_copybutton"]
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
nitpicky = True
smartquotes = False  # `--rlperf` keeps its hyphens
suppress_warnings = ["myst.header"]  # the changelog's headings repeat
