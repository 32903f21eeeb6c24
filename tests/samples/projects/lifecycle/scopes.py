import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def say():
    def say(text):
        with Path(__file__).with_name("events").open("a") as file:
            file.write(f"{os.getpid()} {text}\n")

    return say


def make(scope):
    @pytest.fixture(scope=scope)
    def lives(request, say):
        say(f"{scope} up in {request.node.name}")
        yield
        say(f"{scope} down in {request.node.name}")

    return lives


of_session, of_package, of_module = make("session"), make("package"), make("module")
of_class, of_function = make("class"), make("function")


@pytest.fixture(scope="module", params=["p", "q"])
def of_parameter(request, say):
    say(f"parameter {request.param} up")
    yield request.param
    say(f"parameter {request.param} down")
