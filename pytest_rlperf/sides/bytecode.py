"""Compiled modules: a side's tree has them where today's tree has them.

A process that compiles a module has another heap afterwards than one that reads it compiled, and what it runs then may
differ in speed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import py_compile
from collections.abc import Iterable
from pathlib import Path

_HEADER = 16  # bytes, as PEP 552 has them: magic number, flags, then modification time and size or else a hash
_HASHED, _CHECKED = 1, 2


def compile_as_today(top: Path, names: Iterable[str], tree: Path) -> None:
    """Compile those modules of ``tree`` that are compiled in today's tree at ``top``, and no others of ``names``.

    ``names`` are today's files, relative to its top, which is not written to. Where the compiled files of ``tree``
    cannot be written, they stay as they are.
    """
    top_of_tree = tree.resolve()
    for name in names:
        other = tree / name
        # A link may lead out of the tree, into today's own.
        if not (name.endswith(".py") and other.is_file() and other.parent.resolve().is_relative_to(top_of_tree)):
            continue
        wanted = is_compiled(top / name)
        if wanted != is_compiled(other):
            with contextlib.suppress(OSError, py_compile.PyCompileError):
                if wanted:
                    py_compile.compile(str(other), doraise=True)
                else:
                    _compiled_file(other).unlink()


def is_compiled(source: Path) -> bool:
    """Whether Python would read a module compiled, rather than compile its source anew."""
    try:
        with _compiled_file(source).open("rb") as file:
            header = file.read(_HEADER)
        flags = int.from_bytes(header[4:8], "little")
        if len(header) < _HEADER or header[:4] != importlib.util.MAGIC_NUMBER:
            return False
        if flags & _HASHED:
            return not flags & _CHECKED or header[8:] == importlib.util.source_hash(source.read_bytes())
        status = source.stat()
    except OSError:
        return False
    state = (int(status.st_mtime), status.st_size)
    return header[8:] == b"".join((value & 0xFFFFFFFF).to_bytes(4, "little") for value in state)


def _compiled_file(source: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(source)))
