"""The embedded reference, which the suite measures beside the libraries."""

from __future__ import annotations

from pytest_rlperf.components.libraries import BASIS, Library

LIBRARY = Library(name="reference", module="torch", requirement=BASIS)
