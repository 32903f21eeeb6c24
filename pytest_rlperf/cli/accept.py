"""``rlperf accept``: a run's figures become the baseline on purpose, with who did it, when and why."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_rlperf.cli.command import Command, Exit, UsageError, add_choice, chosen, complain, print_text
from pytest_rlperf.cli.files import content_of
from pytest_rlperf.model import Acceptance, Baseline, Outcome, Provenance, Status, StoredResult

if TYPE_CHECKING:
    from pytest_rlperf.baseline.store import Store
    from pytest_rlperf.report.reading import RunFile

_STORABLE = "pytest --rlperf-save-baseline --rlperf-json=FILE measures figures that can be stored"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the JSON of the run whose figures are accepted (--rlperf-json)")
    add_choice(parser)
    parser.add_argument("--reason", required=True, metavar="WHY", help="why; it is kept in the baseline")
    parser.add_argument("--by", metavar="WHO", help="who accepts (default: git's user.name and user.email)")
    parser.add_argument(
        "--baseline", default="default", metavar="NAME", help="which baseline to change (default: 'default')"
    )
    parser.add_argument(
        "--baseline-dir",
        default="baselines",
        metavar="DIR",
        help="where baselines are kept (default: baselines/ in this directory)",
    )


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.baseline.store import BaselineError, Store
    from pytest_rlperf.options import parse_name, parse_reason

    try:
        reason, name = parse_reason(arguments.reason), parse_name(arguments.baseline)
    except ValueError as error:
        parser.error(str(error))
    try:
        run = _read_run(arguments.run)
        keys = chosen(run.tests, arguments.patterns) if arguments.patterns else _changed(run, arguments.run)
        provenance = _checked(run, keys, arguments.run)
        by = arguments.by or _user()
        store = Store(Path(arguments.baseline_dir), name, run.machine)
        said = _move(store, run, keys, provenance, reason, by)
    except (UsageError, BaselineError) as error:
        complain(error)
        return Exit.USAGE
    print_text(said)
    return Exit.NOTHING_SLOWER


def _read_run(path: str) -> RunFile:
    """Return a run, its tests' ids to the letter; UsageError where the file is none."""
    from pytest_rlperf.report.reading import ReadingError, RunFile, parse

    try:
        recorded = parse(content_of(path), path)
    except ReadingError as error:
        raise UsageError(str(error)) from None
    if not isinstance(recorded, RunFile):
        raise UsageError(f"{path} is no run, and only a run's figures can be accepted; {_STORABLE}")
    return recorded


def _changed(run: RunFile, path: str) -> list[str]:
    """Return the tests that a baseline would not call the same; UsageError where there is none.

    What is the same is left where it is: moved along with others, it would take the machine's pace of the day with it.
    """
    changed = (Status.SLOWER, Status.FASTER, Status.NEW, Status.INVALID)
    keys = [key for key, outcome in run.tests.items() if outcome.verdict.status in changed]
    if run.tests and not keys:
        raise UsageError(f"{path} has nothing that got slower or faster, or is new; choose tests with -k")
    return keys


def _checked(run: RunFile, keys: list[str], path: str) -> Provenance:
    """Return where the figures come from; UsageError where not all of them can be stored, which names each."""
    provenance = run.provenance
    if provenance is None:
        raise UsageError(f"{path} does not say which code was measured: it is of an older pytest-rlperf; {_STORABLE}")
    if provenance.dirty:
        raise UsageError(
            f"{path} is of a dirty tree: nobody could measure its code again. Commit, and measure anew; nothing was "
            "stored"
        )
    if not keys:
        raise UsageError(f"{path} has no tests; nothing was stored")
    refused = {key: refusal for key in keys if (refusal := _refusal(key, run))}
    if refused:
        lines = "; ".join(f"{key}: {refusal}" for key, refusal in refused.items())
        raise UsageError(f"nothing was stored: {lines}. Choose others with -k, or measure anew")
    return provenance


def _refusal(key: str, run: RunFile) -> str | None:
    """Return why a test's figures cannot be stored, None where they can."""
    from pytest_rlperf.judge.verdict import broken_rule
    from pytest_rlperf.measure.one_side import WORKERS

    outcome = run.tests[key]
    workers = outcome.result.workers
    if outcome.verdict.status is Status.INVALID:
        return f"its measurement was INVALID ({outcome.verdict.reason.message})"
    if key in run.failed and not outcome.verdict.fails(strict=False):
        return "it failed, and not by being slower"
    if not workers:
        return f"it has no figures; {_STORABLE}"
    if any(min(worker.wall.relative, worker.cpu.relative) <= 0 for worker in workers):
        return f"it was measured in live pairs, without the reference kernels that stored figures need; {_STORABLE}"
    if len(workers) < WORKERS:
        return f"{len(workers)} of {WORKERS} workers measured it; raise --rlperf-max-time"
    broken = broken_rule(outcome.result)
    return None if broken is None else f"its time was INVALID ({broken[1]})"


def _move(store: Store, run: RunFile, keys: list[str], provenance: Provenance, reason: str, by: str) -> str:
    """Store the figures of ``keys``, and say what was replaced."""
    from pytest_rlperf import units

    store.check_writable()
    old = store.read()
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    commit = provenance.commit
    session = provenance.created if commit is None else f"{provenance.created} {commit[:12]}"
    results, lines = {}, []
    for key in keys:
        outcome, before = run.tests[key], _before(old, key)
        accepted = None if before is None else Acceptance(reason, created, before.result.call_s, by)
        results[key] = StoredResult(outcome.result, session, accepted)
        lines.append(f"{key}: {_told(outcome, before)}\n")
    store.write(session, provenance, results)
    said = f"stored {units.counted(len(keys), 'result')} in {store.path}, by {by}: {reason}\n"
    return f"{''.join(lines)}{said}Commit it with the change that it belongs to.\n"


def _before(old: Baseline | None, key: str) -> StoredResult | None:
    return None if old is None else old.results.get(key)


def _told(outcome: Outcome, before: StoredResult | None) -> str:
    from pytest_rlperf import units

    now = units.seconds(outcome.result.call_s)
    if before is None:
        return f"{now}, new in this baseline"
    return (
        f"{units.seconds(before.result.call_s)} → {now} ({units.change(outcome.result.call_s / before.result.call_s)})"
    )


def _user() -> str:
    """Return who sits here, as git knows; UsageError where it does not."""
    from pytest_rlperf.baseline.provenance import git_user

    found = git_user(Path.cwd())
    if not found:
        raise UsageError(
            "git does not know who accepts: set user.name and user.email, or say it with --by='Name <address>'"
        )
    return found


COMMAND = Command(
    "accept",
    "Move a baseline on purpose: a run's figures replace the stored ones, with who, when and why.",
    _add_arguments,
    _run,
)
