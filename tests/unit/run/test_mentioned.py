"""Which names the functions of a run's tests have in their code."""

from __future__ import annotations

import functools

import pytest

from pytest_rlperf.run.loop import functions_of, names_in

CONFTEST = """
import pytest

@pytest.fixture(autouse=True)
def threads():
    import of_a_fixture

@pytest.fixture
def unused():
    import of_no_test
"""
TESTS = """
import pytest

@pytest.mark.parametrize("one", [1])
def test_function(one):
    def make():
        from of_a_function import make
        return make
    make()

class TestClass:
    def test_method(self):
        of_a_variable = pytest.importorskip("of_a_text")
"""


def test_names_are_those_of_tests_and_their_fixtures(pytester: pytest.Pytester) -> None:
    """With texts and the functions within them, and without variables, and fixtures that no test has."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    items, _ = pytester.inline_genitems("-p", "no:rlperf")
    assert len(items) == 2
    names = names_in(functions_of(items))
    assert {"of_a_fixture", "of_a_function", "of_a_text"} <= names
    assert names.isdisjoint({"of_no_test", "of_a_variable"})


def test_what_has_no_code_has_no_names() -> None:
    """A partial function, as a test may be."""
    assert names_in([functools.partial(len, ())]) == set()
