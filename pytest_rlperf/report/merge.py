"""One run of the shards that measured its tests: nothing is judged again."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_rlperf.model.judged import Part, Shard
from pytest_rlperf.report.run_json import RunFile
from pytest_rlperf.report.wording import shard_failures


class MergeError(ValueError):
    """Runs are not the shards of one; the text names them and the difference."""


def merge_shards(files: Mapping[str, object]) -> RunFile:
    """Return the run whose shards these are, by the names of their files; MergeError where they are not all of one.

    The tests are in the order of the collection. One that its shard did not come to has failed.
    """
    runs: dict[int, RunFile] = {}
    shard: Shard | None = None
    for name, file in files.items():
        run, shard = check_shard(name, file, shard)
        if runs.setdefault(shard.number, run) is not run:
            raise MergeError(f"{name} is {shard.name}, as another file is: give each shard once")
    assert shard is not None
    missing = next(number for number in range(1, len(runs) + 2) if number not in runs)
    if missing <= shard.count:
        raise MergeError(f"shard {missing} of {shard.count} is missing: give the files of all shards")
    ordered = [runs[number] for number in sorted(runs)]
    origins = [run.provenance for run in ordered if run.provenance is not None]
    tests = {key: outcome for run in ordered for key, outcome in run.tests.items()}
    unmeasured = {key for run in ordered for key in run.unmeasured}
    failed = {key for run in ordered for key in run.failed} | ({*shard.collected} - {*tests, *unmeasured})
    others = sorted(key for key in failed if key not in tests or not tests[key].verdict.fails(run.strict))
    notes = [note for run in ordered for note in run.notes] + ([shard_failures(others)] if others else [])
    return RunFile(
        ordered[0].machine,
        compared=tuple(dict.fromkeys(text for run in ordered for text in run.compared)),
        notes=tuple(dict.fromkeys(notes)),
        tests={key: tests[key] for key in shard.collected if key in tests},
        provenance=max(origins, key=lambda origin: origin.dirty, default=None),
        failed=tuple(sorted(failed)),
        unmeasured=tuple(sorted(unmeasured)),
        strict=run.strict,
        against=run.against,
        parts=tuple(Part(run.machine, tuple(run.tests)) for run in ordered),
    )


def check_shard(name: str, file: object, other: Shard | None) -> tuple[RunFile, Shard]:
    """Return the run and the shard of a file; MergeError where it has none, or not one of the same run as another."""
    if not isinstance(file, RunFile) or file.shard is None or not {*file.tests} <= {*file.shard.tests}:
        raise MergeError(f"{name} is no shard: merge the files that --rlperf-shard=K/N --rlperf-json=FILE writes")
    for fact, value in ({} if other is None else other.common).items():
        if (own := file.shard.common.get(fact)) != value:
            same = "start all with the same code, tests and options"
            raise MergeError(f"{name} differs from other shards in {fact} ({own}, not {value}): {same}")
    return file, file.shard
