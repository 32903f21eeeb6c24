"""Comments a gate's verdict on its pull request, from the artifact that the gate's job has uploaded.

    python -m pytest_rlperf.report.github_comment --post          in a job of ``workflow_run``
    python -m pytest_rlperf.report.github_comment ARTIFACT.zip    prints the comment

The job that may write comments has nothing installed, so this needs the standard library only. Which pull request it
comments on comes from the event and GitHub's API, never from the artifact, which anybody may have made: that is read
within limits. ``--post`` reads GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN and RLPERF_ARTIFACT,
the artifact's name.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import stat
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pytest_rlperf.report.github import Page, command, render
from pytest_rlperf.report.merge import machine_lines
from pytest_rlperf.report.run_json import ReadingError, RunFile, decoded, read_document

MARKER = "<!-- pytest-rlperf -->"
COMMENT_BYTES = 65_536  # GitHub's limit is as many characters
ARTIFACT_BYTES = 5 * 1024 * 1024  # of the zip, and of the JSON in it
_ENTRIES_MOST = 20
_TESTS_MOST = 5000
_AUTHOR = "github-actions[bot]"
_PAGE = 100
_PAGES_MOST = 30  # of comments; a pull request with more gets a second comment of ours
_LIMIT_S = 30.0
_ANSWER_BYTES = 64 * 1024 * 1024  # a hundred comments of 64 KiB, each character written as an escape
_HOPS_MOST = 3
_ADVICE = {
    401: "GITHUB_TOKEN is not accepted",
    403: "does the job have pull-requests: write and actions: read?",
    404: "does the job have pull-requests: write and actions: read?",
}
_VARIABLES = ("GITHUB_API_URL", "GITHUB_REPOSITORY", "GITHUB_TOKEN", "RLPERF_ARTIFACT")
_T = TypeVar("_T")


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
    page = Page(
        outcomes=list(run.tests.values()),
        strict=run.strict,
        skipped={},
        failed=run.failed,
        compared=run.compared,
        environment=(),
        facts=[*run.notes, *machine_lines(run)],
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
        # Of the other ways to compress, zipfile unpacks a whole block however little of it is read.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ArtifactError(f"the artifact's entry {entry.filename!r} is compressed as GitHub compresses none")
        if entry.file_size > ARTIFACT_BYTES:
            raise ArtifactError(f"the artifact's entry {entry.filename!r} has {entry.file_size} bytes when unpacked")


# --------------------------------------------------------------------------- GitHub's API


class ApiError(Exception):
    """GitHub's API, or the event of this job, is not as GitHub documents it; the text is a sentence."""


class Api:
    """GitHub's API for one repository. Every fault in an answer is an ApiError."""

    def __init__(self, base_url: str, repository: str, token: str) -> None:
        self._base = f"{base_url}/repos/{repository}"
        self._token = token

    def get(self, path: str, **query: str | int) -> Any:
        """Return the API's answer, whatever JSON it is."""
        data = self._call("GET", f"{path}?{urllib.parse.urlencode(query)}")
        try:
            return decoded(data)
        except ReadingError as error:
            raise ApiError(f"GitHub's answer to {path} is {error}") from None

    def pages(self, path: str) -> Iterator[Any]:
        """Yield the entries of a list, page by page."""
        for number in range(1, _PAGES_MOST + 1):
            entries = _list(self.get(path, per_page=_PAGE, page=number), path)
            yield from entries
            if len(entries) < _PAGE:
                return

    def download(self, path: str, limit_bytes: int) -> bytes:
        """Return a file, which lies on another host, or one byte more than the limit where it is longer."""
        return self._call("GET", path, limit_bytes=limit_bytes + 1, hops=_HOPS_MOST)

    def send(self, method: str, path: str, body: Mapping[str, str]) -> None:
        """Send a body."""
        self._call(method, path, json.dumps(body).encode())

    def _call(
        self, method: str, path: str, body: bytes | None = None, limit_bytes: int = _ANSWER_BYTES, hops: int = 0
    ) -> bytes:
        """Return an answer's body, which is led to over ``hops`` redirections at most."""
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        asked, url = f"{method} {path.partition('?')[0]}", f"{self._base}{path}"
        try:
            request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - GitHub's own
            # Artifacts lie on another host, which the API leads to: the token must not go there.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
            opener = urllib.request.build_opener(_Redirections(hops))
            with opener.open(request, timeout=_LIMIT_S) as answer:
                data: bytes = answer.read(limit_bytes)
                return data
        except urllib.error.HTTPError as error:
            error.close()
            advice = _ADVICE.get(error.code, "run the job again" if error.code >= 500 else "look at the job's set-up")
            raise ApiError(f"GitHub's API answers {asked} with {error.code}; {advice}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiError(f"GitHub's API does not answer {asked}: {error!r}; run the job again") from None


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows as many redirections of a GET as it is given, and to the web alone."""

    def __init__(self, left: int) -> None:
        self._left = left

    def redirect_request(self, *args: Any) -> urllib.request.Request | None:
        """Return the next request; ApiError where there is to be none."""
        request, url = args[0], args[-1]
        self._left -= 1
        if self._left < 0 or urllib.parse.urlsplit(url).scheme not in ("https", request.type):
            raise ApiError(f"GitHub's API leads {request.get_method()} {request.selector} to another place")
        return super().redirect_request(*args)


def _list(value: object, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise ApiError(f"GitHub's answer to {place} is no list")
    return value


def _part(value: object, name: str, kind: type[_T]) -> _T:
    """Return a part of an answer or of the event; ApiError where there is none of that kind."""
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ApiError(f"GitHub's answer has {name!r} as {type(found).__name__}, expected {kind.__name__}")
    return found


def find_pull(api: Api, run: object) -> int | None:
    """Return the number of the open pull request whose head the run measured, None where there is none.

    Looked up by the head's repository, branch and commit: the event names no pull request where that is a fork's.
    """
    repository, branch = _repository(run), run.get("head_branch") if isinstance(run, dict) else None
    if repository is None or branch is None:
        return None  # the fork or its branch is gone
    owner, sha = repository.partition("/")[0], _part(run, "head_sha", str)
    for pull in _list(api.get("/pulls", state="open", head=f"{owner}:{branch}", per_page=_PAGE), "/pulls"):
        # With another commit there was a push since, and another run will comment.
        head = _part(pull, "head", dict)
        if _repository(head, "repo") == repository and _part(head, "sha", str) == sha:
            return _part(pull, "number", int)
    return None


def _repository(holder: object, name: str = "head_repository") -> str | None:
    """Return a repository's owner and name; None for one that was deleted, which GitHub calls null."""
    if isinstance(holder, dict) and holder.get(name, "") is None:
        return None
    return _part(_part(holder, name, dict), "full_name", str)


def find_artifact(api: Api, run_id: int, name: str) -> bytes | None:
    """Return the zip of a run's artifact, None where there is none; ArtifactError where it is too large to be one."""
    answer = api.get(f"/actions/runs/{run_id}/artifacts", name=name, per_page=_PAGE)
    found = [
        (_part(artifact, "id", int), _part(artifact, "size_in_bytes", int))
        for artifact in _part(answer, "artifacts", list)
        if _part(artifact, "name", str) == name and not _part(artifact, "expired", bool)
    ]
    if not found:
        return None
    number, size = max(found)  # of the last attempt
    if size > ARTIFACT_BYTES:
        raise ArtifactError(f"the artifact has {size} bytes; a run's is never over {ARTIFACT_BYTES}")
    return api.download(f"/actions/artifacts/{number}/zip", ARTIFACT_BYTES)


def post(api: Api, pull: int, text: str) -> str:
    """Put our one comment on a pull request, and return whether it was made or updated."""
    for comment in api.pages(f"/issues/{pull}/comments"):
        # The author of a comment is null where the account is gone.
        author = comment.get("user") if isinstance(comment, dict) else None
        is_ours = isinstance(author, dict) and author.get("login") == _AUTHOR
        if is_ours and str(comment.get("body")).startswith(MARKER):
            api.send("PATCH", f"/issues/comments/{_part(comment, 'id', int)}", {"body": text})
            return "updated"
    api.send("POST", f"/issues/{pull}/comments", {"body": text})
    return "made"


def post_comment(environ: Mapping[str, str]) -> int:
    """Comment on the pull request of the run that has ended; 0 also where there is none, 1 where that failed."""
    try:
        run = _event(environ)
        base_url, repository, token, artifact = (_variable(environ, name) for name in _VARIABLES)
        return _post_run(Api(base_url, repository, token), run, artifact)
    except (ArtifactError, ApiError) as error:
        _log("error", f"there is no comment: {error}")
        return 1


def _post_run(api: Api, run: object, artifact: str) -> int:
    """Comment on the pull request of a run, by its artifact of that name."""
    number, sha, url = _part(run, "id", int), _part(run, "head_sha", str), _part(run, "html_url", str)
    if not (re.fullmatch("[0-9a-f]{40,64}", sha) and re.fullmatch(r"https?://[\w.:/-]+", url)):
        raise ApiError("the event's run has no full commit, or no address of the web")
    pull = find_pull(api, run)
    if pull is None:
        return _log("notice", f"no open pull request has its head at {sha}: there is nothing to comment")
    link = f"[run {number}]({url}) of {sha[:12]}"
    data = find_artifact(api, number, artifact)
    text = comment_without_figures(link) if data is None else comment_of_zip(data, link)
    done = post(api, pull, text)
    return _log("notice", f"the comment on pull request {pull} was {done}")


def _event(environ: Mapping[str, str]) -> object:
    """Return the run that has ended, of which this job's event holds what GitHub knows."""
    path = _variable(environ, "GITHUB_EVENT_PATH")
    try:
        event = decoded(Path(path).read_bytes())
    except (OSError, ReadingError) as error:
        raise ApiError(f"GITHUB_EVENT_PATH={path} cannot be read: {error}") from None
    return _part(event, "workflow_run", dict)


def _variable(environ: Mapping[str, str], name: str) -> str:
    if not environ.get(name):
        raise ApiError(f"{name} is not set: run this in a job of workflow_run, as docs/github-actions.md shows")
    return environ[name]


def _log(level: str, text: str) -> int:
    sys.stdout.buffer.write(f"{command(level, text, title='pytest-rlperf')}\n".encode("utf-8", "backslashreplace"))
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
