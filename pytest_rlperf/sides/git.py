"""The user's git repository: read, never written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_rlperf.errors import SideError
from pytest_rlperf.model import Allowance
from pytest_rlperf.model.judged import TRAILER
from pytest_rlperf.sides.command import Completed, run

_LIMIT_S = 120.0
_CHECKOUT_LIMIT_S = 900.0
_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA_LIKE = re.compile(r"[0-9a-fA-F]{4,64}")
_OURS = ".git/pytest-rlperf"  # what tells a clone of ours from one of the user's
_SUBMODULE = "160000"  # the mode of one in git's lists
_AT_ONCE = 500  # file names on one command line
_DEEPEN = "git fetch --unshallow brings the rest of the history; for actions/checkout it is fetch-depth: 0"

# No hook of the user's runs, and nothing that outlives a command; nor is the index refreshed, which git diff does
# whatever GIT_OPTIONAL_LOCKS says.
_QUIET = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0", "-c", "maintenance.auto=0"),
    *("-c", "diff.autoRefreshIndex=false"),
)

# Whatever the user's settings say: a submodule counts with all that is in it, a renamed file as two.
_WHOLE = ("--ignore-submodules=none", "--no-renames")

# New files that git would take; bytecode is nobody's, also where git is not told to ignore it.
_NEW = ("--others", "--exclude-standard", "--exclude=__pycache__/")


@dataclass(frozen=True)
class Commit:
    """A commit, and what a report calls it."""

    sha: str
    title: str


@dataclass(frozen=True)
class _Change:
    """A line of ``git diff --raw``."""

    name: str
    mode_before: str
    mode_after: str
    blob_before: str
    blob_after: str
    status: str

    def is_doubtful(self) -> bool:
        """Whether it may be none: git has looked at the file's times alone, which are not those in its index."""
        alike = self.status == "M" and self.mode_before == self.mode_after != _SUBMODULE
        return alike and not self.blob_after.strip("0")


@dataclass(frozen=True)
class Repository:
    """A working tree of git's, with the commit that is checked out in it."""

    top: Path
    head: str

    def resolve(self, ref: str) -> Commit:
        """Return the commit that a ref means: of a branch its merge base with HEAD, of anything else itself."""
        for name in (ref, f"origin/{ref}"):
            sha = self._commit(name)
            if sha is None:
                continue
            if not self._is_branch(name):
                return Commit(sha, short(sha) if sha.startswith(ref.lower()) else f"{name} ({short(sha)})")
            base = self._merge_base(name, sha)
            return Commit(base, f"{name} (merge base {short(base)})")
        raise SideError(self._missing(ref))

    def has_commit(self, sha: str) -> bool:
        """Whether a full SHA names a commit of the local history: one that HEAD or a ref leads to."""
        if not _FULL_SHA.fullmatch(sha) or self._git("cat-file", "-e", f"{sha}^{{commit}}").code:
            return False
        if not self._git("merge-base", "--is-ancestor", sha, "HEAD").code:
            return True
        found = self._git("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={sha}")
        return not found.code and bool(found.out.strip())

    def is_dirty(self, baseline_dir: Path) -> bool:
        """Whether the working tree differs from HEAD, baselines and bytecode left out."""
        return bool(self._checked("status", "--porcelain", *_WHOLE, "--", *code_paths(self.top, baseline_dir)))

    def files(self) -> list[str]:
        """Return the files of the working tree, relative to its top: tracked ones, and new ones that git would take.

        Those of submodules that are checked out are among them.
        """
        listed = self._list("ls-files", "-z", "--cached", *_NEW)
        # A deleted file is still in the index, and a submodule is a directory.
        own = [name for name in listed if (path := self.top / name).is_symlink() or path.is_file()]
        here = [place for place in self.submodules() if (self.top / place / ".git").exists()]
        return [*own, *(f"{place}/{name}" for place in here for name in find_repository(self.top / place).files())]

    def submodules(self, sha: str | None = None) -> list[str]:
        """Return the places of a commit's submodules, checked out or not; without a commit those of the index."""
        if sha is not None:
            return [path for path, _ in self._submodules(sha)]
        entries = [entry.partition("\t") for entry in self._list("ls-files", "-z", "--stage")]
        return sorted({path for about, _, path in entries if about.startswith(f"{_SUBMODULE} ")})

    def differing(self, sha: str) -> list[str]:
        """Return the files by which the working tree may differ from a commit, relative to the top."""
        listed = self._list("diff", "--raw", "--no-abbrev", *_WHOLE, "--no-ext-diff", "-z", sha, "--")
        tracked = [_Change(name, *about[1:].split()) for about, name in zip(listed[::2], listed[1::2], strict=True)]
        same = set(self._same(change for change in tracked if change.is_doubtful()))
        new = self._list("ls-files", "-z", *_NEW)
        names = {change.name for change in tracked} - same
        return sorted(names.union(name for name in new if not name.endswith("/")))  # no repositories within this one

    def absent_submodules(self, sha: str) -> list[str]:
        """Return the submodules of a commit that are not checked out in the working tree."""
        return [path for path, _ in self._submodules(sha) if not (self.top / path / ".git").exists()]

    def check_out(self, sha: str, target: Path) -> None:
        """Put a clone with a commit checked out into an empty directory, with the submodules that are at hand.

        The clone borrows its objects; nothing is written to this repository, and nothing is fetched.
        """
        clone = ["clone", "--quiet", "--shared", "--no-checkout", "--template=", str(self.top), str(target)]
        self._checked(*clone, limit_s=_CHECKOUT_LIMIT_S)
        # Git does not lend from a shallow clone, and does not copy what only a detached HEAD leads to.
        objects = self.top / self._checked("rev-parse", "--git-path", "objects").rstrip("\n")
        alternates = target / ".git/objects/info/alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        alternates.write_bytes(bytes(objects.resolve()) + b"\n")
        (target / _OURS).touch()
        done = _git(target, "checkout", "--quiet", "--detach", "--force", sha, limit_s=_CHECKOUT_LIMIT_S)
        if done.code:
            partial = self._git("config", "--get-regexp", r"^remote\..*\.promisor$").out.strip()
            hint = ". This clone is partial: git fetch --refetch --no-filter completes it" if partial else ""
            raise SideError(f"cannot check out {short(sha)}: {_last_line(done)}{hint}")
        for path, wanted in self._submodules(sha):
            if (self.top / path / ".git").exists():
                self._check_out_submodule(path, wanted, target / path, short(sha))

    def _submodules(self, sha: str) -> list[tuple[str, str]]:
        """Return the path of each submodule of a commit, and the commit it takes of it."""
        entries = [entry.partition("\t") for entry in self._list("ls-tree", "-r", "-z", "--full-tree", sha)]
        return [(path, about.split()[2]) for about, _, path in entries if about.startswith(f"{_SUBMODULE} ")]

    def _same(self, doubtful: Iterable[_Change]) -> Iterator[str]:
        """Yield the files that hold what the commit has after all."""
        files = []
        for change in doubtful:
            path = self.top / change.name
            if not path.is_symlink():
                files.append(change)
            elif self._checked("cat-file", "blob", change.blob_before) == str(path.readlink()):
                yield change.name
        for start in range(0, len(files), _AT_ONCE):
            some = files[start : start + _AT_ONCE]
            blobs = self._checked("hash-object", "--", *(change.name for change in some)).split()
            yield from (change.name for change, blob in zip(some, blobs, strict=True) if blob == change.blob_before)

    def _check_out_submodule(self, path: str, wanted: str, target: Path, whose: str) -> None:
        submodule = find_repository(self.top / path)
        if submodule._git("cat-file", "-e", f"{wanted}^{{commit}}").code:
            raise SideError(
                f"{whose} takes commit {short(wanted)} of submodule {path}, which is not here: "
                f"git -C {path} fetch origin {wanted} brings it"
            )
        submodule.check_out(wanted, target)

    def _commit(self, name: str) -> str | None:
        """Return the SHA of the commit a name leads to, None where there is none."""
        found = self._git("rev-parse", "--verify", "--quiet", name).out.strip()
        if not _FULL_SHA.fullmatch(found):
            return None
        peeled = self._git("rev-parse", "--verify", "--quiet", f"{found}^{{commit}}")
        return None if peeled.code else peeled.out.strip()

    def _is_branch(self, name: str) -> bool:
        """Whether a name is that of a local or remote-tracking branch; HEAD is itself, whatever it points to."""
        if name in {"HEAD", "@"}:
            return False
        full = self._git("rev-parse", "--symbolic-full-name", name).out.strip()
        return full.startswith(("refs/heads/", "refs/remotes/"))

    def _merge_base(self, name: str, sha: str) -> str:
        done = self._git("merge-base", "HEAD", sha)
        if not done.code:
            return done.out.split()[0]
        if self._is_shallow():
            raise SideError(f"the merge base of {name} and HEAD is not in this shallow clone: {_DEEPEN}")
        raise SideError(f"{name} and HEAD have no commit in common, so there is no merge base to compare with")

    def _missing(self, ref: str) -> str:
        found = self._git("cat-file", "-t", ref)
        if not found.code:
            return f"{ref!r} is a {found.out.strip()}, not a commit: name a branch, a tag, a SHA or HEAD~1"
        if self._is_shallow():
            return f"there is no {ref!r} in {self.top}, a shallow clone (nor origin/{ref}): {_DEEPEN}"
        fetch = "git fetch" if _SHA_LIKE.fullmatch(ref) else f"git fetch origin {ref}:refs/remotes/origin/{ref}"
        return (
            f"there is no {ref!r} in {self.top}, nor origin/{ref}: if it is elsewhere, {fetch} brings it. "
            "pip:REQUIREMENT, dir:PATH and python:PATH compare with something else than a commit"
        )

    def _is_shallow(self) -> bool:
        return self._git("rev-parse", "--is-shallow-repository").out.strip() == "true"

    def _git(self, *arguments: str, limit_s: float = _LIMIT_S) -> Completed:
        return _git(self.top, *arguments, limit_s=limit_s)

    def _checked(self, *arguments: str, limit_s: float = _LIMIT_S) -> str:
        return _checked(self.top, *arguments, limit_s=limit_s)

    def _list(self, *arguments: str) -> list[str]:
        return _list(self.top, *arguments)


def find_repository(directory: Path) -> Repository:
    """Return the repository that a directory lies in; SideError where there is none to be used."""
    done = _git(directory, "rev-parse", "--show-toplevel")
    if done.code or not done.out.strip():
        if "dubious ownership" in done.err:
            owned = re.search(r"repository at '([^']*)'", done.err)
            place = owned[1] if owned else str(directory)
            raise SideError(
                f"git does not trust {place}, which belongs to another user: "
                f"git config --global --add safe.directory {place}"
            )
        raise SideError(
            f"{directory} is in no git working tree, so there is no commit to compare with ({_last_line(done)}); "
            "dir:PATH compares with the code in another directory"
        )
    top = Path(done.out.rstrip("\n"))
    head = _git(top, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.code:
        raise SideError(f"the repository at {top} has no commits, so there is nothing to compare with: commit first")
    return Repository(top, head.out.strip())


def is_working_tree(directory: Path) -> bool:
    """Whether a directory lies in a git working tree that can be used."""
    try:
        find_repository(directory)
    except SideError:
        return False
    return True


def is_ours(top: Path) -> bool:
    """Whether a working tree is a clone that was made here; users too have clones that borrow their objects."""
    return (top / _OURS).is_file()


def record(clone: Path) -> None:
    """Commit what a clone of ours holds now, so that what changes it later can be seen."""
    _checked(clone, "add", "--all", "--force", limit_s=_CHECKOUT_LIMIT_S)
    identity = (
        "-c",
        "user.name=pytest-rlperf",
        "-c",
        "user.email=pytest-rlperf@localhost",
        "-c",
        "commit.gpgSign=false",
    )
    _checked(clone, *identity, "commit", "--quiet", "--allow-empty", "--no-verify", "--message", "Today's tests")


def code_paths(top: Path, baseline_dir: Path) -> tuple[str, ...]:
    """Return the pathspecs of a tree's files, less bytecode and the baselines kept below ``baseline_dir``."""
    specs = [":(top)", ":(top,exclude,glob)**/__pycache__/**"]
    if baseline_dir.resolve().is_relative_to(top.resolve()):
        files = baseline_dir.resolve().relative_to(top.resolve()) / "*" / "*.json"
        specs.append(f":(top,exclude,glob){files.as_posix()}")
    return tuple(specs)


def short(sha: str) -> str:
    """Return as much of a SHA as a report shows."""
    return sha[:12]


def _git(directory: Path, *arguments: str, limit_s: float = _LIMIT_S) -> Completed:
    # Changing into the directory, as -C would, but a missing one is told as such.
    return run(["git", *_QUIET, *arguments], cwd=directory, limit_s=limit_s)


def _checked(directory: Path, *arguments: str, limit_s: float = _LIMIT_S) -> str:
    done = _git(directory, *arguments, limit_s=limit_s)
    if done.code:
        raise SideError(f"git {arguments[0]} failed in {directory}: {_last_line(done)}")
    return done.out


def _list(directory: Path, *arguments: str) -> list[str]:
    return [name for name in _checked(directory, *arguments).split("\0") if name]


def _last_line(done: Completed) -> str:
    return next(reversed([line for line in done.err.splitlines() if line.strip()]), f"exit code {done.code}")


_TIME = re.compile(r"(?P<pattern>\S.*?)\s*<=\s*\+?(?P<percent>[0-9]*\.?[0-9]+)\s*%\s*(?P<reason>\S.*)")
# A pattern without blanks, so that no slip of the other form reads as this one.
_COUNTS = re.compile(r"(?P<pattern>\S+)\s+counts\s+(?!<=)(?P<reason>\S.*)")
_FORMS = f"'{TRAILER}: test_name* <= +10% the reason', or for counts alone '{TRAILER}: test_name* counts the reason'"
_MENTION = re.compile(rf"^{TRAILER}\s*:.*\S", re.MULTILINE | re.IGNORECASE)
_LOG_LIMIT_S = 60.0


def read_allowances(root: Path, base: str) -> tuple[list[Allowance], list[str]]:
    """Return what commits after ``base`` allow, today's first, and notes on trailers that cannot be read.

    ``base`` is a full SHA. Where git does not tell, nothing is allowed.
    """
    form = f"--format=%H%x00%(trailers:key={TRAILER},valueonly,unfold)%x00%B"
    settings = ("-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8")
    try:
        done = run(["git", "-C", root, *settings, "log", "-z", form, f"{base}..HEAD"], limit_s=_LOG_LIMIT_S)
    except SideError:
        return [], []
    allowances: list[Allowance] = []
    notes: list[str] = []
    # What is not UTF-8 whatever git is asked for: reasons are stored, and bytes that are no text cannot be.
    text = done.out.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if done.code == 0 else ""
    fields = text.split("\0")  # which no message can hold; other marks could forge one
    for sha, values, message in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        found = [value for value in map(str.strip, values.split("\n")) if value]
        if len(_MENTION.findall(message)) > len(found):
            notes.append(
                f"{TRAILER} of {short(sha)} accepts nothing: it is not in the last paragraph of the message, "
                "where git has its trailers"
            )
        for value in found:
            allowance = parse_allowance(value, short(sha))
            if allowance is not None:
                allowances.append(allowance)
            else:
                notes.append(
                    f"{TRAILER} of {short(sha)} is not understood and accepts nothing: {value!r}; expected {_FORMS}"
                )
    return allowances, notes


def parse_allowance(value: str, commit: str) -> Allowance | None:
    """Read a trailer's value, None where it is of neither form: ``<glob> <= +N% <reason>``, ``<glob> counts <reason>``.

    What accepts counts alone accepts no more time: its ``most`` is 0.
    """
    counts, time = _COUNTS.fullmatch(value), _TIME.fullmatch(value)
    if counts is not None:  # whose reason may speak of a percentage, too
        return Allowance(counts["pattern"], 0.0, counts["reason"], commit)
    if time is None or not math.isfinite(most := float(time["percent"]) / 100):
        return None
    return Allowance(time["pattern"], most, time["reason"], commit)
