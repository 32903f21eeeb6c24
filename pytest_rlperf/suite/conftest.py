"""Settings of the shipped suite."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_rlperf.components.libraries import BASIS, libraries
from pytest_rlperf.suite.work import ACT_DIM, OBS_DIM, random_transitions


def pytest_collection_finish() -> None:
    """Load the adapters once for all processes that are forked to measure, not in each of them."""
    libraries()


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Keep PyTorch to one thread: at these sizes, more threads only add noise."""
    try:
        import torch
    except ImportError:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """Skip the tests of a library that is not installed; a test's name begins with the library's."""
    if ".libraries." not in request.module.__name__:
        return
    name = request.function.__name__.split("_")[1]
    needed = [("gymnasium", BASIS), ("torch", BASIS)]
    needed += [(library.module, library.requirement) for library in libraries() if library.name == name]
    for module, requirement in needed:
        pytest.importorskip(module, reason=f"{module} is not installed: pip install '{requirement}'")


@pytest.fixture(scope="session")
def filled_buffer() -> Callable[[int], Any]:
    """Return a function that makes a buffer full of ``capacity`` random transitions."""
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'pytest-rlperf[rl]'")
    from pytest_rlperf.components.reference.sac import ReplayBuffer

    def make(capacity: int) -> Any:
        buffer = ReplayBuffer(capacity, OBS_DIM, ACT_DIM)
        buffer.add(*random_transitions(capacity))
        return buffer

    return make
