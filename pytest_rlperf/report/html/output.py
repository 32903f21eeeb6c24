"""Where the page is written, and what it takes from plotly."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from pytest_rlperf.report.files import OutputError, check_file, write_file

_OPTION = "--rlperf-html"


def check_html(path: Path) -> None:
    """Raise OutputError, before any time is spent on measuring, where a page could not be made or written."""
    if importlib.util.find_spec("plotly") is None:
        raise _without_plotly()
    check_file(_OPTION, path)


def write_html(path: Path, page: str) -> None:
    """Write a page, and the directories it lies in; OutputError where that fails."""
    write_file(_OPTION, path, page)


def plotly_source() -> str:
    """Return plotly.js, about 5 MB, as it can stand in a script element; OutputError without plotly."""
    try:
        offline = importlib.import_module("plotly.offline")
    except ImportError:
        raise _without_plotly() from None
    source: str = offline.get_plotlyjs()
    # In its strings, the only place for them, the backslash means nothing.
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _without_plotly() -> OutputError:
    return OutputError(f"{_OPTION} draws its charts with plotly, which is missing: pip install 'pytest-rlperf[html]'")
