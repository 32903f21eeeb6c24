import pytest

from pytest_rlperf.run import endpoints, measure

# Drivers, copies of a server or new interpreters, load no conftest.
SHORT = "from pytest_rlperf.spawn import connections, process; connections.HALF_MESSAGE_S = process.HALF_MESSAGE_S = 1"
endpoints._PROGRAM, endpoints._BOOT = f"{SHORT}\n{endpoints._PROGRAM}", f"{SHORT}\n{endpoints._BOOT}"

before = measure.make_result


def make_result(key, *figures):
    if key.endswith("test_breaks"):
        raise KeyError("nobody expects this")
    return before(key, *figures)


measure.make_result = make_result


@pytest.fixture
def worker(request):
    return getattr(request.config, "workerinput", {}).get("workerid")


@pytest.fixture
def wire(request, worker):
    plugin = request.config.pluginmanager.get_plugin("rlperf-worker")
    return plugin._engine.connection.fileno() if worker == "rlperf0" else None
