"""Each check's device, and the table of what all checks found."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator

import pytest

from gpu.bench import Bench
from gpu.devices import Cuda, Gpu, Virtual
from pytest_rlperf.devices import driving

DEVICE = "cuda:0"
CUDA_MARKS = (pytest.mark.gpu, pytest.mark.torch)
FOUND = "found"


def skip_without_cuda() -> None:
    """Skip a test on a machine without a CUDA device."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} finds no CUDA device")


@pytest.fixture(params=["virtual", pytest.param("cuda", marks=CUDA_MARKS)])
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    """Return the virtual GPU, and the first CUDA device where there is one."""
    if request.param == "cuda":
        skip_without_cuda()
    made: Gpu = Cuda(DEVICE) if request.param == "cuda" else Virtual()
    with driving(*made.drivers):
        yield made


@pytest.fixture
def bench(gpu: Gpu) -> Bench:
    return Bench(gpu)


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return a function that puts a finding into the table, whether it passes or not."""

    def put(found: str) -> None:
        record_property(FOUND, found)

    return put


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print every check's finding as a table in Markdown: with -v, and where a CUDA device was checked."""
    rows = [
        (found.nodeid.rpartition("::")[2], str(value).replace("|", "/"), outcome)
        for outcome in ("passed", "failed")
        for found in terminalreporter.stats.get(outcome, [])
        for name, value in found.user_properties
        if name == FOUND and "/gpu/" in found.nodeid
    ]
    if rows and (terminalreporter.config.option.verbose > 0 or any("cuda" in row[0] for row in rows)):
        terminalreporter.section("found on GPUs")
        for row in (("check", "found", "outcome"), ("---",) * 3, *rows):
            terminalreporter.write_line(f"| {' | '.join(row)} |")
