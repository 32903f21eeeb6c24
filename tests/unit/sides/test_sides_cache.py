"""The cache of sides: where it is, who may write to it, what a fault leaves behind, and how large it gets."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from builders import source, write
from forks import run_forked
from wording import Wording

from pytest_rlperf.errors import SideError
from pytest_rlperf.sides import cache as cache_module
from pytest_rlperf.sides.cache import Cache, open_cache


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    opened = open_cache(tmp_path / "tree")
    yield opened
    opened.close()


def filled_with(text: str) -> Callable[[Path], None]:

    def fill(directory: Path) -> None:
        write(directory, {"package/file": text})

    return fill


def never(text: object) -> NoReturn:
    """Take progress, or build, where there must be none."""
    raise AssertionError(text)


def quiet(text: str) -> None:
    """Show no progress."""


def content(place: Path) -> str:
    return (place / "package/file").read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["within the tree", "home within the tree", "in a:b", "not to be made"])
def test_place_in_which_no_side_can_be_kept_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, wording: Wording
) -> None:
    """A cache within the user's tree, one whose path ends an entry of PATH, and one that cannot be made are errors."""
    top = write(tmp_path / "tree", {"file": ""})
    monkeypatch.setenv("HOME", str(top))
    named = {"within the tree": top / "cache", "in a:b": tmp_path / "a:b", "not to be made": top / "file/cache"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(named.get(place, "relative")))
    with wording.raises(SideError):
        open_cache(tmp_path / "other" if place == "not to be made" else top)
    assert sorted(path.name for path in (*top.iterdir(), *tmp_path.iterdir())) == ["file", "tree"]


def of_another_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lstat = Path.lstat

    def of_another(path: Path) -> os.stat_result:
        found = lstat(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == place else found

    monkeypatch.setattr(Path, "lstat", of_another)


def a_link(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = place.with_name("elsewhere")
    place.rename(elsewhere)
    place.symlink_to(elsewhere)


FAULTS: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "its group can write to it": lambda place, _: place.chmod(0o770),
    "everybody can write to it": lambda place, _: place.chmod(0o707),
    "it is another user's": of_another_user,
    "it is a link": a_link,
}


@pytest.mark.parametrize(
    ("which", "fault"),
    [*((which, fault) for which in ("tree", "entry", "attempt") for fault in FAULTS), ("lock", "it is a link")],
)
def test_code_is_not_loaded_from_what_others_may_have_written(
    cache: Cache, which: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory down to the code must be this user's, closed to others and no link; the error names it."""
    attempt = cache.entry("key", filled_with("1"), never)
    cache.close()
    entry = attempt.parent
    place = {"tree": cache.directory, "entry": entry, "attempt": attempt, "lock": entry / "lock"}[which]
    FAULTS[fault](place, monkeypatch)
    with pytest.raises(SideError, match=rf"{place.name}\b.* [Ss]et XDG_CACHE_HOME"):
        cache.entry("key", never, never)


@pytest.mark.parametrize("which", ["the cache", "a directory above it"])
def test_cache_that_others_could_exchange_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A user's cache that others can write to, or put another in the place of, is not used; a private one is."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open/pytest-rlperf").mkdir(mode=0o700)
    (tmp_path / ("open/pytest-rlperf" if which == "the cache" else "open")).chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "open"))
    with pytest.raises(SideError, match="other users can write to"):
        open_cache(tmp_path / "tree")
    (tmp_path / "open").chmod(0o1777)  # as that of /tmp: nobody can exchange what is in it
    (tmp_path / "open/pytest-rlperf").chmod(0o700)
    assert open_cache(tmp_path / "tree").directory.parent == tmp_path / "open/pytest-rlperf"


def test_cache_is_for_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    """All directories of the cache are made for this user alone."""
    (tmp_path / "cache").mkdir()
    umask = os.umask(0)
    try:
        opened = open_cache(tmp_path / "tree")
        attempt = opened.entry("key", filled_with("1"), never)
    finally:
        os.umask(umask)
    opened.close()
    places = (opened.directory.parent, opened.directory, attempt.parent, attempt)
    assert [place.stat().st_mode & 0o777 for place in places] == [0o700] * 4


def test_entry_is_built_once(cache: Cache) -> None:
    """A complete entry is used again, also by another cache, after workers wrote bytecode."""
    first = cache.entry("key", filled_with("1"), never)
    assert content(first) == "1"
    write(first, {"package/__pycache__/x.pyc": ""})
    again = Cache(cache.directory)
    assert again.entry("key", never, never) == first
    assert cache.entry("other", filled_with("2"), never) != first
    again.close()


def test_an_entry_that_was_changed_is_built_again(cache: Cache) -> None:
    """Contents count, not times: a file of the same size and date as before is another file all the same."""
    first = cache.entry("key", filled_with("1"), never)
    (changed,) = [path for path in first.rglob("*") if path.is_file()]
    before = changed.stat()
    changed.write_text("2", encoding="utf-8")
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert content(Cache(cache.directory).entry("key", filled_with("1"), never)) == "1"


def test_failed_build_leaves_nothing(cache: Cache) -> None:
    """A failed build is never used, and leaves no files."""

    def fail(directory: Path) -> None:
        write(directory, {"package/file": "half"})
        raise SideError("no luck")

    with pytest.raises(SideError, match="no luck"):
        cache.entry("key", fail, never)
    assert not list(cache.directory.glob("*/*/package/file"))
    assert content(cache.entry("key", filled_with("whole"), never)) == "whole"


_BUILDER = source("sides_cache/builder.py")


@contextlib.contextmanager
def builder(cache: Cache) -> Iterator[subprocess.Popen[str]]:
    """Start a process that builds an entry in steps, and end it whatever happens."""
    argv = [sys.executable, "-c", _BUILDER, str(cache.directory)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def proceed(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_killed_build_is_not_believed(cache: Cache) -> None:
    """A killed process's incomplete entry is deleted and built anew."""
    with builder(cache) as process:
        assert line_of(process) == "building"
        process.send_signal(signal.SIGKILL)
    assert list(cache.directory.glob("*/*/package/file"))
    assert content(cache.entry("key", filled_with("whole"), never)) == "whole"
    assert len(list(cache.directory.glob("*/*/package/file"))) == 1


def test_two_processes_make_one_entry(cache: Cache, wording: Wording) -> None:
    """A run waits for an entry that another run is building, and reports that; then both use it."""
    with builder(cache) as first, builder(cache) as second:
        outputs = sorted([(line_of(first), first), (line_of(second), second)], key=lambda pair: pair[0])
        (built, builds), (waited, waits) = outputs
        assert built == "building"
        assert waited == wording
        proceed(builds)
        assert line_of(builds) == line_of(waits)


def remove_the_attempt(attempt: Path) -> None:
    """Do what an error of ours suggests: to remove a side's directory."""
    (attempt / "package/file").unlink()
    (attempt / "package").rmdir()
    attempt.rmdir()


def marked(text: bytes) -> Callable[[Path], None]:

    def mark(attempt: Path) -> None:
        (attempt.parent / "complete").write_bytes(text.replace(b"NAME", attempt.name.encode()))

    return mark


BROKEN = {
    "no directory": remove_the_attempt,
    "an empty mark": marked(b""),
    "the mark of an older format": marked(b'{"attempt": "NAME", "files": {}}'),
    "a binary mark": marked(b"\xff\x00"),
    "a mark that leads out": marked(b"../.."),
    "a mark of the entry itself": marked(b"."),
    "a mark of no directory": marked(b"gone"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_broken_entry_is_built_again(cache: Cache, how: str) -> None:
    """An entry whose directory is not there, or whose mark cannot be read, is built again and used."""
    broken = cache.entry("key", filled_with("1"), never)
    cache.close()
    BROKEN[how](broken)
    again = cache.entry("key", filled_with("2"), never)
    assert content(again) == "2"
    assert sorted(path.name for path in again.parent.iterdir()) == sorted([again.name, "complete", "lock"])


# In a process of its own for each step of the cache's writers, that step fails or is the process's last: an open, a
# rename, a removal, a new directory, a changed time. Then the entry is used, and the cache emptied. Prints the steps.
_FAULTY = source("sides_cache/faulty.py")
_FAULTS = ("full disk", "kill")
_LEAST = {"nothing": 8, "an old entry": 3, "a broken entry": 8}  # steps


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str]]:
    """Run all cases of faults; return how each ended and what it said."""
    top, cases = tmp_path_factory.mktemp("faulty"), [(fault, before) for before in _LEAST for fault in _FAULTS]
    arguments = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(top / "cache"))
        for number, case in enumerate(cases):
            opened = open_cache(top / str(number))
            arguments.append((str(opened.directory), *case))
            opened.close()
    program = f"import sys; sys.argv[1:] = case\n{_FAULTY}"
    ended = run_forked("import pytest_rlperf.sides.cache", program, arguments, top)
    return dict(zip(cases, ended, strict=True))


@pytest.mark.parametrize("fault", _FAULTS)
@pytest.mark.parametrize(("before", "least"), _LEAST.items())
def test_fault_at_any_step_leaves_the_old_entry_or_the_new_one(
    faulty: dict[tuple[str, str], tuple[int, str]], fault: str, before: str, least: int
) -> None:
    """Whichever step of the writers fails or is the last, the next run finds a whole entry or builds one."""
    code, said = faulty[fault, before]
    assert code == 0, said
    assert least <= int(said) < 199


def test_old_entries_are_removed_unless_in_use(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many entries the latest are kept, and those that a run holds."""
    monkeypatch.setattr(cache_module, "KEPT_ENTRIES", 2)
    held = cache.entry("held", filled_with("held"), never)
    os.utime(held.parent / "lock", (0, 0))
    start_s = time.time() - 100
    others = Cache(cache.directory)
    places = []
    for number in range(4):
        places.append(others.entry(str(number), filled_with(str(number)), never))
        others.close()
        os.utime(places[-1].parent / "lock", (start_s + number, start_s + number))
    places.append(others.entry("last", filled_with("last"), never))
    others.close()
    assert held.is_dir()
    assert [place.parent.is_dir() for place in places] == [False, False, False, True, True]


def test_all_trees_together_stay_below_a_size(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever trees they are of, the entries used last stay; so does one of a tree that a run looks into."""
    monkeypatch.setattr(cache_module, "KEPT_BYTES", 25)
    places = []
    for number, name in enumerate(("looked into", "other", "other", "third")):
        opened = open_cache(tmp_path / name)
        places.append(opened.entry(str(number), filled_with("ten bytes!"), never).parent)
        opened.close()
        os.utime(places[-1] / "lock", (time.time() - 100 + number,) * 2)
    assert [place.exists() for place in places] == [False, False, True, True]
    left = open_cache(tmp_path / "looked into")
    places[0] = left.entry("0", filled_with("ten bytes!"), never).parent
    left.close()
    os.utime(places[0] / "lock", (time.time() - 200,) * 2)
    with (places[0].parent / "lock").open() as looked_into:
        fcntl.flock(looked_into, fcntl.LOCK_EX)
        cache.entry("last", filled_with("ten bytes!"), never)
    assert [place.exists() for place in places] == [True, False, False, True]


def test_builds_that_were_killed_are_removed(cache: Cache, tmp_path: Path) -> None:
    """An incomplete entry is of no use to any run, and goes with the next side that another tree keeps."""
    with builder(cache) as process:
        assert line_of(process) == "building"
        other = open_cache(tmp_path / "other")
        other.entry("key", filled_with("1"), never)
        assert list(cache.directory.glob("*/*/package/file")), "it is being built"
        process.send_signal(signal.SIGKILL)
    other.entry("key", never, never)
    assert not list(cache.directory.glob("*/*/package/file"))
    other.close()
