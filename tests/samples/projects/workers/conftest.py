import pytest


def worker_of(config):
    return getattr(config, "workerinput", {}).get("workerid")


@pytest.fixture(scope="session")
def worker(request):
    return worker_of(request.config)
