"""One run of several that measured its tests, in shards or on nodes: nothing is judged again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from pytest_rlperf import units
from pytest_rlperf.baseline.machine import describe
from pytest_rlperf.model import Machine, Part, Provenance, Shard
from pytest_rlperf.report.run_json import RunFile

_NAMED_MOST = 5
_ALL_DIRTY = "all shards measured uncommitted changes, and nothing shows that these are the same"


class MergeError(ValueError):
    """Runs are not the parts of one; the text names them and the difference."""


def merge_runs(runs: Mapping[str, RunFile], places: Mapping[str, int]) -> RunFile:
    """Return one run of the tests that several runs have measured, wherever each of them ran.

    ``runs`` are by their names in reports, such as ``shard 2 of 4`` or a node's; there is at least one. ``places`` has
    the place of each test in the whole collection, which the merged run keeps; tests that it lacks come last. Every
    verdict stays as it was judged: each run has to judge by the number of gated tests of all runs, so that the error
    rate is that of the whole. The merged run's ``parts`` name the machine of each run and its tests, those of its shard
    where it is one. MergeError where the runs measured different commits, or one test twice.
    """
    _refuse_other_commits(runs)
    _refuse_twice(runs)
    tests = {key: outcome for run in runs.values() for key, outcome in run.tests.items()}
    first = next(iter(runs.values()))
    return RunFile(
        machine=first.machine,
        compared=_united(run.compared for run in runs.values()),
        notes=(*_united(run.notes for run in runs.values()), *_differences(runs)),
        tests={key: tests[key] for key in sorted(tests, key=lambda key: places.get(key, len(places)))},
        provenance=_provenance([run.provenance for run in runs.values() if run.provenance is not None]),
        failed=tuple(sorted({key for run in runs.values() for key in run.failed})),
        unmeasured=tuple(sorted({key for run in runs.values() for key in run.unmeasured})),
        strict=any(run.strict for run in runs.values()),
        against=first.against,
        parts=tuple(
            Part(name, run.machine, tuple(run.tests if run.shard is None else run.shard.places))
            for name, run in runs.items()
        ),
    )


def merge_shards(files: Mapping[str, RunFile]) -> RunFile:
    """Return the run whose shards these are, by the names of their files; MergeError where they are not all of one."""
    shards = {file: _shard(file, run) for file, run in files.items()}
    _refuse_other_shards(shards)
    _refuse_other_rules(files)
    ordered = sorted(shards.items(), key=lambda entry: entry[1].number)
    places = {key: place for _, shard in ordered for key, place in shard.places.items()}
    merged = merge_runs({shard.name: files[file] for file, shard in ordered}, places)
    if len(files) > 1 and all(run.provenance is not None and run.provenance.dirty for run in files.values()):
        return replace(merged, notes=(*merged.notes, _ALL_DIRTY))
    return merged


def without_result(run: RunFile) -> dict[str, list[str]]:
    """Return the tests of each part that has ended before it came to them, by the part's name."""
    known = {*run.tests, *run.failed, *run.unmeasured}
    left = {part.name: [key for key in part.tests if key not in known] for part in run.parts}
    return {name: keys for name, keys in left.items() if keys}


def machine_parts(run: RunFile) -> dict[Machine, list[Part]]:
    """Return the parts of a merged run by the machine class that measured them."""
    parts: dict[Machine, list[Part]] = {}
    for part in run.parts:
        parts.setdefault(part.machine, []).append(part)
    return parts


def machine_lines(run: RunFile) -> list[str]:
    """Return a line a machine class: of a merged run with the parts that were measured there."""
    parts = machine_parts(run)
    if not parts:
        return [describe(run.machine)]
    return [
        f"{describe(machine)}: {_listed([part.name for part in own])}, "
        f"{units.counted(sum(len(part.tests) for part in own), 'test')}"
        for machine, own in parts.items()
    ]


# --------------------------------------------------------------------------- what cannot be merged


def _shard(file: str, run: RunFile) -> Shard:
    """Return the shard that a file holds; MergeError where it is none, or has tests that are not the shard's."""
    shard = run.shard
    if shard is None:
        merged = "is merged already" if run.parts else "is no shard"
        raise MergeError(f"{file} {merged}: merge the files that --rlperf-shard=K/N --rlperf-json=FILE writes")
    known = {*run.tests, *run.unmeasured}  # what failed may be a file that cannot be collected, and so no test
    if not (1 <= shard.number <= shard.count and len(shard.places) <= shard.collected and known <= shard.places.keys()):
        raise MergeError(f"{file} is not as --rlperf-json writes it: its tests are not those of its shard")
    return shard


def _refuse_other_shards(shards: Mapping[str, Shard]) -> None:
    """Raise MergeError unless these are all shards of one division, each once."""
    for (file, shard), (other_file, other) in pairwise(shards.items()):
        if shard.count != other.count:
            raise MergeError(f"{file} is {shard.name}, and {other_file} is {other.name}: merge shards of one run")
        if (shard.division, shard.collected, shard.gated) != (other.division, other.collected, other.gated):
            raise MergeError(
                f"{file} and {other_file} are shards of different tests or options ({shard.collected} and "
                f"{other.collected} collected): start all shards with the same tests, options and baseline"
            )
    found: dict[int, str] = {}
    for file, shard in shards.items():
        if shard.number in found:
            raise MergeError(f"{found[shard.number]} and {file} are both {shard.name}: give each shard once")
        found[shard.number] = file
    any_shard = next(iter(shards.values()))
    missing = (number for number in range(1, any_shard.count + 1) if number not in found)
    if lacking := any_shard.count - len(found):
        names = ", ".join(map(str, islice(missing, _NAMED_MOST)))
        more = f" and {lacking - _NAMED_MOST} more" if lacking > _NAMED_MOST else ""
        are = "shards" if lacking > 1 else "shard"
        raise MergeError(
            f"{are} {names}{more} of {any_shard.count} {'are' if lacking > 1 else 'is'} missing: give the files of all "
            "shards; one that wrote none has the reason in its log"
        )
    places = sorted(place for shard in shards.values() for place in shard.places.values())
    if len(places) != any_shard.collected or places != list(range(len(places))):
        raise MergeError("the shards are not as --rlperf-json writes them: together they have not all collected tests")


def _refuse_other_rules(runs: Mapping[str, RunFile]) -> None:
    """Raise MergeError where shards were compared with different code, or not all with --rlperf-strict."""
    for (file, run), (other_file, other) in pairwise(runs.items()):
        if run.strict != other.strict:
            strict, loose = (file, other_file) if run.strict else (other_file, file)
            raise MergeError(f"{strict} is of --rlperf-strict, and {loose} is not: start all shards with it, or none")
        against, other_against = (one.against or "the baseline" for one in (run, other))
        if against != other_against:
            raise MergeError(
                f"{file} compared with {against}, and {other_file} with {other_against}: start all shards with one "
                "--rlperf-against"
            )
    bases: dict[str, str] = {}
    for file, run in runs.items():
        lives = [outcome.live for outcome in run.tests.values() if outcome.live is not None]
        # With a baseline each test is compared with the commit of its own figures.
        for live in lives if run.against is not None else ():
            if live.base_commit is not None:
                bases.setdefault(live.base_commit, file)
    if len(bases) > 1:
        (commit, file), (other_commit, other_file), *_ = bases.items()
        raise MergeError(
            f"{file} compared with commit {commit[:12]}, and {other_file} with {other_commit[:12]}: a branch may have "
            "moved; start all shards with one commit"
        )


def _refuse_other_commits(runs: Mapping[str, RunFile]) -> None:
    """Raise MergeError where the runs are not of one commit."""
    for (name, run), (other_name, other) in pairwise(runs.items()):
        if _code(run) != _code(other):
            raise MergeError(
                f"{name} measured {_code_text(run)}, and {other_name} {_code_text(other)}: merge runs of one commit"
            )


def _code(run: RunFile) -> tuple[str | None, str | None]:
    return (None, None) if run.provenance is None else (run.provenance.commit, run.provenance.tree)


def _code_text(run: RunFile) -> str:
    commit, _ = _code(run)
    return "code outside git" if commit is None else f"commit {commit[:12]}"


def _refuse_twice(runs: Mapping[str, RunFile]) -> None:
    """Raise MergeError where two runs measured one test."""
    found: dict[str, str] = {}
    for name, run in runs.items():
        for key, outcome in run.tests.items():
            if key in found:
                verdicts = f"{runs[found[key]].tests[key].verdict.status.value} and {outcome.verdict.status.value}"
                raise MergeError(f"{found[key]} and {name} both have {key} ({verdicts}): merge runs of different tests")
            found[key] = name


# --------------------------------------------------------------------------- what differs, and may


def _differences(runs: Mapping[str, RunFile]) -> list[str]:
    """Return notes on how the runs' surroundings differ, and on those that ended early."""
    origins = {name: run.provenance for name, run in runs.items() if run.provenance is not None}
    notes = []
    dirty = [name for name, origin in origins.items() if origin.dirty]
    if 0 < len(dirty) < len(origins):
        notes.append(f"{_listed(dirty)} measured uncommitted changes, and the others did not")
    versions: dict[str, set[str]] = {}
    for origin in origins.values():
        for package, version in origin.packages.items():
            versions.setdefault(package, set()).add(version)
    different = [f"{package} {' and '.join(sorted(found))}" for package, found in versions.items() if len(found) > 1]
    if different:
        notes.append(f"the parts ran with different versions: {_listed(different)}")
    for name, run in runs.items():
        if run.shard is not None:
            known = {*run.tests, *run.failed, *run.unmeasured}
            left = sum(key not in known for key in run.shard.places)
            if left:
                notes.append(f"{name} ended early: {left} of its {len(run.shard.places)} tests have no result")
    return notes


def _provenance(origins: Sequence[Provenance]) -> Provenance | None:
    """Return where figures come from that runs of one commit have."""
    if not origins:
        return None
    packages = {package: version for origin in origins for package, version in origin.packages.items()}
    latest = max(origins, key=lambda origin: origin.created)
    return replace(latest, dirty=any(origin.dirty for origin in origins), packages=packages)


def _united(texts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for part in texts for text in part))


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - _NAMED_MOST} more"] if len(names) > _NAMED_MOST else []
    return ", ".join([*names[:_NAMED_MOST], *more])
