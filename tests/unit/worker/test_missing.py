"""Whether older code lacks a name that a test asks for: a test module beside a library, each with its own file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from pytest_rlperf.worker.missing import lacks_name

LIBRARY = """
    import importlib

    class Buffer:
        def sample(self):
            return self.rows

        def restart(self):
            raise AttributeError("restart it by hand")

        @property
        def size(self):
            return self.rows

    class Wrapper:
        def __init__(self, wrapped):
            self._wrapped = wrapped

        def __getattr__(self, name):
            return getattr(self._wrapped, name)

    class Broken:
        def __getattr__(self, name):
            return importlib.rows

    class Guarded(Buffer):
        def __getattr__(self, name):
            raise AttributeError(name)

    def imports():
        from mylib import absent

    def calls(function):
        return function()

    def names():
        return absent

    def __getattr__(name):
        raise AttributeError(f"there is no {name}")
"""
ASKED = {
    "of a module": "mylib.absent",
    "of an object": "mylib.Buffer().absent",
    "of an object that wraps another": "mylib.Wrapper(mylib.Wrapper(mylib.Buffer())).absent",
    "by getattr": "getattr(mylib.Buffer(), 'ab' + 'sent')",
    "from a module": "from mylib import absent",
    "a module": "import mylib_absent",
    "a module by importlib": "mylib.importlib.import_module('mylib_absent')",
    "within a function that the library calls": "mylib.calls(lambda: mylib.absent)",
    "one that an import of all would have brought": "absent",
}
OF_THE_LIBRARY = {
    "an attribute": "mylib.Buffer().sample()",
    "an attribute of the same name": "mylib.Wrapper(mylib.Buffer()).sample().rows",
    "one that it raises itself": "mylib.Buffer().restart()",
    "one within a property": "mylib.Buffer().size",
    "one within a property beside __getattr__": "mylib.Guarded().size",
    "one within __getattr__": "mylib.Broken().absent",
    "an import": "mylib.imports()",
    "a global name": "mylib.names()",
    "an import that fails": "import mylib_broken",
    "another error": "1 / 0",
}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a directory with a library that can be imported."""
    (tmp_path / "mylib.py").write_text(dedent(LIBRARY))
    (tmp_path / "mylib_broken.py").write_text("raise ImportError('no such file: libsim.so', name=__name__)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mylib", None)


def error_of(tree: Path, statement: str) -> BaseException:
    """Return the error of a statement in a test file."""
    import mylib  # type: ignore[import-not-found]

    try:
        exec(compile(statement, str(tree / "test_it.py"), "exec"), {"mylib": mylib})  # noqa: S102 - of its own file
    except Exception as error:
        return error
    raise AssertionError(statement)


@pytest.mark.parametrize(
    ("statement", "asked"),
    [*((each, True) for each in ASKED.values()), *((each, False) for each in OF_THE_LIBRARY.values())],
    ids=[*ASKED, *OF_THE_LIBRARY],
)
def test_a_missing_name_is_what_the_test_asks_for(tree: Path, statement: str, asked: bool) -> None:
    """Not what the library itself asks for, nor what an object has and fails to give."""
    error = error_of(tree, statement)
    assert lacks_name(error, str(tree / "test_it.py").__eq__) is asked, repr(error)


def test_other_errors_miss_no_name() -> None:
    """One that any code has made by hand, and none at all."""
    by_hand = (AttributeError("absent"), ImportError("absent"), NameError("absent"), ValueError("absent"), None)
    assert not any(lacks_name(error, lambda _: True) for error in by_hand)
