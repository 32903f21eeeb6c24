"""Settings of every pytest run in this repository: its tests and its shipped suite, measured or not."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the tests of the plugin out of a measured run: none of them is measured, and they need the extra `test`."""
    measures = ("active", "save", "against", "selfcheck")
    active = any(config.getoption(f"rlperf_{name}") for name in measures)
    if active and collection_path.is_relative_to(config.rootpath / "tests"):
        return True
    return None
