from __future__ import annotations

import os
import py_compile
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest
from builders import write

from pytest_rlperf.sides.prepare import compile_as_today, is_compiled


class Loader(SourceFileLoader):
    """Python's own loader, which notes whether it compiles."""

    compiled = False

    def source_to_code(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        self.compiled = True
        return super().source_to_code(*arguments, **options)  # type: ignore[arg-type]


def _compile(source: Path, mode: PycInvalidationMode = PycInvalidationMode.TIMESTAMP) -> Path:
    return Path(py_compile.compile(str(source), doraise=True, invalidation_mode=mode) or "")


def _as_is(source: Path) -> None:
    _compile(source)


def _touched(source: Path) -> None:
    _compile(source)
    os.utime(source, (1, 1))


def _longer(source: Path) -> None:
    _compile(source)
    status = source.stat()
    source.write_text("x = 1  # and more\n", encoding="utf-8")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))


def _hashed(source: Path) -> None:
    _compile(source, PycInvalidationMode.CHECKED_HASH)
    os.utime(source, (1, 1))


def _hashed_and_changed(source: Path) -> None:
    _compile(source, PycInvalidationMode.CHECKED_HASH)
    source.write_text("x = 2\n", encoding="utf-8")


def _unchecked_and_changed(source: Path) -> None:
    _compile(source, PycInvalidationMode.UNCHECKED_HASH)
    source.write_text("x = 2\n", encoding="utf-8")


def _of_another_python(source: Path) -> None:
    compiled = _compile(source)
    compiled.write_bytes(b"\0\0\r\n" + compiled.read_bytes()[4:])


def _cut(source: Path) -> None:
    compiled = _compile(source)
    compiled.write_bytes(compiled.read_bytes()[:10])


def _not_compiled(source: Path) -> None:
    pass


@pytest.mark.parametrize(
    "prepare",
    [
        _as_is,
        _touched,
        _longer,
        _hashed,
        _hashed_and_changed,
        _unchecked_and_changed,
        _of_another_python,
        _cut,
        _not_compiled,
    ],
)
def test_module_counts_as_compiled_where_python_does_not_compile_it(
    prepare: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule is Python's own, whatever kind of compiled file there is."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    source = tmp_path / "mod.py"
    source.write_text("x = 1\n", encoding="utf-8")
    prepare(source)
    found = is_compiled(source)
    loader = Loader("mod", str(source))
    assert loader.get_code("mod") is not None
    assert found is not loader.compiled


def test_base_is_compiled_where_today_is(tmp_path: Path) -> None:
    """Compiled files come and go on base with those of today's tree, which stays as it is."""
    today, base = tmp_path / "today", tmp_path / "base"
    names = ["a.py", "package/b.py", "only_today.py", "data.txt", "broken.py"]
    write(today, dict.fromkeys(names, "x = 1\n"))
    write(base, {"a.py": "x = 0\n", "package/b.py": "x = 1\n", "data.txt": "x", "broken.py": "x = (\n"})
    for name in ("a.py", "only_today.py", "broken.py"):
        _compile(today / name)
    before = sorted(today.rglob("*"))
    compile_as_today(today, names, base)
    assert [name for name in names if (base / name).is_file() and is_compiled(base / name)] == ["a.py"]
    _compile(today / "package" / "b.py")
    Path(cache_from_source(str(today / "a.py"))).unlink()
    compile_as_today(today, names, base)
    assert [name for name in names if (base / name).is_file() and is_compiled(base / name)] == ["package/b.py"]
    after = {path.name for path in today.rglob("*")} - {path.name for path in before}
    assert {name.partition(".")[0] for name in after} <= {"b"}


def test_compiled_files_of_today_stay_where_base_leads_to_them(tmp_path: Path) -> None:
    """A link in base's tree may lead into today's, whose files are not base's to compile or remove."""
    today, base, other = tmp_path / "today", tmp_path / "base", tmp_path / "other"
    write(other, {"c.py": "x = 1\n"})
    write(today, {"package/c.py": "x = 1\n"})
    compiled = _compile(other / "c.py")
    base.mkdir()
    (base / "package").symlink_to(other)
    compile_as_today(today, ["package/c.py"], base)
    assert compiled.exists()
