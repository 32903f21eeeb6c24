"""What the suite's tests of libraries need."""

import pytest

from pytest_rlperf.components.libraries import BASIS, libraries


@pytest.fixture(autouse=True)
def _installed(request: pytest.FixtureRequest) -> None:
    """Skip the tests of a library that is not installed."""
    _, _, name = request.module.__name__.rpartition(".test_")
    (library,) = (each for each in libraries() if each.name == name)
    for module, requirement in (("gymnasium", BASIS), ("torch", BASIS), (library.module, library.requirement)):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install '{requirement}'")
