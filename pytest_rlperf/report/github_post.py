"""Posts a gate's verdict on its pull request, as ``python -m pytest_rlperf.report.github_post`` in a ``workflow_run``.

Which pull request that is comes from the event and GitHub's API, never from the artifact, which anybody may have made.
Reads GITHUB_EVENT_PATH, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN and RLPERF_ARTIFACT, the artifact's name.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_rlperf.report.github_artifact import ARTIFACT_BYTES, ArtifactError
from pytest_rlperf.report.github_commands import command
from pytest_rlperf.report.github_comment import MARKER, comment_of_zip, comment_without_figures

AUTHOR = "github-actions[bot]"
_PAGE = 100
_MOST_PAGES = 30  # of comments; a pull request with more gets a second comment of ours
_LIMIT_S = 30.0


class Api:
    """GitHub's API for one repository."""

    def __init__(self, base_url: str, repository: str, token: str) -> None:
        self._base = f"{base_url}/repos/{repository}"
        self._token = token

    def get(self, path: str, **query: str | int) -> Any:
        """Return what the API answers."""
        return json.loads(self._call("GET", f"{path}?{urllib.parse.urlencode(query)}"))

    def pages(self, path: str) -> Iterator[Any]:
        """Yield the entries of a list, page by page."""
        for number in range(1, _MOST_PAGES + 1):
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
    """Return the number of the open pull request whose head is what the run measured, None where there is none.

    Looked up by the head's repository, branch and commit: the event names no pull request where that is a fork's.
    """
    repository = run["head_repository"]
    owner, branch = repository["owner"]["login"], run["head_branch"]
    for pull in api.get("/pulls", state="open", head=f"{owner}:{branch}", per_page=_PAGE):
        head = pull["head"]
        is_same_repository = head["repo"] is not None and head["repo"]["full_name"] == repository["full_name"]
        # With another commit there was a push since, and another run will have the word.
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
    """Put our one comment on a pull request, and say whether it was made or updated."""
    for comment in api.pages(f"/issues/{pull}/comments"):
        if comment["user"]["login"] == AUTHOR and str(comment["body"]).startswith(MARKER):
            api.send("PATCH", f"/issues/comments/{int(comment['id'])}", {"body": text})
            return "updated"
    api.send("POST", f"/issues/{pull}/comments", {"body": text})
    return "made"


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Comment on the pull request of the run that has ended; 0 also where there is none, 1 where that failed."""
    run = json.loads(Path(environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))["workflow_run"]
    api = Api(environ["GITHUB_API_URL"], environ["GITHUB_REPOSITORY"], environ["GITHUB_TOKEN"])
    link = f"[run {int(run['id'])}]({run['html_url']}) of {run['head_sha'][:12]}"
    try:
        pull = find_pull(api, run)
        if pull is None:
            return _tell(
                "notice", f"no open pull request has its head at {run['head_sha']}: there is nothing to comment"
            )
        data = find_artifact(api, int(run["id"]), environ["RLPERF_ARTIFACT"])
        text = comment_without_figures(link) if data is None else comment_of_zip(data, link)
        done = post(api, pull, text)
    except ArtifactError as error:
        _tell("error", f"there is no comment: {error}")
        return 1
    except urllib.error.URLError as error:
        _tell("error", f"GitHub's API does not answer as expected: {error}; does the job have pull-requests: write?")
        return 1
    return _tell("notice", f"the comment on pull request {pull} was {done}")


def _tell(level: str, text: str) -> int:
    sys.stdout.write(f"{command(level, text, title='pytest-rlperf')}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
