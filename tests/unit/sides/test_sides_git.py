from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import builders
import psutil
import pytest
from builders import git, write
from wording import Wording

from pytest_rlperf.baseline.provenance import read_tree
from pytest_rlperf.errors import SideError
from pytest_rlperf.model.sides import Project, Side, Sides
from pytest_rlperf.sides import trees
from pytest_rlperf.sides.environment import parent_state
from pytest_rlperf.sides.git import Commit, Listing, NoRepositoryError, Repository, find_repository, read_allowances
from pytest_rlperf.sides.prepare import Preparation
from pytest_rlperf.sides.programs import run
from pytest_rlperf.sides.specs import parse_spec


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache and git settings out, and give git an author."""
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
    for name in ("PYTHONPATH", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)


@functools.cache
def empty(directory: Path) -> Path:
    """Make a repository without a commit in a directory, for all tests of a run."""
    made = Path(tempfile.mkdtemp(dir=directory))
    git(made, "init", "--quiet", "--initial-branch=main", "--template=")
    return made


class Tree:
    def __init__(self, top: Path, scratch: Path) -> None:
        self.top = top
        shutil.copytree(empty(scratch), top, dirs_exist_ok=True)

    def git(self, *arguments: str) -> str:
        return git(self.top, *arguments)

    def write(self, **files: str) -> None:
        write(self.top, files)

    def commit(self, **files: str) -> str:
        """Write files and commit all there is; return the SHA."""
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        head = (self.top / ".git/HEAD").read_text(encoding="utf-8").strip()
        _, is_branch, name = head.partition("ref: ")
        return (self.top / ".git" / name).read_text(encoding="utf-8").strip() if is_branch else head


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "tree", tmp_path.parent)


def files_of(top: Path, *names: str) -> dict[str, str]:
    return {name: (top / name).read_text(encoding="utf-8") for name in names if (top / name).is_file()}


def quiet(text: str) -> None:
    """Show no progress."""


def preparation(project: Project) -> Preparation:
    return Preparation(project, lambda: Path(tempfile.mkdtemp(prefix="", dir=os.environ["XDG_CACHE_HOME"])), quiet)


def prepare(spec: str, project: Project) -> Sides:
    return preparation(project).against(spec)


def tree_of(side: Side) -> Path:
    (rootdir,) = [arg.removeprefix("--rootdir=") for arg in side.args if arg.startswith("--rootdir=")]
    return Path(rootdir)


def run_tests(side: Side) -> None:
    """Run a side's tests with pytest, as its workers would, but with pytest's own plugins alone."""
    code = f"import sys; sys.path[:] = {list(side.path)!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    changed = {**os.environ, **side.environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    variables = {name: value for name, value in changed.items() if value is not None}
    argv = [side.python, "-c", code, "-q", "-p", "no:cacheprovider", *side.args, *map(str, side.files)]
    done = subprocess.run(argv, cwd=side.directory, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("main", ("git", "main")),
        ("git:feature/x", ("git", "feature/x")),
        ("HEAD~2", ("git", "HEAD~2")),
        ("dir:../other", ("dir", "../other")),
        ("python:python3.12", ("python", "python3.12")),
        ("pip:gymnasium>=1.0,<1.1", ("pip", "gymnasium>=1.0,<1.1")),
        ("pip:gymnasium==1.0.0,numpy==2.1", ("pip", "gymnasium==1.0.0", "numpy==2.1")),
        ("pip:a >= 1, < 2 , b[x,y]==1", ("pip", "a >= 1, < 2", "b[x,y]==1")),
        ("pip:a (>=1,<2),b", ("pip", "a (>=1,<2)", "b")),
        ("pip:a @ https://example.org/x.whl", ("pip", "a @ https://example.org/x.whl")),
    ],
)
def test_spec_is_read(text: str, spec: tuple[str, ...]) -> None:
    """A spec names a commit, requirements, a directory or an interpreter."""
    kind, parts = parse_spec(text)
    assert (kind, *parts) == spec


@pytest.mark.parametrize(
    "text",
    [
        "",
        "git:",
        "--upload-pack=x",
        "git:-x",
        "dir:",
        "python: ",
        "pip:",
        "pip:a==1,,b",
        "pip:a==1,",
        "pip:--index-url=x",
        "pip:a,-e .",
        "pip:a @ file:///x.whl",
        "pip:git+https://example.org/a",
    ],
)
def test_spec_that_means_nothing_is_refused(text: str, wording: Wording) -> None:
    """A value of none of the forms is refused."""
    with wording.raises(SideError):
        parse_spec(text)


@pytest.mark.usefixtures("in_foreground")
def test_command_ends_at_its_limit_and_with_an_interrupt(tmp_path: Path) -> None:
    """At its limit a program ends, and so does what it has started; Ctrl-C ends it too."""
    child = "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); print(flush=True); signal.pause()"
    parent = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]],"
        " stdout=subprocess.PIPE); p.stdout.readline(); p.wait()"
    )
    with pytest.raises(SideError, match=r"2 s\b"):
        run([sys.executable, "-c", parent, child, tmp_path / "pid"], cwd=tmp_path, limit_s=2)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int((tmp_path / "pid").read_text(encoding="utf-8"))).wait(10)
    code = "import os, signal; os.kill(os.getppid(), signal.SIGINT); signal.pause()"
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", code], cwd=tmp_path, limit_s=30)


def test_git_does_not_see_the_repository_of_a_hook(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that git sets for a hook do not affect our git."""
    tree.commit(a="1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert find_repository(tree.top).top == tree.top


def test_no_program_of_the_users_settings_runs(tree: Tree, tmp_path: Path) -> None:
    """Git's monitor of the file system is not started, whether refs, files or the state of the tree are read."""
    sha = tree.commit(a="1")
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/sh\ntouch {tmp_path}/monitor-ran\n", encoding="utf-8")
    monitor.chmod(0o755)
    tree.git("config", "core.fsmonitor", str(monitor))
    repository = find_repository(tree.top)
    repository.changed(repository.listing())
    repository.ignored(repository.listing())
    read_tree(tree.top, tree.top / "baselines")
    read_allowances(tree.top, sha)
    assert not (tmp_path / "monitor-ran").exists()


def test_only_a_full_sha_names_a_commit_of_a_file(wording: Wording) -> None:
    """A baseline's commit is data: git never sees it as an option or as another kind of name."""
    for name in ("--output=written", "HEAD", "0123456", "F" * 40):
        with wording.raises(SideError):
            Commit(name, "a title")


def test_without_git_a_repository_or_a_commit_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wording: Wording
) -> None:
    """Without git, outside a repository and in one that has just been made there is nothing to compare with."""
    project = builders.project(tmp_path / "tree", "test_x.py")
    project.rootdir.mkdir()
    with monkeypatch.context() as patched, wording.raises(SideError):
        patched.setenv("PATH", str(tmp_path))
        prepare("main", project)
    with wording.raises(SideError):
        prepare("main", project)
    Tree(project.rootdir, tmp_path.parent)
    with wording.raises(SideError):
        prepare("main", project)


@pytest.mark.parametrize("refusal", ["another owner", "a broken file of settings", "a link to nowhere"])
def test_refusing_git_is_an_error_and_no_absent_repository(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """A repository that git refuses to read is an error wherever it is looked for; nothing counts as unchanged."""
    tree.commit(**{"test_x.py": ""})
    write(tmp_path / "other", {"test_x.py": ""})
    if refusal == "another owner":
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    elif refusal == "a broken file of settings":
        (tree.top / ".git/config").write_text("[core", encoding="utf-8")
    else:
        (tree.top / ".git").rename(tmp_path / "elsewhere")
        (tree.top / ".git").write_text(f"gitdir: {tmp_path}/nowhere\n", encoding="utf-8")
    words = "git cannot read the repository" + ".*safe.directory" * (refusal == "another owner")
    project = builders.project(tree.top, "test_x.py")
    for spec in ("HEAD", f"dir:{tmp_path}/other", "pip:nothing==1", "python:nothing"):
        with pytest.raises(SideError, match=words):
            prepare(spec, project)
    with pytest.raises(SideError, match=words):
        read_tree(tree.top, tree.top / "baselines")


@pytest.mark.parametrize("git_ends", ["kill -9 $$", "exit 128"])
def test_git_that_does_not_answer_is_no_repository_without_commits(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, git_ends: str, wording: Wording
) -> None:
    """A git that was killed has answered nothing; one that cannot read the last commit has its own words for that."""
    head = tree.commit(**{"test_x.py": ""})
    if git_ends == "exit 128":
        (tree.top / ".git/objects" / head[:2] / head[2:]).unlink()
    else:
        real = shutil.which("git")
        program = write(
            tmp_path / "bin", {"git": f'#!/bin/sh\ncase "$*" in *HEAD^*) {git_ends};; esac\nexec {real} "$@"\n'}
        )
        (program / "git").chmod(0o755)
        monkeypatch.setenv("PATH", str(program), prepend=os.pathsep)
    with wording.raises(SideError) as caught:
        prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert not isinstance(caught.value, NoRepositoryError)


def test_repository_of_another_owner_that_is_declared_safe(
    superproject: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What git's own message advises is enough, for the tree and for each submodule, as in a container of a CI."""
    places = (superproject.top, superproject.top / "vendor/library")
    settings = write(tmp_path, {"settings": "[safe]\n" + "".join(f"directory = {place}\n" for place in places)})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings / "settings"))
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    sides = prepare("HEAD~1", builders.project(superproject.top, "test_x.py"))
    assert sides.changed == ("vendor/library/code",)


def test_copy_has_the_history_and_the_names_of_versions(tree: Tree, tmp_path: Path) -> None:
    """What builds ask git for is there as in the user's own tree, which may be a shallow clone at an odd path."""
    tree.commit(a="1")
    tree.commit(a="2")
    tree.git("tag", "v1")
    tree.commit(**{"test_x.py": ""})
    clone = tmp_path / 'line\nfeed and "\\'
    subprocess.run(["git", "clone", "--quiet", "--depth=2", tree.top.as_uri(), str(clone)], check=True)
    base = tree_of(prepare("HEAD", builders.project(clone, "test_x.py")).base)
    assert git(base, "describe", "--tags").startswith("v1-1-g")
    assert git(base, "rev-list", "--count", "HEAD") == "2"
    assert git(base, "status", "--porcelain", "--untracked-files=no") == ""


def test_missing_ref_or_merge_base_says_what_was_looked_for(tree: Tree, wording: Wording) -> None:
    """A missing ref is named with the fetch that may bring it; histories may never have met."""
    tree.commit(a="1")
    with wording.raises(SideError):
        find_repository(tree.top).resolve("nowhere")
    tree.commit(a="1")
    tree.git("checkout", "--quiet", "--orphan", "other")
    tree.commit(a="2")
    with wording.raises(SideError):
        find_repository(tree.top).resolve("main")


@pytest.fixture
def fork(tree: Tree) -> str:
    """Make a branch ``mine``, checked out, that has left ``main`` at the commit returned; both have gone on."""
    fork = tree.commit(a="1")
    tree.git("checkout", "--quiet", "-b", "mine")
    tree.commit(a="2")
    tree.git("checkout", "--quiet", "main")
    tree.commit(b="1")
    tree.git("checkout", "--quiet", "mine")
    return fork


def test_branch_means_its_merge_base(tree: Tree, fork: str, tmp_path: Path) -> None:
    """Of a branch it is the merge base with HEAD: what others have merged since is not the user's doing.

    A clone of one branch knows the others by their remote's name: REF is looked for, then origin/REF.
    """
    for name in ("main", "heads/main", "refs/heads/main"):
        found = find_repository(tree.top).resolve(name)
        assert (found.sha, found.title) == (fork, f"{name} (merge base {fork[:12]})")
    subprocess.run(["git", "clone", "--quiet", str(tree.top), str(tmp_path / "clone")], check=True)
    found = find_repository(tmp_path / "clone").resolve("main")
    assert (found.sha, found.title) == (fork, f"origin/main (merge base {fork[:12]})")


def test_anything_but_a_branch_means_exactly_that_commit(tree: Tree) -> None:
    """Tags, SHAs, HEAD and expressions mean the commit they name, on whatever branch it is."""
    first = tree.commit(a="1")
    tree.git("checkout", "--quiet", "-b", "side")
    aside = tree.commit(b="1")
    tree.git("tag", "--annotate", "v1.2", "--message", "release")
    tree.git("checkout", "--quiet", "main")
    last = tree.commit(a="2")
    repository = find_repository(tree.top)
    expected = {
        "v1.2": (aside, f"v1.2 ({aside[:12]})"),
        "side~0": (aside, f"side~0 ({aside[:12]})"),
        aside: (aside, aside[:12]),
        aside[:9]: (aside, aside[:12]),
        "HEAD": (last, f"HEAD ({last[:12]})"),
        "HEAD~1": (first, f"HEAD~1 ({first[:12]})"),
        "main^": (first, f"main^ ({first[:12]})"),
    }
    found = {name: repository.resolve(name) for name in expected}
    assert {name: (commit.sha, commit.title) for name, commit in found.items()} == expected


def test_shallow_clone_says_how_to_deepen_it(tree: Tree, fork: str, tmp_path: Path) -> None:
    """The error on a commit or a merge base that a shallow clone lacks names both ways to deepen it."""
    argv = ["git", "clone", "--quiet", "--depth=1", "--no-single-branch", tree.top.as_uri(), str(tmp_path / "clone")]
    subprocess.run(argv, check=True)
    repository = find_repository(tmp_path / "clone")
    for ref in (fork, "HEAD~1", "main"):
        with pytest.raises(SideError, match=r"(?s)git fetch --unshallow.*fetch-depth: 0"):
            repository.resolve(ref)


def test_commit_of_a_baseline_must_be_in_the_local_history(tree: Tree, wording: Wording) -> None:
    """A baseline's commit is a full SHA that some ref leads to, else it is refused: no short one, no loose object."""
    tree.commit(a="1")
    lost = tree.commit(a="lost")
    tree.git("reset", "--quiet", "--hard", "HEAD~1")
    tree.git("checkout", "--quiet", "-b", "other")
    aside = tree.commit(a="3")
    tree.git("checkout", "--quiet", "main")
    head = tree.commit(**{"test_x.py": ""})
    repository = find_repository(tree.top)
    assert repository.has_commit(head)
    assert repository.has_commit(aside)
    refused = [lost, head[:12], "HEAD", "main", "f" * 40, "-" * 40, tree.git("rev-parse", "HEAD^{tree}")]
    assert not any(repository.has_commit(sha) for sha in refused)
    project = builders.project(tree.top, "test_x.py")
    with wording.raises(SideError):
        preparation(project).commit(lost)
    assert preparation(project).commit(aside).base.label == f"commit {aside[:12]}"


@pytest.fixture
def superproject(tmp_path: Path) -> Tree:
    """Make a repository with a submodule that has moved on since its first commit."""
    library = Tree(tmp_path / "library", tmp_path.parent)
    library.commit(code="1")
    tree = Tree(tmp_path / "tree", tmp_path.parent)
    tree.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.top), "vendor/library")
    tree.commit(**{"test_x.py": ""})
    submodule = tree.top / "vendor/library"
    write(submodule, {"code": "2"})
    subprocess.run(["git", "commit", "--quiet", "--all", "--message", "change"], cwd=submodule, check=True)
    tree.commit()
    return tree


def test_submodules_come_from_the_users_own_as_they_were(superproject: Tree) -> None:
    """A commit's are checked out as it had them; their index stays as it is, and a change in one counts."""
    sides = prepare("HEAD~1", builders.project(superproject.top, "test_x.py"))
    assert files_of(tree_of(sides.base) / "vendor/library", "code") == {"code": "1"}
    assert (sides.changed, sides.notes) == (("vendor/library/code",), ())
    os.utime(superproject.top / "vendor/library/code", (0, 0))
    before = snapshot(superproject.top)
    sides = prepare("HEAD", builders.project(superproject.top, "test_x.py"))
    assert snapshot(superproject.top) == before
    assert (sides.changed, sides.notes) == ((), ())
    superproject.git("config", "diff.ignoreSubmodules", "all")
    repository = find_repository(superproject.top)
    assert not repository.is_dirty(superproject.top / "baselines")
    write(superproject.top / "vendor/library", {"code": "3"})
    assert repository.is_dirty(superproject.top / "baselines")


def test_a_linked_worktree_is_a_tree_like_any_other(tree: Tree, tmp_path: Path) -> None:
    """Its objects, and the edge of a shallow clone, lie in the repository that it belongs to."""
    for version in "123":
        tree.commit(**{"mylib.py": version, "test_x.py": ""})
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=2", tree.top.as_uri(), str(clone)], check=True)
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tmp_path / "linked")], cwd=clone, check=True)
    sides = prepare("HEAD~1", builders.project(tmp_path / "linked", "test_x.py"))
    assert [files_of(tree_of(side), "mylib.py") for side in (sides.base, sides.head)] == [
        {"mylib.py": "2"},
        {"mylib.py": "3"},
    ]
    assert sides.changed == ("mylib.py",)


def test_tests_within_a_submodule_are_todays(superproject: Tree) -> None:
    """Measured tests may lie in a submodule: what lies below its folder of tests is laid on base's commit."""
    write(superproject.top / "vendor/library", {"tests/test_y.py": "2", "tests/helper.py": "2", "code.py": "2"})
    sides = prepare("HEAD~1", builders.project(superproject.top, "vendor/library/tests/test_y.py"))
    names = ("code", "code.py", "tests/test_y.py", "tests/helper.py")
    assert files_of(tree_of(sides.base) / "vendor/library", *names) == {
        "code": "1",
        "tests/test_y.py": "2",
        "tests/helper.py": "2",
    }


TEST = """
import conftest, {helper}, {library}
from pathlib import Path

def test_sides():
    assert conftest.SIDE == "head"
    assert {helper}.SIDE == "head"
    assert {library}.SIDE == "base"
    assert (Path(__file__).parent / "data.txt").read_text() == "head"
"""


def test_flat_layout(tree: Tree, wording: Wording) -> None:
    """Beside a root conftest lie a package and a module: those stay base's, and what lies below tests is today's."""
    on_base, today = 'SIDE = "base"\n', 'SIDE = "head"\n'
    code = ("conftest.py", "learner.py", "mylib/__init__.py", "tests/helper.py")
    tree.commit(**dict.fromkeys((*code, "mylib/core.py", "tests/old_helper.py"), on_base))
    settings = "[pytest]\naddopts = --no-such-option"
    tree.commit(**{"tests/data.txt": "base", "pytest.ini": settings, "baselines/ppo/config.json": "[]"})
    (tree.top / "tests/old_helper.py").unlink()
    test = TEST.format(helper="helper", library="mylib, learner")
    tree.write(
        **dict.fromkeys((*code, "mylib/added.py", "tests/more/deep.py"), today),
        **{"tests/data.txt": "head", "pytest.ini": "[pytest]\n", "baselines/ppo/config.json": "{}"},
        **{"baselines/default/linux-x86_64-2c-cpython3.11-f6dc7bf2.json": "{}"},
        **{"tests/test_x.py": test.replace("mylib, learner.SIDE", "mylib.SIDE == learner.SIDE")},
    )
    project = builders.project(
        tree.top, "tests/test_x.py", conftests=(tree.top / "conftest.py",), inipath=tree.top / "pytest.ini"
    )
    sides = prepare("HEAD", project)
    run_tests(sides.base)
    assert sides.changed == ("baselines/ppo/config.json", "learner.py", "mylib/__init__.py", "mylib/added.py")
    assert sides.notes == wording
    assert sides.head.label == "working tree"
    base = tree_of(sides.base)
    assert tree_of(sides.head) != base
    assert len(str(tree_of(sides.head))) == len(str(base))
    assert not any((base / name).exists() for name in ("tests/old_helper.py", "mylib/added.py", "baselines/default"))
    assert files_of(base, "tests/more/deep.py", "mylib/core.py") == {
        "tests/more/deep.py": today,
        "mylib/core.py": on_base,
    }


def test_modules_beside_tests_are_the_sides_own(tree: Tree) -> None:
    """Only files of tests are today's on base, whatever names the others have and whatever is read."""
    names = ("env.py", "tasks.py", "data.txt", "pyproject.toml", "bench/common.py", "mylib/ppo.py")
    tests = ("test_x.py", "conftest.py", "mylib/test_ppo.py", "mylib/conftest.py", "pytest.ini")
    tree.commit(**dict.fromkeys((*names, *tests), "1"))
    tree.write(**dict.fromkeys((*names, *tests), "2"))
    sides = prepare("HEAD", builders.project(tree.top, "mylib/test_ppo.py", inipath=tree.top / "pyproject.toml"))
    base = tree_of(sides.base)
    assert files_of(base, *names, *tests) == {**dict.fromkeys(names, "1"), **dict.fromkeys(tests, "2")}
    assert set(sides.changed or ()) == set(names)
    settings = [side.args[side.args.index("-c") + 1] for side in (sides.base, sides.head)]
    assert [Path(path).read_text(encoding="utf-8") for path in settings] == ["2", "2"]


def test_a_pattern_of_all_modules_says_nothing_about_tests(tree: Tree) -> None:
    """Where pytest collects every module, the measured ones alone are those of tests."""
    tree.commit(**{"learner.py": "1", "speed.py": "1"})
    tree.write(**{"learner.py": "2", "speed.py": "2"})
    sides = prepare("HEAD", builders.project(tree.top, "speed.py", test_patterns=("*.py",)))
    assert files_of(tree_of(sides.base), "learner.py", "speed.py") == {"learner.py": "1", "speed.py": "2"}


@pytest.mark.parametrize("name", ["tests", pytest.param("test", marks=pytest.mark.slow)])
def test_directory_of_tests_within_a_package_is_todays(tree: Tree, name: str) -> None:
    """Files below a package's directory of that name are for tests: helpers come along, and do not count as code."""
    inside = (f"mylib/{name}/__init__.py", f"mylib/{name}/helpers.py", f"mylib/{name}/unit/data.txt")
    tree.commit(
        **dict.fromkeys(["mylib/__init__.py", "mylib/core.py", *inside, f"mylib/{name}/old.py"], 'SIDE = "base"')
    )
    (tree.top / f"mylib/{name}/old.py").unlink()
    test = (
        f"from mylib.core import SIDE\nfrom mylib.{name} import SIDE as TODAY\n"
        f"from mylib.{name}.helpers import SIDE as OURS\n\n"
        'def test_sides():\n    assert (SIDE, TODAY, OURS) == ("base", "head", "head")\n'
    )
    measured = f"mylib/{name}/unit/test_x.py"
    tree.commit(**dict.fromkeys(["mylib/core.py", *inside], 'SIDE = "head"'), **{measured: test})
    sides = prepare("HEAD~1", builders.project(tree.top, measured))
    run_tests(sides.base)
    assert not (tree_of(sides.base) / f"mylib/{name}/old.py").exists()
    assert sides.changed == ("mylib/core.py",)


def test_sources_come_before_what_a_build_has_left(tree: Tree) -> None:
    """A file that was built is named by the first changed one that ends so: the source, which git knows."""
    tree.commit(**{"src/mylib/core.py": "1"})
    tree.write(**{"src/mylib/core.py": "2", "build/lib/mylib/core.py": "1"})
    assert prepare("HEAD", builders.project(tree.top)).changed == ("src/mylib/core.py", "build/lib/mylib/core.py")


def test_both_sides_have_what_git_ignores_and_links_stay_links(tree: Tree, tmp_path: Path) -> None:
    """Ignored files are alike on both sides, less bytecode and environments; no link leads a copy out of its tree."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (tree.top / "tests").symlink_to(outside)
    tree.commit(**{".gitignore": "*.log\n.env\n.venv/\n__pycache__/\n", "mylib.py": "1"})
    (tree.top / "tests").unlink()
    tree.write(**{"tests/test_x.py": "", "tests/x.log": "1", "tests/data.txt": "", ".env": "2", "mylib.py": "2"})
    tree.write(**{".venv/pyvenv.cfg": "", ".venv/lib/x.py": "", "__pycache__/mylib.cpython-311.pyc": ""})
    (tree.top / "tests/link").symlink_to("data.txt")
    sides = prepare("HEAD", builders.project(tree.top, "tests/test_x.py"))
    for side in (sides.base, sides.head):
        top = tree_of(side)
        assert sorted(path.name for path in (top / "tests").iterdir()) == ["data.txt", "link", "test_x.py", "x.log"]
        assert (top / "tests/link").readlink() == Path("data.txt")
        assert files_of(top, ".env", "tests/x.log") == {".env": "2", "tests/x.log": "1"}
        assert not (top / ".venv").exists()
        assert not (top / "__pycache__").exists()
    assert sides.changed == ("mylib.py",)
    assert not list(outside.iterdir())


def test_what_is_too_large_is_left_out_unless_it_is_named(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ignored files the small ones are copied; patterns name others, whatever their size."""
    monkeypatch.setattr(trees, "_LAID_BYTES", 10)
    tree.commit(**{".gitignore": "data/\nsmall.bin\n", "test_x.py": ""})
    tree.write(**{"data/a.npz": "1" * 20, "data/b.npz": "2" * 20, "small.bin": "3"})
    names = ("data/a.npz", "data/b.npz", "small.bin")
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert list(files_of(tree_of(sides.head), *names)) == ["small.bin"]
    assert any("git ignores data/, too large to be copied" in note for note in sides.notes)
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py", also=("data/b*",)))
    assert list(files_of(tree_of(sides.base), *names)) == ["data/b.npz", "small.bin"]


@pytest.mark.parametrize("ignored", ["tmp/\n", ""])
def test_files_of_runs_are_not_the_trees(tree: Tree, monkeypatch: pytest.MonkeyPatch, ignored: str) -> None:
    """Where temporary files lie in the tree, copies would be copied; file names with line ends are as they are."""
    tree.commit(**{".gitignore": ignored, "a\r.txt": "1", "test_x.py": ""})
    tree.write(**{"a\r.txt": "2", "tmp/kept.txt": "1"})
    monkeypatch.setenv("TMPDIR", str(tree.top / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    tree.write(**{"tmp/pytest-rlperf-older/copy/test_x.py": ""})
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py"))
    copies = tree_of(sides.head)
    names = {path.relative_to(copies).as_posix() for path in copies.rglob("*.txt")}
    assert names == {"a\r.txt", "tmp/kept.txt"}
    assert not list((copies / "tmp").glob("pytest-rlperf-*"))
    assert (copies / "a\r.txt").read_text() == "2"


def test_a_tree_that_changes_meanwhile_is_copied_again(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is the tree as one moment had it; a tree that never rests is an error."""
    monkeypatch.setattr(trees, "_PAUSE_S", 0.0)
    monkeypatch.setattr(trees, "_ATTEMPTS", 3)
    tree.commit(**{"a.py": "1", "b.py": "1", "test_x.py": ""})
    copied, times = trees.copy, 0

    def edit(source: Path, target: Path, name: str) -> None:
        nonlocal times
        copied(source, target, name)
        if source == tree.top and times:
            times -= 1
            tree.write(**{"a.py": f"{times}"})

    tree.write(**{"a.py": "2", "b.py": "2"})
    monkeypatch.setattr(trees, "copy", edit)
    times = 2
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert files_of(tree_of(sides.head), "a.py", "b.py") == {"a.py": "0", "b.py": "2"}
    times = 1000
    with pytest.raises(SideError, match=r"kept changing while it was copied, a\.py at the last of 3 times"):
        prepare("HEAD", builders.project(tree.top, "test_x.py"))


@pytest.mark.parametrize("which", ["today's", "the other checkout's"])
def test_lock_of_a_git_that_was_killed_is_noted(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, wording: Wording
) -> None:
    """A lock that stays is waited for once, whichever tree has it, and named; the tree is copied all the same."""
    monkeypatch.setattr(trees, "_LOCKED_S", 0.1)
    tree.commit(**{"mylib.py": "1", "test_x.py": ""})
    subprocess.run(["git", "clone", "--quiet", str(tree.top), str(tmp_path / "other")], check=True)
    locked = tree.top if which == "today's" else tmp_path / "other"
    write(locked, {".git/index.lock": ""})
    made = preparation(builders.project(tree.top, "test_x.py"))
    sides = made.against("dir:../other")
    assert sides.notes == wording
    assert made.alone().notes == (sides.notes if which == "today's" else ())


def test_lock_that_comes_or_goes_meanwhile_has_the_tree_copied_again(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A git command that has begun since, or another one, may have written half of its files."""
    monkeypatch.setattr(trees, "_PAUSE_S", 0.0)
    monkeypatch.setattr(trees, "_LOCKED_S", 0.0)
    tree.commit(**{"mylib.py": "1", "test_x.py": ""})
    lock, copied, times = tree.top / ".git/index.lock", Repository.check_out, 0

    def check_out(repository: Repository, sha: str, target: Path) -> None:
        nonlocal times
        copied(repository, sha, target)
        times += 1
        if times == 1:
            lock.touch()
        elif times == 2:
            lock.unlink()

    monkeypatch.setattr(Repository, "check_out", check_out)
    assert preparation(builders.project(tree.top, "test_x.py")).today.lock is None
    assert times == 3


def test_sides_are_as_they_were_when_the_run_began(tree: Tree) -> None:
    """Neither edits nor another commit reach a comparison that is made later in the run."""
    first = tree.commit(**{"mylib.py": "1", "test_x.py": ""})
    second = tree.commit(**{"mylib.py": "2"})
    made = preparation(builders.project(tree.top, "test_x.py"))
    before = made.commit(first)
    tree.commit(**{"mylib.py": "3"})
    tree.write(**{"mylib.py": "4"})
    after = made.commit(first)
    assert {side.label for side in (before.head, after.head)} == {f"HEAD {second[:12]}"}
    assert [files_of(tree_of(side), "mylib.py")["mylib.py"] for side in (after.base, after.head)] == ["1", "2"]


def test_file_taken_away_or_added_differs(tree: Tree) -> None:
    """Deleted, new and renamed files are among those by which the trees differ; ignored ones are not."""
    tree.commit(**{"src/a.py": "1", "src/b é.py": "1", ".gitignore": "*.so\n", "tests/test_x.py": ""})
    tree.git("mv", "src/a.py", "src/c.py")
    (tree.top / "src/b é.py").unlink()
    tree.write(**{"src/d.py": "1", "src/e.so": "1"})
    sides = prepare("HEAD", builders.project(tree.top, "tests/test_x.py"))
    assert sides.changed == ("src/a.py", "src/b é.py", "src/c.py", "src/d.py")


installed = functools.cache(parent_state)  # nothing is installed here: one look at all that is there will do
BUILT = "\x7fELF, of which nobody knows what it was built from"


def test_what_may_go_into_a_build_is_no_question_of_its_ending(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags and what sources include may; modules may not, but for those that are compiled as they stand or build."""
    monkeypatch.setattr("pytest_rlperf.sides.prepare.build_into", lambda *_, **__: None)
    monkeypatch.setattr("pytest_rlperf.sides.prepare.needs_isolation", lambda *_: False)
    monkeypatch.setattr("pytest_rlperf.sides.prepare.parent_state", installed)
    into: tuple[str, ...] = (
        "Makefile",
        "csrc/rounds.inl",
        "csrc/setup.py",
        "csrc/sim.c",
        "lib/fast.py",
        "lib/made.py",
        "tables.bin",
    )
    into = (*into, "tools/__init__.py", "tools/flags.py", "tools/hatch_build.py")
    others = (
        ".github/ci.yml",
        "README.md",
        "lib/.gitignore",
        "lib/__init__.py",
        "lib/sim.py",
        "lib/slow.py",
        "test_x.py",
    )
    named = {
        "setup.py": "from tools.flags import C\nx = 'lib/made.py:ffi', 'csrc/sim.c', 'tools/__init__.py', 'slow-er'\n"
    }
    compiled = {"lib/fast.cpython-311.so": BUILT, "libsim.so.1": BUILT}
    tree.commit(**dict.fromkeys((*into, *others), "1"), **named, **{".gitignore": "*.so*\n"})
    tree.write(**dict.fromkeys((*into, *others), "2"), **{"out.txt": "of a run", "lib/notes.so": "no code"}, **compiled)
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert (sides.compiled, sides.sources) == (frozenset(compiled), into)

    tree.git("worktree", "add", "--quiet", str(tmp_path / "other"), "HEAD")
    write(tmp_path / "other", {"libsim.so.1": BUILT})
    sides = prepare(f"dir:{tmp_path / 'other'}", builders.project(tree.top, "test_x.py"))
    assert sides.compiled == {"lib/fast.cpython-311.so"}


@pytest.mark.parametrize("is_failing", [False, True])
def test_what_a_project_does_not_build_is_noted(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, wording: Wording, is_failing: bool
) -> None:
    """A Makefile beside it may; tests that load nothing of it are compared all the same."""

    def build_into(*_: object, **__: object) -> None:
        if is_failing:
            raise SideError("building /tmp/it failed (exit code 1):\nsim.c:1:2: error: no such thing\nERROR: x")

    monkeypatch.setattr("pytest_rlperf.sides.prepare.build_into", build_into)
    monkeypatch.setattr("pytest_rlperf.sides.prepare.needs_isolation", lambda *_: False)
    monkeypatch.setattr("pytest_rlperf.sides.prepare.parent_state", installed)
    tree.commit(**{"setup.py": "1", "Makefile": "1", ".gitignore": "*.so\n", "test_x.py": ""})
    tree.write(**{"Makefile": "2", "libsim.so": BUILT})
    sides = prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert sides.notes[-1] == wording
    assert sides.compiled == {"libsim.so"}
    assert len(sides.base.homes) == 1


def test_paths_of_a_run_lead_to_base(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in PYTHONPATH, in PYTEST_ADDOPTS and in arguments; a run in another directory has none there."""
    tree.commit(**{"src/mylib.py": "", "config.yml": "", "tests/test_x.py": ""})
    monkeypatch.setenv("PYTHONPATH", f"{tree.top}/src{os.pathsep}{tmp_path}")
    monkeypatch.setenv("PYTEST_ADDOPTS", f"-p no:x --ignore='{tree.top}/src' -k tests")
    monkeypatch.setenv("MYLIB_CONFIG", f"{tree.top}/config.yml")
    monkeypatch.setenv("MYLIB_FLAGS", f"mode=fast:at={tree.top}/src:{tree.top}/elsewhere")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    plain = prepare("HEAD", builders.project(tree.top, "tests/test_x.py"))
    assert "JAX_COMPILATION_CACHE_DIR" not in plain.head.environment
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/shared")
    sides = prepare("HEAD", builders.project(tree.top, "tests/test_x.py"))
    for side in (sides.base, sides.head):
        own = tree_of(side)
        assert side.environment["PYTHONPATH"] == f"{own}/src{os.pathsep}{tmp_path}"
        assert side.environment["PYTEST_ADDOPTS"] == f"-p no:x --ignore={own}/src -k tests"
        assert side.environment["MYLIB_CONFIG"] == f"{own}/config.yml"
        assert Path(side.environment["TORCH_EXTENSIONS_DIR"] or "").is_dir()
        assert side.environment["MYLIB_FLAGS"] == f"mode=fast:at={own}/src:{tree.top}/elsewhere"
    names = "NUMBA_CACHE_DIR", "JAX_COMPILATION_CACHE_DIR"
    caches = {side.environment[name] for side in (sides.base, sides.head) for name in names}
    assert len(caches - {"/shared"}) == 4
    args = (f"{tree.top}/tests/test_x.py::test_a[x=/tree]", "-o", f"x={tree.top}/src", "-k", "tests", "--", "tests")
    sides = prepare("HEAD", builders.project(tree.top, "tests/test_x.py", args=args))
    base = tree_of(sides.base)
    moved = (f"{base}/tests/test_x.py::test_a[x=/tree]", "-o", f"x={base}/src", "-k", "tests", f"--rootdir={base}")
    assert sides.base.args == (*moved, "-c", f"{base}/.rlperf-.ini", "--", "tests")
    with pytest.raises(SideError, match="pytest was started in"):
        prepare("HEAD", builders.project(tree.top, "tests/test_x.py", directory=tmp_path))


def test_users_repository_is_not_touched(tree: Tree, tmp_path: Path) -> None:
    """Preparing a side writes no ref, worktree, setting, object or index of the user's, and runs no hook."""
    tree.commit(**{"mylib/__init__.py": "1", "tests/test_x.py": ""})
    tree.commit(**{"mylib/__init__.py": "2"})
    hook = tree.top / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n", encoding="utf-8")
    hook.chmod(0o755)
    tree.git("config", "core.splitIndex", "true")
    tree.git("update-index", "--split-index")
    for name in ("mylib/__init__.py", "tests/test_x.py"):
        os.utime(tree.top / name, (0, 0))  # stale in the index, which a plain git status or diff would refresh
    before = snapshot(tree.top)
    written = (tree.top / ".git/index").stat().st_mtime_ns
    sides = prepare("HEAD~1", builders.project(tree.top, "tests/test_x.py"))
    assert snapshot(tree.top) == before
    assert (tree.top / ".git/index").stat().st_mtime_ns == written
    assert (sides.changed, sides.notes) == (("mylib/__init__.py",), ())
    assert not (tmp_path / "hook-ran").exists()


def snapshot(top: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


def settled(tree: Tree) -> None:
    """Check all files out anew, as git's settings have them now."""
    tree.git("add", "--all")
    tree.git("rm", "--cached", "-r", "--quiet", ".")
    tree.git("reset", "--quiet", "--hard")


def filtered(tree: Tree, smudge: str, *settings: str) -> None:
    """Set a filter that stores BEFORE and checks out what ``smudge`` makes of it."""
    for name, value in (
        ("clean", "sed s/AFTER/BEFORE/"),
        ("smudge", smudge),
        *zip(settings[::2], settings[1::2], strict=True),
    ):
        tree.git("config", f"filter.made-up.{name}", value)


CONVERSIONS: dict[str, Callable[[Tree], object]] = {
    "a filter": lambda tree: filtered(tree, "sed s/BEFORE/AFTER/"),
    "autocrlf": lambda tree: tree.git("config", "core.autocrlf", "true"),
    "attributes of the repository": lambda tree: (tree.top / ".git/info/attributes").write_text("*.py text eol=crlf\n"),
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_contents_are_converted_alike_on_both_sides(tree: Tree, how: str) -> None:
    """Base's files are what git would check out in the user's tree, changed ones too; equal code is equal."""
    (tree.top / ".git/info").mkdir(exist_ok=True)
    attributes = "*.py filter=made-up\n" if how == "a filter" else ""
    files = {"mylib/__init__.py": "BEFORE\n", "mylib/same.py": "BEFORE\n", "test_x.py": ""}
    tree.commit(**files, **{".gitattributes": attributes})
    tree.commit(**{"mylib/__init__.py": "BEFORE\nnew\n"})
    CONVERSIONS[how](tree)
    settled(tree)
    converted = b"AFTER\n" if how == "a filter" else b"BEFORE\r\n"
    assert (tree.top / "mylib/same.py").read_bytes() == converted
    sides = prepare("HEAD~1", builders.project(tree.top, "test_x.py"))
    base = tree_of(sides.base)
    assert sides.changed == ("mylib/__init__.py",)
    assert [(base / f"mylib/{name}.py").read_bytes() for name in ("same", "__init__")] == [converted] * 2


@pytest.mark.parametrize("required", ["true", "false"])
def test_filter_that_fails_is_an_error(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, required: str, wording: Wording
) -> None:
    """A filter that does not work in a clone, as one that needs a key, is refused in one sentence that names it."""
    monkeypatch.setattr(trees, "_PAUSE_S", 0.0)
    monkeypatch.setattr(trees, "_ATTEMPTS", 2)
    tree.commit(**{"mylib.py": "BEFORE\n", "test_x.py": "", ".gitattributes": "*.py filter=made-up\n"})
    filtered(tree, "test -f .git/key && sed s/BEFORE/AFTER/", "required", required)
    (tree.top / ".git/key").touch()
    settled(tree)
    with wording.raises(SideError) as caught:
        prepare("HEAD", builders.project(tree.top, "test_x.py"))
    assert "\n" not in str(caught.value)


def test_directory_with_git_is_compared_with_as_it_is(tree: Tree, tmp_path: Path) -> None:
    """Another checkout counts with its uncommitted changes, less what it ignores, and stays as it is."""
    tree.commit(**{"mylib/__init__.py": "1", "mylib/gone.py": "", "tests/test_x.py": "today"})
    subprocess.run(["git", "clone", "--quiet", str(tree.top), str(tmp_path / "other")], check=True)
    write(tmp_path / "other", {"mylib/__init__.py": "other", "mylib/new.py": "other", "tests/test_x.py": "other"})
    (tmp_path / "other/mylib/gone.py").unlink()
    before = snapshot(tmp_path / "other")
    sides = prepare("dir:../other", builders.project(tree.top, "tests/test_x.py"))
    assert snapshot(tmp_path / "other") == before
    base = tree_of(sides.base)
    names = ("mylib/__init__.py", "mylib/gone.py", "mylib/new.py", "tests/test_x.py")
    assert list(files_of(base, *names).values()) == ["other", "other", "today"]
    assert sides.changed == ("mylib/__init__.py", "mylib/gone.py", "mylib/new.py")
    assert (sides.base.label, sides.notes) == (str(tmp_path / "other"), ("both sides have today's tests/test_x.py",))


@pytest.mark.parametrize("spec", ["dir:missing", "dir:.", "dir:../plain"])
def test_directory_that_is_none_is_refused(tmp_path: Path, spec: str, wording: Wording) -> None:
    """A directory that is not there, is today's tree, or is no checkout, is no side."""
    (tmp_path / "plain").mkdir()
    Tree(tmp_path / "tree", tmp_path.parent).commit(**{"test_x.py": ""})
    with wording.raises(SideError):
        prepare(spec, builders.project(tmp_path / "tree", "test_x.py"))


def test_a_checkout_that_ends_while_the_tree_is_looked_at_is_seen(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes the files first and HEAD last; between, git compares the files with either commit."""
    monkeypatch.setattr(trees, "_PAUSE_S", 0.0)
    one = tree.commit(**{"a.py": "1", "test_x.py": ""})
    two = tree.commit(**{"a.py": "2"})
    changed, times = Repository.changed, 0

    def switch(repository: Repository, listing: Listing) -> list[str]:
        nonlocal times
        times += 1
        if times == 1:  # the files of one commit, and still the HEAD of the other
            found = changed(repository, listing)
            tree.git("read-tree", "--reset", "-u", one)
            return found
        if times == 2:
            tree.git("update-ref", "--no-deref", "HEAD", one)
        return changed(repository, listing)

    monkeypatch.setattr(Repository, "changed", switch)
    made = preparation(builders.project(tree.top, "test_x.py"))
    assert (made.today.head, files_of(made.today.tree, "a.py")) == (one, {"a.py": "1"})
    assert one != two
