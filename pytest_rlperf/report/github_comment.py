"""Comments a gate's verdict on its pull request, from the artifact that the gate's job has uploaded.

    python -m pytest_rlperf.report.github_comment --post          in a job of ``workflow_run``
    python -m pytest_rlperf.report.github_comment ARTIFACT.zip    prints the comment

The job that may write comments has nothing installed, so this needs the standard library only. Which pull request it
comments on comes from the event and GitHub's API, never from the artifact, which anybody may have made: that is read
within limits. ``--post`` reads GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN and RLPERF_ARTIFACT,
the artifact's name.
"""

from __future__ import annotations

import io
import json
import os
import stat
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_rlperf.report.github import Page, command, render
from pytest_rlperf.report.run_json import ReadingError, RunFile, decoded, read_document
from pytest_rlperf.report.statuses import Unmeasured

MARKER = "<!-- pytest-rlperf -->"
COMMENT_BYTES = 65_536  # GitHub's limit is as many characters
ARTIFACT_BYTES = 5 * 1024 * 1024  # of the zip, and of the JSON in it
_ENTRIES_MOST = 20
_TESTS_MOST = 5000
_AUTHOR = "github-actions[bot]"
_PAGE = 100
_PAGES_MOST = 30  # of comments; a pull request with more gets a second comment of ours
_LIMIT_S = 30.0


class ArtifactError(ValueError):
    """An artifact is not as a run writes it; the text names the fault, and the way out."""


def main(argv: Sequence[str]) -> int:
    """Post the comment, or print that on an artifact's run; 0, or where that fails 1 or 2."""
    if list(argv) == ["--post"]:
        return post_comment(os.environ)
    if len(argv) != 1:
        sys.stderr.write("usage: python -m pytest_rlperf.report.github_comment --post | ARTIFACT.zip\n")
        return 2
    try:
        with Path(argv[0]).open("rb") as file:
            text = comment_of_zip(file.read(ARTIFACT_BYTES + 1))
    except (ArtifactError, OSError) as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
        return 2
    sys.stdout.buffer.write(text.encode())
    return 0


# --------------------------------------------------------------------------- the comment


def comment_of_zip(data: bytes, link: str = "") -> str:
    """Return the comment on the run whose JSON lies in an artifact; ArtifactError names the artifact's fault."""
    text = unzip(data)
    try:
        document = decoded(text)
    except ReadingError as error:
        raise ArtifactError(f"the artifact's file cannot be read: {error}") from None
    return comment_markdown(document, link)


def comment_markdown(document: object, link: str = "") -> str:
    """Return the comment on a run's JSON, in at most 65,536 bytes, the hidden marker first.

    ``link`` is Markdown of one's own making that names the run. ArtifactError where the JSON is not a run's.
    """
    try:
        run = read_document(document, tests_most=_TESTS_MOST)
    except ReadingError as error:
        raise ArtifactError(
            f"the artifact's file cannot be read: {error}; the comment workflow needs the version that measured, "
            "or a later one"
        ) from None
    if not isinstance(run, RunFile):
        raise ArtifactError("the artifact's file is a self-check: only a measured run can be shown")
    machine = run.machine
    page = Page(
        outcomes=list(run.tests.values()),
        strict=False,
        unmeasured=dict.fromkeys(run.failed, Unmeasured()),
        compared=run.compared,
        environment=(),
        facts=[*run.notes, ", ".join((machine.cpu, machine.system, machine.arch, machine.python))],
        command="",
        link=link,
        brief=True,
    )
    return render(page, COMMENT_BYTES, prefix=f"{MARKER}\n")


def comment_without_figures(link: str) -> str:
    """Return the comment on a run that ended before there were figures."""
    return f"{MARKER}\n## ⚠️ The performance gate ended without figures\n\nIts log has the reason: {link}\n"


# --------------------------------------------------------------------------- the artifact


def unzip(data: bytes) -> bytes:
    """Return the one JSON file in a zip, which is never written to disk; ArtifactError where the zip has any trick."""
    if len(data) > ARTIFACT_BYTES:
        raise ArtifactError(f"the artifact has {len(data)} bytes; a run's is never over {ARTIFACT_BYTES}")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            _refuse_tricks(entries)
            found = [entry for entry in entries if entry.filename.endswith(".json")]
            if len(found) != 1:
                raise ArtifactError(
                    f"the artifact holds {len(found)} JSON files: upload the file of --rlperf-json alone"
                )
            with archive.open(found[0]) as file:
                # The directory of a zip may lie about sizes: no more is read than is allowed.
                text = file.read(ARTIFACT_BYTES + 1)
    except ArtifactError:
        raise
    except Exception as error:  # zipfile and the decompressors raise whatever they like on bytes that anybody made
        raise ArtifactError(f"the artifact is no zip that can be read: {error}") from None
    if len(text) > ARTIFACT_BYTES:
        raise ArtifactError(f"{found[0].filename!r} has over {ARTIFACT_BYTES} bytes")
    return text


def _refuse_tricks(entries: list[zipfile.ZipInfo]) -> None:
    """Raise ArtifactError for names that lead elsewhere, links, and more or larger entries than a run makes."""
    if len(entries) > _ENTRIES_MOST:
        raise ArtifactError(f"the artifact has {len(entries)} entries; a run's has one")
    for entry in entries:
        parts = entry.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in entry.filename:
            raise ArtifactError(f"the artifact's entry {entry.filename!r} leads out of it")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise ArtifactError(f"the artifact's entry {entry.filename!r} is a link or a device, not a file")
        if entry.file_size > ARTIFACT_BYTES:
            raise ArtifactError(f"the artifact's entry {entry.filename!r} has {entry.file_size} bytes when unpacked")


# --------------------------------------------------------------------------- GitHub's API


class Api:
    """GitHub's API for one repository."""

    def __init__(self, base_url: str, repository: str, token: str) -> None:
        self._base = f"{base_url}/repos/{repository}"
        self._token = token

    def get(self, path: str, **query: str | int) -> Any:
        """Return the API's answer."""
        return json.loads(self._call("GET", f"{path}?{urllib.parse.urlencode(query)}"))

    def pages(self, path: str) -> Iterator[Any]:
        """Yield the entries of a list, page by page."""
        for number in range(1, _PAGES_MOST + 1):
            entries = self.get(path, per_page=_PAGE, page=number)
            yield from entries
            if len(entries) < _PAGE:
                return

    def download(self, path: str, limit_bytes: int) -> bytes:
        """Return a file, or one byte more than the limit where it is longer."""
        return self._call("GET", path, limit_bytes=limit_bytes + 1)

    def send(self, method: str, path: str, body: Mapping[str, str]) -> None:
        """Send a body."""
        self._call(method, path, json.dumps(body).encode())

    def _call(self, method: str, path: str, body: bytes | None = None, limit_bytes: int = -1) -> bytes:
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        request = urllib.request.Request(f"{self._base}{path}", body, headers, method=method)  # noqa: S310 - GitHub's own URL
        # Artifacts lie on another host, which the API leads to: the token must not go there.
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310 - likewise
            data: bytes = answer.read(limit_bytes) if limit_bytes >= 0 else answer.read()
            return data


def find_pull(api: Api, run: Mapping[str, Any]) -> int | None:
    """Return the number of the open pull request whose head the run measured, None where there is none.

    Looked up by the head's repository, branch and commit: the event names no pull request where that is a fork's.
    """
    repository = run["head_repository"]
    owner, branch = repository["owner"]["login"], run["head_branch"]
    for pull in api.get("/pulls", state="open", head=f"{owner}:{branch}", per_page=_PAGE):
        head = pull["head"]
        is_same_repository = head["repo"] is not None and head["repo"]["full_name"] == repository["full_name"]
        # With another commit there was a push since, and another run will comment.
        if is_same_repository and head["sha"] == run["head_sha"]:
            return int(pull["number"])
    return None


def find_artifact(api: Api, run_id: int, name: str) -> bytes | None:
    """Return the zip of a run's artifact, None where there is none; ArtifactError where it is too large to be one."""
    answer = api.get(f"/actions/runs/{run_id}/artifacts", name=name, per_page=_PAGE)
    found = [artifact for artifact in answer["artifacts"] if artifact["name"] == name and not artifact["expired"]]
    if not found:
        return None
    artifact = max(found, key=lambda entry: int(entry["id"]))  # of the last attempt
    if artifact["size_in_bytes"] > ARTIFACT_BYTES:
        raise ArtifactError(
            f"the artifact has {artifact['size_in_bytes']} bytes; a run's is never over {ARTIFACT_BYTES}"
        )
    return api.download(f"/actions/artifacts/{int(artifact['id'])}/zip", ARTIFACT_BYTES)


def post(api: Api, pull: int, text: str) -> str:
    """Put our one comment on a pull request, and return whether it was made or updated."""
    for comment in api.pages(f"/issues/{pull}/comments"):
        if comment["user"]["login"] == _AUTHOR and str(comment["body"]).startswith(MARKER):
            api.send("PATCH", f"/issues/comments/{int(comment['id'])}", {"body": text})
            return "updated"
    api.send("POST", f"/issues/{pull}/comments", {"body": text})
    return "made"


def post_comment(environ: Mapping[str, str]) -> int:
    """Comment on the pull request of the run that has ended; 0 also where there is none, 1 where that failed."""
    run = json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))["workflow_run"]
    api = Api(environ["GITHUB_API_URL"], environ["GITHUB_REPOSITORY"], environ["GITHUB_TOKEN"])
    link = f"[run {int(run['id'])}]({run['html_url']}) of {run['head_sha'][:12]}"
    try:
        pull = find_pull(api, run)
        if pull is None:
            return _log(
                "notice", f"no open pull request has its head at {run['head_sha']}: there is nothing to comment"
            )
        data = find_artifact(api, int(run["id"]), environ["RLPERF_ARTIFACT"])
        text = comment_without_figures(link) if data is None else comment_of_zip(data, link)
        done = post(api, pull, text)
    except ArtifactError as error:
        _log("error", f"there is no comment: {error}")
        return 1
    except urllib.error.URLError as error:
        _log("error", f"GitHub's API does not answer as expected: {error}; does the job have pull-requests: write?")
        return 1
    return _log("notice", f"the comment on pull request {pull} was {done}")


def _log(level: str, text: str) -> int:
    sys.stdout.write(f"{command(level, text, title='pytest-rlperf')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
