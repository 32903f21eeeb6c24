"""The results of a test, made from its drivers' messages."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from pytest_rlperf import wire
from pytest_rlperf.judge.findings import growth
from pytest_rlperf.judge.live import contributions
from pytest_rlperf.judge.mean_call import with_mean_calls
from pytest_rlperf.model.judged import Status, Verdict
from pytest_rlperf.model.live import Contribution, PairRecord
from pytest_rlperf.model.measured import Result, WorkerRecord
from pytest_rlperf.model.phases import Block, slices_of, typical_shares, untraced
from pytest_rlperf.report.wording import left_behind_text


class PairsMeasured(msgspec.Struct, frozen=True):
    """The figures of all pairs: by pair, and in traced blocks."""

    pairs: tuple[PairRecord, ...]
    traced: tuple[Block, ...]

    def of_side(self, side: str) -> wire.Alone:
        """Return the figures of the base or of the head, with phases as shares of a call."""
        workers, slices = [getattr(pair, side) for pair in self.pairs], slices_of(self.traced, side)
        return wire.Alone(workers, list(typical_shares(slices)), 1.0 if slices else 0.0, list(untraced(slices)))


def make_result(key: str, called: wire.Called, found: wire.Alone) -> Result:
    """Return the result of a test, made from the figures of one side's workers."""
    grown = growth.of_one_side(found.usages)
    growth_notes = [] if grown is None else [left_behind_text(grown)]
    return Result(
        nodeid=key,
        component=called.component,
        unit=called.unit,
        items=statistics.fmean(worker.items_per_call for worker in found.workers),
        workers=tuple(with_mean_calls(found.workers, found.rounds) if found.rounds else found.workers),
        phases=tuple(found.phases),
        traced_call_s=found.traced_call_s,
        notes=(*found.notes, *growth_notes, *_device_notes(found.workers)),
    )


def scaled_to_judged_time(result: Result) -> Result:
    """Return ``result`` with its phases as shares of the figure that is judged.

    Two processes on one CPU, on a machine that others use, are held up within slices; the judged figure leaves that
    out.
    """
    if not result.traced_call_s:
        return result
    pace = result.mean_call_s / result.traced_call_s
    phases = tuple(replace(phase, total_s=pace * phase.total_s, self_s=pace * phase.self_s) for phase in result.phases)
    return replace(result, phases=phases, traced_call_s=result.mean_call_s)


def contributions_of(measured: PairsMeasured, base: Result, verdict: Verdict) -> tuple[Contribution, ...]:
    """Return each phase's part of a change; none if nothing changed."""
    if verdict.status not in (Status.SLOWER, Status.FASTER) or verdict.estimate is None:
        return ()
    ratio = verdict.estimate.ratio
    # The estimate is about the length of a call; traced slices show the share of it that a phase has.
    blocks = [
        (base_shares, {path: ratio * share for path, share in head_shares.items()})
        for base_shares, head_shares in (block.shares() for block in measured.traced)
    ]
    return contributions(blocks, base.mean_call_s, base.mean_call_s * (ratio - 1))


def _device_notes(workers: Sequence[WorkerRecord]) -> list[str]:
    """Return notes on how the workers' figures on a device were taken, each note once."""
    figures = [worker.device for worker in workers if worker.device is not None]
    notes = [note for each in figures for note in each.notes]
    retaken = sum(each.retaken for each in figures)
    if retaken:
        notes.append(f"slices that were disturbed on {figures[0].device}, thrown away and retaken: {retaken}")
    others = max((each.conditions.others or 0 for each in figures if each.conditions is not None), default=0)
    if others:
        notes.append(f"other processes use {figures[0].device} too, at most {others} at once")
    return list(dict.fromkeys(notes))
