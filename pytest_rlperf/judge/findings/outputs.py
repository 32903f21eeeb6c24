"""Outputs: the head returns other numbers than the base under equal seeds, in the first call of the component."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_rlperf.judge.policy import finding
from pytest_rlperf.model import facts
from pytest_rlperf.model.judged import Finding, Policy
from pytest_rlperf.model.live import Live, OutputComparison, Outputs
from pytest_rlperf.model.measured import OutputPart

_RELATIVE = 1e-4  # of a value: rounding, even of many float32 operations in another order
_ABSOLUTE = 1e-6

Seeded = tuple[int, Sequence[OutputPart], Sequence[OutputPart]]
"""A pair's seed, base's output and head's."""
_Difference = tuple[Outputs, str, facts.Fact]


def find(live: Live, policy: Policy) -> Finding | None:
    """Return how outputs differ: beyond rounding, or in any bit if the test asks for the same bits."""
    compared, bits = live.output, policy.findings["outputs"] == "bits"
    if compared.outputs is not Outputs.DIFFERENT and not (bits and compared.outputs is Outputs.CLOSE):
        return None
    return finding(policy, "outputs", facts.OtherOutput(compared.path, compared.what), {})


def compare(pairs: Sequence[Seeded]) -> OutputComparison:
    """Compare the outputs of pairs, some of which have equal seeds.

    If two processes of the base returned different outputs under one seed, the head's cannot be judged.
    """
    by_seed: dict[int, Sequence[OutputPart]] = {}
    is_repeated = False
    for seed, base, _ in pairs:
        if seed in by_seed:
            is_repeated = True
            if _first_difference(by_seed[seed], base)[0] is not Outputs.EQUAL:
                return OutputComparison(Outputs.VARIED)
        by_seed[seed] = base
    if not is_repeated or not any(by_seed.values()):
        return OutputComparison()
    found = [_first_difference(base, head) for _, base, head in pairs]
    order = [Outputs.EQUAL, Outputs.CLOSE, Outputs.DIFFERENT]
    # Take the mildest of several pairs: if code is to blame, an output differs in all of them.
    outputs, path, what = min(found, key=lambda each: order.index(each[0]))
    return OutputComparison(outputs, path, what)


def _first_difference(base: Sequence[OutputPart], head: Sequence[OutputPart]) -> _Difference:
    """Return how two outputs compare, the first part that differs the most, and its difference."""
    ours, theirs = _by_path(head), _by_path(base)
    for path in dict.fromkeys((*theirs, *ours)):
        if path not in ours or path not in theirs:
            return Outputs.DIFFERENT, path, facts.OnOneSide()
        if ours[path].kind != theirs[path].kind:
            return Outputs.DIFFERENT, path, facts.OtherKind(theirs[path].kind, ours[path].kind)
    found = [_compared(theirs[path], ours[path]) for path in ours if ours[path].bits != theirs[path].bits]
    different = [each for each in found if each[0] is Outputs.DIFFERENT]
    return next(iter([*different, *found]), (Outputs.EQUAL, "", facts.InWords("")))


def _by_path(parts: Sequence[OutputPart]) -> Mapping[str, OutputPart]:
    return {part.path: part for part in parts}


def _compared(base: OutputPart, head: OutputPart) -> _Difference:
    """Compare two parts whose bits differ."""
    if not base.sample or len(base.sample) != len(head.sample):
        return Outputs.DIFFERENT, head.path, facts.OtherBits()
    differences = [abs(one - other) for one, other in zip(base.sample, head.sample, strict=True)]
    is_close = "float" in head.kind and all(
        math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        for one, other in zip(base.sample, head.sample, strict=True)
    )
    kind = Outputs.CLOSE if is_close else Outputs.DIFFERENT
    return kind, head.path, facts.OtherNumbers(max(differences), max(map(abs, base.sample)))
