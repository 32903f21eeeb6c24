import pytest


def work():
    return sum(range(1000))


def test_one(rlperf, of_session, of_module, of_function, say):
    say("test_one")
    rlperf(work)


class TestClass:
    def test_two(self, rlperf, of_class, of_module, say):
        say("test_two")
        rlperf(work)

    @pytest.mark.skip
    def test_skipped(self, rlperf, of_class):
        pass

    def test_three(self, rlperf, of_class, of_package, say):
        say("test_three")
        rlperf(work)


def test_parameter(rlperf, of_parameter, say):
    say("test_parameter")
    rlperf(work)


def test_parameter_too(rlperf, of_parameter, of_function, say):
    say("test_parameter_too")
    rlperf(work)


def test_four_fails(rlperf, of_module, of_session, tmp_path, tmp_path_factory, say):
    say("test_four")
    assert tmp_path_factory.mktemp("made").is_dir()
    (tmp_path / "file").touch()
    with (__import__("pathlib").Path(__file__).with_name("paths")).open("a") as file:
        file.write(f"{tmp_path}\n")
    assert 0
