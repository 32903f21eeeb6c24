"""A pull request's comment from a run's JSON: ``python -m pytest_rlperf.report.github_comment ARTIFACT.zip``.

Needs the standard library alone, so that the job that may write comments has nothing to install.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_rlperf.report.github_artifact import ARTIFACT_BYTES, ArtifactError, Document, parse, read_document, unzip
from pytest_rlperf.report.github_markdown import Page, render

MARKER = "<!-- pytest-rlperf -->"
COMMENT_BYTES = 65_536  # GitHub's limit is as many characters


def comment_markdown(json_document: Mapping[str, object], link: str = "") -> str:
    """Return the comment on a run's JSON, in at most 65,536 bytes, the hidden marker first.

    ``link`` is Markdown of one's own making that names the run. ArtifactError where the JSON is not a run's.
    """
    return _comment(read_document(json_document), link)


def comment_of_zip(data: bytes, link: str = "") -> str:
    """Return the comment on the run whose JSON lies in an artifact; ArtifactError says what is wrong with it."""
    return _comment(parse(unzip(data)), link)


def comment_without_figures(link: str) -> str:
    """Return the comment on a run that ended before there were figures."""
    return f"{MARKER}\n## ⚠️ The performance gate ended without figures\n\nIts log says why: {link}\n"


def _comment(document: Document, link: str) -> str:
    page = Page(
        findings=document.findings,
        unmeasured=dict.fromkeys(document.failed, "failed"),
        compared=document.compared,
        environment=(),
        facts=[*document.notes, document.machine],
        command="",
        link=link,
    )
    return render(page, COMMENT_BYTES, prefix=f"{MARKER}\n")


def main(argv: Sequence[str]) -> int:
    """Print the comment on an artifact's run, and return 0; 2 where there is no such run in it."""
    if len(argv) != 1:
        sys.stderr.write("usage: python -m pytest_rlperf.report.github_comment ARTIFACT.zip\n")
        return 2
    try:
        with Path(argv[0]).open("rb") as file:
            text = comment_of_zip(file.read(ARTIFACT_BYTES + 1))
    except (ArtifactError, OSError) as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
        return 2
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
