"""The command that measures again what a report tells of."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

# What a run writes, and what goes with that alone: who measures again wants the figures. With a value, and without one.
_WRITING = (
    "--rlperf-json",
    "--rlperf-html",
    "--rlperf-trace",
    "--rlperf-benchmark-json",
    "--rlperf-accept",
    "--junitxml",
    "--junit-xml",
)
_WRITING_BARE = ("--rlperf-save-baseline", "--rlperf-benchmark-phases")
_MEASURE = "--rlperf"


def reproducing(args: Sequence[str], paths: Collection[str] = ()) -> str:
    """Return the command that measures again, as it was typed, less what the run writes.

    ``args`` are what was typed behind ``pytest``. ``paths``, those of them that say where tests are, are left out: then
    the key of one test can be put behind the command.
    """
    left_out = {"--", _MEASURE, *_WRITING_BARE, *paths}
    kept, rest = [], iter(args)
    for arg in rest:
        if arg in _WRITING:
            next(rest, None)
        elif arg not in left_out and not arg.startswith(tuple(f"{flag}=" for flag in _WRITING)):
            kept.append(arg)
    # Last, as what takes a value at will, such as --cov, would take a key that stands behind it.
    return shlex.join(["pytest", *kept, _MEASURE])
