"""The user's git repository, which is read and never written, and the copies that borrow its objects.

``_git`` starts every git command of the package: quietly, without hooks, and without fetching. Refs and SHAs that come
from options or files stand after ``--end-of-options``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import msgspec

from pytest_rlperf.errors import SideError, did_you_mean, see
from pytest_rlperf.model.judged import TRAILER, Allowance
from pytest_rlperf.sides.programs import Completed, run

_LIMIT_S = 120.0
_CHECKOUT_LIMIT_S = 900.0
_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SHA_LIKE = re.compile(r"[0-9a-fA-F]{4,64}")
_SUBMODULE = "160000"  # a submodule's mode in git's lists
_END = "--end-of-options"
DEEPEN = "git fetch --unshallow brings the rest of the history; for actions/checkout it is fetch-depth: 0"

# No user hook or monitor runs, and no process outlives the command.
_QUIET = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.splitIndex=false",  # a part of it would be written beside the user's index
    "gc.auto=0",
    "maintenance.auto=0",
)

# Other variables may be set for the hook that started this process, and lead to another repository, or change how paths
# and differences are read. GIT_CONFIG_COUNT and the like may declare a directory safe.
_KEPT_VARIABLES = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_", "GIT_TEST_")

_WRITTEN = ("--diff-filter=AMT", "--format=%x00%H")

_LOG = ("log.showSignature=false", "i18n.logOutputEncoding=UTF-8")

# Git's messages if a directory is not in a working tree. Any other failure is the repository's own.
_NO_TREE = ("not a git repository (or any", "must be run in a work tree")

_NO_COMMIT = "does not have any commits yet"

# A submodule counts with all its files, and a renamed file as two, whatever the user's settings are.
_WHOLE = ("--ignore-submodules=none", "--no-renames")

# With it, git looks at files that it was told to skip, if there are any.
_SPARSE = ("core.sparseCheckout=true",)

# New files that git would add; bytecode is excluded even if no .gitignore names it.
_NEW = ("--others", "--exclude-standard", "--exclude=__pycache__/")


class Commit(msgspec.Struct, frozen=True):
    """A commit by its full SHA, and its name in reports."""

    sha: str
    title: str

    def __post_init__(self) -> None:
        if not _FULL_SHA.fullmatch(self.sha):  # anything else could be an option to git
            raise SideError(f"{self.sha!r} is not the full SHA of a commit")


class Version(msgspec.Struct, frozen=True):
    """A file as a commit has it: the commit, the file's name, and the SHA of its content."""

    commit: str
    name: str
    blob: str


class Listing(msgspec.Struct, frozen=True):
    """The files that git lists in a working tree, by their names relative to its top.

    ``tracked`` are the names in the index, each with the SHA of its content there. ``skipped`` are those that git was
    told not to look at: assumed unchanged, or outside a sparse checkout. ``new`` are files that git would add.
    """

    tracked: Mapping[str, str]
    submodules: tuple[str, ...]
    skipped: frozenset[str]
    new: frozenset[str]

    @classmethod
    def of(cls, entries: Iterable[str]) -> Listing:
        """Return the entries of ``git ls-files -z -v --stage --cached --others``: ``H 100644 SHA 0<TAB>a``, ``? b``."""
        tracked, submodules, skipped, new = {}, [], set(), set()
        for entry in entries:
            tag, _, rest = entry.partition(" ")
            if tag == "?":
                new.add(rest)
                continue
            about, _, name = rest.partition("\t")
            mode, tracked[name], _ = about.split()
            if mode == _SUBMODULE:
                submodules.append(name)
            if tag in "hsS":
                skipped.add(name)
        # A new repository within this one is a directory, which git lists with a slash.
        is_file = {name for name in new if not name.endswith("/")}
        return cls(tracked, tuple(sorted({*submodules})), frozenset(skipped), frozenset(is_file))


class Repository(msgspec.Struct, frozen=True, dict=True):
    """A git working tree: its path without links, and the full SHA of its checked-out commit."""

    top: Path
    head: str

    def resolve(self, ref: str) -> Commit:
        """Return the commit to compare with: a branch's merge base with HEAD, else the commit itself."""
        for name in (ref, f"origin/{ref}"):
            sha = self._commit(name)
            if sha is None:
                continue
            if not self._is_branch(name):
                return Commit(sha, short(sha) if sha.startswith(ref.lower()) else f"{name} ({short(sha)})")
            base = self._merge_base(name, sha)
            return Commit(base, f"{name} (merge base {short(base)})")
        raise SideError(self._missing(ref))

    def exactly(self, ref: str) -> Commit:
        """Return the commit that a ref names, a branch's last one; SideError if there is none."""
        sha = self._commit(ref)
        if sha is None:
            raise SideError(self._missing(ref))
        return Commit(sha, ref)

    def first_parents(self, good: str, bad: str) -> list[list[str]]:
        """Return the commits after one and up to another, oldest first, each with its SHA, author, day and subject.

        Only a merge's first parent is followed. SideError if the first is not an ancestor of the second.
        """
        if self._git("merge-base", "--is-ancestor", _END, good, bad).code:
            if self.is_shallow():
                raise SideError(f"{short(good)} is not an ancestor of {short(bad)} in this shallow clone: {DEEPEN}")
            raise SideError(f"{short(good)} is not an ancestor of {short(bad)}: name an earlier commit of its history")
        return self._first_parents(f"{good}..{bad}", "%cs")

    def course(self) -> list[list[str]]:
        """Return HEAD and its first parents, oldest first, each with its SHA, author, ISO time and subject.

        In a shallow clone, they begin at its edge.
        """
        return self._first_parents("HEAD", "%cI")

    def _first_parents(self, commits: str, date: str) -> list[list[str]]:
        """Return the SHA, author, date in one of git's formats, and subject of first-parent commits."""
        form = f"--format=%H%x00%an <%ae>%x00{date}%x00%s"
        text = _checked(self.top, "log", "--first-parent", "--reverse", form, commits, "--", settings=_LOG)
        # splitlines would also split at other separators, which a subject may hold.
        return [line.split("\0") for line in text.split("\n") if line]

    def versions(self, directory: Path) -> list[Version]:
        """Return the files that first-parent commits have written below a directory, oldest first.

        There are none for a directory outside the working tree.
        """
        place = directory.resolve()
        if not place.is_relative_to(self.top):
            return []
        listing = ("log", "--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "--no-renames")
        spec = f":(top,literal){place.relative_to(self.top).as_posix()}"
        found = []
        for entry in _names(_checked(self.top, *listing, *_WRITTEN, "HEAD", "--", spec, settings=_LOG)):
            sha, *changes = filter(None, entry.split("\n"))
            for change in changes:
                about, _, name = change.partition("\t")
                found.append(Version(sha, name.strip('"'), about.split()[3]))
        return found

    def blob(self, sha: str) -> bytes:
        """Return the content of a file by the SHA that git stores it under; SideError if git does not have it."""
        return self._checked("cat-file", "blob", _END, sha).encode("utf-8", "surrogateescape")

    def has_commit(self, sha: str) -> bool:
        """Whether a full SHA names a commit in the local history: one that HEAD or a ref leads to."""
        if not _FULL_SHA.fullmatch(sha) or self._git("cat-file", "-e", _END, f"{sha}^{{commit}}").code:
            return False
        if not self._git("merge-base", "--is-ancestor", _END, sha, "HEAD").code:
            return True
        found = self._git("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={sha}")
        return not found.code and bool(found.out.strip())

    def is_dirty(self, baseline_dir: Path, outputs: Iterable[Path] = ()) -> bool:
        """Whether the working tree differs from HEAD.

        Bytecode, setuptools' metadata of an editable install, baselines below ``baseline_dir`` and the files in
        ``outputs`` do not count.
        """
        specs = [":(top)", *(f":(top,exclude,glob)**/{name}/**" for name in ("__pycache__", "*.egg-info"))]
        if (place := baseline_dir.resolve()).is_relative_to(self.top):
            named = f"*-{'[0-9a-f]' * 8}.json"
            specs.append(f":(top,exclude,glob){(place.relative_to(self.top) / '*' / named).as_posix()}")
        for path in outputs:
            if (place := path.resolve()).is_relative_to(self.top):
                specs.append(f":(top,exclude,literal){place.relative_to(self.top).as_posix()}")
        command = ("status", "--porcelain", "--untracked-files=normal", *_WHOLE, "--", *specs)
        return bool(_checked(self.top, *command, settings=_SPARSE) or self._hidden_changes(self.listing(new=False)))

    def tree(self) -> str | None:
        """Return the full SHA of HEAD's tree."""
        done = self._git("rev-parse", "--verify", "HEAD^{tree}")
        return None if done.code else done.out.strip()

    def listing(self, *, new: bool = True) -> Listing:
        """Return what git lists of the working tree, with its new files if ``new``, and not within submodules."""
        return Listing.of(self._list("ls-files", "-z", "-v", "--stage", "--cached", *(_NEW if new else ())))

    def files(self, listing: Listing) -> list[str]:
        """Return the files in the working tree, relative to its top: tracked ones, and new ones that git would add.

        Files in checked-out submodules are included.
        """
        listed = sorted({*listing.tracked, *listing.new})
        # A deleted file is still in the index, and a submodule is a directory.
        own = [name for name in listed if (path := self.top / name).is_symlink() or path.is_file()]
        return [*own, *self._below(self._checked_out(listing), Repository.files)]

    def _below(self, submodules: Iterable[str], names: Callable[[Repository, Listing], Iterable[str]]) -> Iterator[str]:
        """Yield the names that a method gives for submodules, relative to this tree's top."""
        for place in submodules:
            within = self._within(place)
            yield from (f"{place}/{name}" for name in names(within, within.listing()))

    def _checked_out(self, listing: Listing) -> list[str]:
        """Return the submodules that are checked out in the working tree."""
        return [place for place in listing.submodules if (self.top / place / ".git").exists()]

    def _within(self, submodule: str) -> Repository:
        return find_repository(self.top / submodule)

    def changed(self, listing: Listing) -> list[str]:
        """Return the files by which the working tree may differ from HEAD, relative to the top, with new ones."""
        command = ("status", "--porcelain", "-z", "--untracked-files=all", *_WHOLE)  # git diff would write the index
        entries = _names(_checked(self.top, *command, settings=_SPARSE))
        names = (entry[3:] for entry in entries if not entry.endswith("/"))  # without repositories within this one
        return sorted({*names, *self._hidden_changes(listing)})

    def ignored(self, listing: Listing) -> list[str]:
        """Return what git ignores, relative to the top: files, and wholly ignored directories, ending with ``/``."""
        own = self._list("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
        return [*own, *self._below(self._checked_out(listing), Repository.ignored)]

    def between(self, one: str, other: str) -> list[str]:
        """Return the files by which two commits differ, with all files of changed submodules."""
        if one == other:
            return []
        changed = self._list("diff-tree", "-r", "--name-only", *_WHOLE, "-z", _END, one, other)
        here = self._checked_out(self.listing(new=False)) if changed else ()
        return [*changed, *self._below({*changed}.intersection(here), Repository.files)]

    def check_out(self, sha: str, target: Path) -> None:
        """Check a commit out into an empty directory, as its own repository, with the submodules that are here.

        The user's settings, filters and attributes apply. The copy borrows the objects: nothing is written to this
        repository, and nothing is fetched.
        """
        full = Commit(sha, "").sha
        self._lend(target, full)
        own = {
            "GIT_DIR": str(self._git_dir),
            "GIT_WORK_TREE": str(target),
            "GIT_INDEX_FILE": str(target / ".git/index"),
            "GIT_LFS_SKIP_SMUDGE": "1",  # takes what is here
            "GIT_ALLOW_PROTOCOL": "none",
        }
        reading = ("read-tree", "--reset", "-u", "--no-sparse-checkout", "--no-recurse-submodules", full)
        done = _git(target, *reading, variables=own, limit_s=_CHECKOUT_LIMIT_S)
        if done.code:
            partial = self._git("config", "--get-regexp", r"^remote\..*\.promisor$").out.strip()
            hint = ". This clone is partial: git fetch --refetch --no-filter completes it" if partial else ""
            raise SideError(f"cannot check out {short(sha)}: {_said(done)}{hint}")
        if "external filter" in done.err:  # git goes on without a filter that is not required
            raise SideError(
                f"cannot check out {short(sha)} as git would in {self.top}: {_said(done)}. The filter is one of "
                "git's settings there; dir:PATH compares with a checkout of your own"
            )
        for path, wanted in self._submodules(sha):
            if (self.top / path / ".git").exists():
                self._check_out_submodule(path, wanted, target / path, short(sha))

    def _lend(self, target: Path, sha: str) -> None:
        """Make a repository in an empty directory, at a commit, with the objects, branches and tags of this one.

        git clone would start another git, for which another owner's tree must be declared safe by another name.
        """
        form = f"--object-format={'sha1' if len(sha) == 40 else 'sha256'}"
        _checked(target, "init", "--quiet", "--template=", form, settings=("init.defaultRefFormat=files",))
        alternates = target / ".git/objects/info/alternates"
        alternates.parent.mkdir(exist_ok=True)
        alternates.write_bytes(_quoted(bytes((self._common_dir / "objects").resolve())) + b"\n")
        refs = self._checked("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
        (target / ".git/packed-refs").write_text(refs, encoding="utf-8", errors="surrogateescape")
        (target / ".git/HEAD").write_text(f"{sha}\n", encoding="ascii")
        if (edge := self._common_dir / "shallow").exists():
            shutil.copyfile(edge, target / ".git/shallow")

    def _hidden_changes(self, listing: Listing) -> list[str]:
        """Return changed files that git was told to skip."""
        names = sorted(name for name in listing.skipped if (self.top / name).is_file())
        if not names:
            return []
        found = self._checked("hash-object", "--", *names).split()
        return [name for name, sha in zip(names, found, strict=True) if sha != listing.tracked[name]]

    @cached_property
    def _git_dir(self) -> Path:
        """The directory with this working tree's index."""
        return Path(self._checked("rev-parse", "--absolute-git-dir").removesuffix("\n"))

    @property
    def _common_dir(self) -> Path:
        """The directory with the objects, which worktrees share: a file leads there (gitrepository-layout(5))."""
        with contextlib.suppress(OSError):
            return self._git_dir / os.fsdecode((self._git_dir / "commondir").read_bytes()).removesuffix("\n")
        return self._git_dir

    @property
    def lock(self) -> Path:
        """The file that a git command makes while it writes the index."""
        return self._git_dir / "index.lock"

    def _submodules(self, sha: str) -> list[tuple[str, str]]:
        """Return the path and the commit of each submodule in a commit."""
        entries = [entry.partition("\t") for entry in self._list("ls-tree", "-r", "-z", "--full-tree", _END, sha)]
        return [(path, about.split()[2]) for about, _, path in entries if about.startswith(f"{_SUBMODULE} ")]

    def _check_out_submodule(self, path: str, wanted: str, target: Path, owner: str) -> None:
        submodule = find_repository(self.top / path)
        if submodule._git("cat-file", "-e", _END, f"{wanted}^{{commit}}").code:
            raise SideError(
                f"{owner} uses commit {short(wanted)} of submodule {path}, which is not here: "
                f"git -C {path} fetch origin {wanted} brings it"
            )
        submodule.check_out(wanted, target)

    def _commit(self, name: str) -> str | None:
        """Return the SHA of the commit that a name leads to, None if there is none."""
        found = self._git("rev-parse", "--verify", "--quiet", _END, name).out.strip()
        if not _FULL_SHA.fullmatch(found):
            return None
        peeled = self._git("rev-parse", "--verify", "--quiet", _END, f"{found}^{{commit}}")
        return None if peeled.code else peeled.out.strip()

    def _is_branch(self, name: str) -> bool:
        """Whether a name is a local or remote-tracking branch's; HEAD never is, whatever it points to."""
        if name in {"HEAD", "@"}:
            return False
        full = self._git("rev-parse", "--verify", "--quiet", "--symbolic-full-name", _END, name).out.strip()
        return full.startswith(("refs/heads/", "refs/remotes/"))

    def _merge_base(self, name: str, sha: str) -> str:
        done = self._git("merge-base", _END, "HEAD", sha)
        if not done.code:
            return done.out.split()[0]
        if self.is_shallow():
            raise SideError(f"the merge base of {name} and HEAD is not in this shallow clone: {DEEPEN}")
        raise SideError(f"{name} and HEAD have no commit in common, so there is no merge base to compare with")

    def _missing(self, ref: str) -> str:
        """Return the message for a ref that leads to no commit."""
        if self.is_shallow():
            return f"there is no {ref!r} in {self.top}, a shallow clone (nor origin/{ref}): {DEEPEN}"
        names = self._checked("for-each-ref", "--format=%(refname:short)").split()
        fetch, name = "git fetch", ref.removeprefix("origin/")
        if not _SHA_LIKE.fullmatch(ref):
            fetch = f"git fetch origin {name}:refs/remotes/origin/{name}"
        return (
            f"there is no {ref!r} in {self.top}{did_you_mean(ref, names) or '.'} "
            f"If a remote has it, {fetch} brings it; pip:REQUIREMENT, dir:PATH and python:PATH compare with something "
            f"other than a commit{see('comparing.md#live-comparisons')}"
        )

    def is_shallow(self) -> bool:
        """Whether the clone has only the latest commits."""
        return self._git("rev-parse", "--is-shallow-repository").out.strip() == "true"

    def _git(self, *arguments: str) -> Completed:
        return _git(self.top, *arguments)

    def _checked(self, *arguments: str) -> str:
        return _checked(self.top, *arguments)

    def _list(self, *arguments: str) -> list[str]:
        return _names(self._checked(*arguments))


class NoRepositoryError(SideError):
    """A directory is not in a git working tree with a commit, or git is missing."""


def find_repository(directory: Path) -> Repository:
    """Return the repository around a directory.

    NoRepositoryError if there is none, SideError if git refuses to read it.
    """
    if shutil.which("git") is None:
        raise NoRepositoryError("git is not installed, or not on the PATH: install it, or add it to the PATH")
    done = _git(directory, "rev-parse", "--show-toplevel", "--verify", "--quiet", "HEAD^{commit}")
    if any(text in done.err for text in _NO_TREE):
        raise NoRepositoryError(
            f"{directory} is not in a git working tree, so there is no commit to compare with ({_said(done)}): make "
            f"one (git init) and commit{see('comparing.md#live-comparisons')}"
        )
    if not done.out:
        raise SideError(f"git cannot read the repository around {directory}: {_said(done)}")
    found = done.out.removesuffix("\n")
    place, _, head = (found, "", "") if done.code else found.rpartition("\n")
    top = Path(place).resolve()
    if not head:
        why = _said(_git(top, "log", "-1", settings=_LOG))
        if _NO_COMMIT not in why:
            raise SideError(f"git cannot read the commit of HEAD in {top}: {why}")
        raise NoRepositoryError(
            f"the repository at {top} has no commits, so there is nothing to compare with: commit first"
        )
    return Repository(top, head)


def repository_around(directory: Path) -> Repository | None:
    """Return the repository around a directory, None if there is none; SideError if git refuses to read it."""
    try:
        return find_repository(directory)
    except NoRepositoryError:
        return None


def tree_top(directory: Path) -> Path:
    """Return the top of the repository that ``directory`` lies in, else ``directory`` itself."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), directory)


def git_user(directory: Path) -> str:
    """Return the name and address in the git settings that apply to a directory, or ""."""
    try:
        name, address = (_git(directory, "config", "--get", f"user.{key}").out.strip() for key in ("name", "email"))
    except SideError:
        return ""
    return f"{name} <{address}>".strip() if address else name


def short(sha: str) -> str:
    """Return the part of a SHA that reports show."""
    return sha[:12]


def _git(
    directory: Path,
    *arguments: str,
    settings: Iterable[str] = (),
    variables: Mapping[str, str] = MappingProxyType({}),
    limit_s: float = _LIMIT_S,
) -> Completed:
    """Run git in a directory; ``settings`` and ``variables`` are added to the user's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
    }
    quiet = {
        "LC_ALL": "C",  # messages in English
        "LANGUAGE": "",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",  # the user's index is not refreshed
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",  # a copy has none of the user's replacements
    }
    options = [word for setting in (*_QUIET, *settings) for word in ("-c", setting)]
    return run(["git", *options, *arguments], cwd=directory, env={**kept, **quiet, **variables}, limit_s=limit_s)


def _checked(directory: Path, *arguments: str, settings: Iterable[str] = ()) -> str:
    done = _git(directory, *arguments, settings=settings)
    if done.code:
        raise SideError(f"git {arguments[0]} failed in {directory}: {_said(done)}")
    return done.out


def _names(text: str) -> list[str]:
    """Return the names in a list that ``-z`` makes git write."""
    return [name for name in text.split("\0") if name]


def _said(done: Completed) -> str:
    """Return all that git has said in one line: the last line may be only a command to type."""
    lines = dict.fromkeys(line.strip() for line in done.err.splitlines() if line.strip())
    return "; ".join(lines).replace(":;", ":") or f"exit code {done.code}"


def _quoted(path: bytes) -> bytes:
    """Return a path as git reads it in a file with a path per line."""
    if b"\n" not in path:
        return path
    return b'"%s"' % path.replace(b"\\", rb"\\").replace(b'"', rb"\"").replace(b"\n", rb"\n")


# ------------------------------------------------------------------ trailers

# "why" is no reason: it stands for one in the lines that a report prints.
_LONGEST_TRAILER = 1000  # characters: the expressions below try every split of a row of blanks or digits
_TIME = re.compile(r"(?P<pattern>\S.*?)\s*<=\s*\+?(?P<percent>[0-9]*\.?[0-9]+)\s*%\s*(?P<reason>(?!why\Z)\S.*)")
# The pattern has no blanks, so that no misspelt time reads as counts.
_COUNTS = re.compile(r"(?P<pattern>\S+)\s+counts\s+(?!<=|why\Z)(?P<reason>\S.*)")
_FORMS = f"'{TRAILER}: test_name* <= +10% the reason', or only for counts '{TRAILER}: test_name* counts the reason'"
_MENTION = re.compile(rf"^{TRAILER}\s*:.*\S", re.MULTILINE | re.IGNORECASE)


def read_allowances(root: Path, base: str) -> tuple[list[Allowance], list[str]]:
    """Return the slowdowns that commits after ``base`` accept, latest first, and notes on unreadable trailers.

    ``Rlperf-Accept: test_gae* <= +9% reason`` accepts up to 9 % more time; ``Rlperf-Accept: test_gae* counts reason``
    accepts only higher counts. ``base`` is a full SHA. If git cannot list the commits, nothing is accepted.
    """
    text = _log(root, base)
    allowances: list[Allowance] = []
    notes: list[str] = []
    fields = text.split("\0")  # no message can contain this separator, so none can forge a trailer
    for sha, values, message in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
        found = [value for value in map(str.strip, values.split("\n")) if value]
        if len(_MENTION.findall(message)) > len(found):
            notes.append(
                f"{TRAILER} of {short(sha)} accepts nothing: move it to the last paragraph of the message, "
                "where git looks for trailers"
            )
        for value in found:
            allowance = parse_allowance(value, short(sha))
            if allowance is not None:
                allowances.append(allowance)
            else:
                advice = f"write {_FORMS}{'; put your reason in the place of why' * value.endswith(' why')}"
                notes.append(f"{TRAILER} of {short(sha)} accepts nothing as it stands: {value[:100]!r}; {advice}")
    return allowances, notes


def parse_allowance(value: str, commit: str) -> Allowance | None:
    """Read a trailer's value: ``<glob> <= +N% <reason>`` or ``<glob> counts <reason>``; None if it is neither.

    The second form accepts no more time: its ``most`` is 0.
    """
    if len(value) > _LONGEST_TRAILER:
        return None
    counts, time = _COUNTS.fullmatch(value), _TIME.fullmatch(value)
    if counts is not None:  # its reason may contain a percentage too
        return Allowance(counts["pattern"], 0.0, counts["reason"], commit)
    if time is None or not math.isfinite(most := float(time["percent"]) / 100):
        return None
    return Allowance(time["pattern"], most, time["reason"], commit)


def _log(root: Path, base: str) -> str:
    """Return the SHA, trailers and message of the commits after ``base``, each followed by a NUL; "" if git fails."""
    if not _FULL_SHA.fullmatch(base):
        return ""
    form = f"--format=%H%x00%(trailers:key={TRAILER},valueonly,unfold)%x00%B"
    try:
        done = _git(root, "log", "-z", form, _END, f"{base}..HEAD", "--", settings=_LOG)
    except SideError:
        return ""
    # Some messages are not UTF-8 in spite of the setting. Reasons are stored, so bytes that are not text are replaced.
    return "" if done.code else done.out.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
