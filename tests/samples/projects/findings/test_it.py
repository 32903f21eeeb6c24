"""A test of each function of the library."""

import library
import pytest

NAMES = [
    "growth_of_a_list",
    "growth_of_a_cache",
    "growth_of_shared_memory",
    "growth_of_one_block",
    "growth_of_temporary_files",
    "growth_of_one_temporary_file",
    "garbage_of_files",
    "garbage_of_objects",
    "threads_that_stay",
    "threads_that_end",
    "first_call_of_a_second",
    "first_call_of_a_tenth",
    "phases_much_longer",
    "phases_a_little_longer",
    "outputs_doubled",
    "outputs_rounded",
]


@pytest.mark.parametrize("name", NAMES)
def test(rlperf, name):
    rlperf(getattr(library, name))


@pytest.mark.parametrize("stored", [1_000, 30_000, 1_000_000])
@pytest.mark.parametrize("name", ["scale_of_a_copy", "scale_of_a_batch"])
def test_scale(rlperf, name, stored):
    rlperf(lambda: getattr(library, name)(stored))
