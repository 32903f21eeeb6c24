import logging
import sys
import warnings

import pytest

log = logging.getLogger("component")


def work():
    return sum(range(1000))


@pytest.fixture
def noisy():
    print("out of setup")
    print("err of setup", file=sys.stderr)
    log.warning("log of setup")
    yield
    print("out of teardown")
    print("err of teardown", file=sys.stderr)
    log.warning("log of teardown")


@pytest.fixture
def broken_setup():
    print("about to break")
    raise RuntimeError("setup broke")


@pytest.fixture
def broken_teardown():
    yield
    raise RuntimeError("teardown broke")


@pytest.fixture
def skips():
    pytest.skip("in a fixture")


@pytest.mark.rlperf(max_time=0.05)  # calls in slices too
def test_speaks(rlperf, noisy):
    print("out before")
    rlperf(work)
    print("out after", file=sys.stderr)


def test_fails_before(rlperf, noisy):
    print("out before")
    log.error("log before %d", 7)
    assert {"a": 1, "b": 2} == {"a": 1, "b": 3}
    rlperf(work)


@pytest.mark.rlperf(max_time=0.05)  # calls in slices too
def test_fails_after(rlperf, noisy):
    print("out before")
    result = rlperf(work, items=64, unit="transition")
    print("out after")
    log.error("log after")
    items = result.items
    assert items == 65


def test_component_raises(rlperf):
    def broken():
        raise KeyError("no such transition")

    rlperf(broken)


def test_component_wrong(rlperf):
    def check(output):
        assert output == 1, "component's own check"

    rlperf(work, check=check)


def test_setup_breaks(rlperf, broken_setup):
    rlperf(work)


def test_teardown_breaks(rlperf, broken_teardown):
    rlperf(work)


def test_fails_and_teardown_breaks(rlperf, broken_teardown):
    print("before both")
    rlperf(work)
    assert 1 == 2


@pytest.mark.skip(reason="marked")
def test_skip_mark(rlperf):
    rlperf(work)


def test_skip_fixture(rlperf, skips):
    rlperf(work)


def test_skip_before(rlperf):
    pytest.skip("before the call")


def test_skip_after(rlperf):
    rlperf(work)
    pytest.skip("after the call")


@pytest.mark.xfail(reason="known")
def test_xfail(rlperf):
    rlperf(work)
    raise ValueError("as known")


@pytest.mark.xfail(reason="known", strict=True)
def test_xfail_strict(rlperf):
    assert rlperf(work) is None


@pytest.mark.xfail(reason="outdated")
def test_xpass(rlperf):
    print("passes unexpectedly")
    rlperf(work)


@pytest.mark.xfail(reason="outdated", strict=True)
def test_xpass_strict(rlperf):
    rlperf(work)


def test_capsys(rlperf, capsys):
    print("one")
    rlperf(work)
    print("two", file=sys.stderr)
    assert capsys.readouterr() == ("one\n", "two\n")
    print("left over")
    assert 0, "shows what is left over"


@pytest.mark.rlperf(max_time=0.05)  # calls in slices too
def test_caplog(rlperf, caplog):
    with caplog.at_level("INFO"):
        log.info("quiet")
    rlperf(work)
    assert [record.message for record in caplog.records] == ["quiet"]


@pytest.mark.rlperf(max_time=0.05)  # calls in slices too
def test_warns(rlperf):
    for _ in range(3):
        warnings.warn("in the test", RuntimeWarning)
    rlperf(lambda: warnings.warn("in the component", FutureWarning))


@pytest.mark.parametrize("odd", ["a/b", "a::b", "a b", "[x]", "\u00e9\u4e2d", "", "-k", "tab\t", "b"])
def test_ids(rlperf, odd):
    assert odd != "b"
    rlperf(work)


@pytest.mark.parametrize("size", [1, 2])
class TestClass:
    def test_method(self, rlperf, size):
        rlperf(work)

    class TestNested:
        def test_deep(self, rlperf, size):
            rlperf(work)
            assert size == 1


def test_property(rlperf, record_property):
    record_property("library", "mine")
    rlperf(work)
    record_property("count", 3)
