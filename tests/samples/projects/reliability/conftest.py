import pytest

from pytest_rlperf.spawn import process

from pytest_rlperf.spawn import stems

process._HALF_MESSAGE_S = 1  # of the run

before = stems.WorkerGroup.called.fget


def called(group):
    if group.key.endswith("test_breaks"):
        raise KeyError("nobody expects this")
    return before(group)


stems.WorkerGroup.called = property(called)


@pytest.fixture
def worker(request):
    return getattr(request.config, "workerinput", {}).get("workerid")


@pytest.fixture
def wire(request, worker):
    plugin = request.config.pluginmanager.get_plugin("rlperf-worker")
    return plugin._engine.connection.fileno() if worker == "rlperf0" else None
