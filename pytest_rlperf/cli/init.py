"""``rlperf init``: writes first tests for a project's components and for the libraries that it uses, and tries them."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Collection, Iterable
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_rlperf.cli.command import Command, Exit, UsageError, listed, print_text
from pytest_rlperf.cli.first_tests.drafts import KINDS, tests_in, without
from pytest_rlperf.cli.first_tests.search import Search, search
from pytest_rlperf.cli.first_tests.trial import Trial
from pytest_rlperf.cli.workflows import write_workflows
from pytest_rlperf.errors import SideError, shown
from pytest_rlperf.sides.git import tree_top
from pytest_rlperf.sides.installs import installs_from, is_project, normalized
from pytest_rlperf.sides.programs import read_settings
from pytest_rlperf.units import counted
from pytest_rlperf.writing import OutputError, write_file

if TYPE_CHECKING:
    from pytest_rlperf.components.libraries import Library

_FILE = "test_perf.py"
_INTERRUPTED = 130  # the exit code, as shells have it
_SHOWN = 12  # lines of what was skipped

_COMMANDS = {
    "pytest{}": "runs each component once and checks it; commit then",
    "pytest{} --rlperf-against=HEAD": "after each change: fails tests that are slower than at the last commit",
}
_HEAD = '''\
"""Performance tests, begun by `rlperf init`. They are yours: change sizes, rename tests, delete those you do not need.

{}"""
'''

_ONE_THREAD = '''
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread(request):
    """At the sizes of a benchmark more threads mostly add noise; whole iterations keep the library's own."""
    if "rlperf_train" not in request.fixturenames:
        torch.set_num_threads(1)
'''

# For libraries whose tests have the functions for it: tests for regressions that the suite's sizes do not show.
_FULL_BUFFERS = '''

@pytest.mark.parametrize("transitions", [1_000, 10_000, 100_000])
def test_{0}_replay_sample(rlperf_replay_sample: Measure, transitions: int) -> None:
    """One batch of a full buffer; work on all that is stored shows as growth."""
    rlperf_replay_sample({0}_replay(transitions), batch_size=work.BATCH_SIZE)
'''
_SHORT_EPISODES = '''

def test_{0}_vecenv_step_short_episodes(rlperf_vecenv_step: Measure) -> None:
    """One step of every env, a tenth of which end an episode and begin the next."""
    rlperf_vecenv_step(lambda: {0}_vecenv(8, work.SHORT_ENV_ID))
'''

_ADVICE = (
    "name your own component with its module, as in rlperf init my_module:SACAgent\n"
    f"it can be: {listed(sorted({*KINDS.values()} - {KINDS['rlperf']}))}; "
    "anything else by rlperf(function)\n"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        nargs="*",
        metavar="DIRECTORY|MODULE:NAME",
        help="the project to search (default: this directory), or components to measure, such as my_module:SACAgent",
    )
    parser.add_argument("--output", type=Path, metavar="PATH", help=f"the file to write (default: tests/{_FILE})")
    parser.add_argument(
        "--github",
        action="store_true",
        help="also write .github/workflows/gate.yml, which compares each pull request with its base",
    )
    parser.add_argument(
        "--github-dependencies",
        action="store_true",
        help="as --github, and also write dependencies.yml, which compares the newest release of each dependency with "
        "the one before, weekly",
    )
    parser.epilog = (
        "It never overwrites a file. It imports the project's modules in another process, and tries each test once."
    )


def _run(arguments: argparse.Namespace) -> int:
    names = [each for each in arguments.what if ":" in each]
    root, *others = [Path(each) for each in arguments.what if ":" not in each] or [Path()]
    try:
        if others or not root.is_dir():
            found = ", ".join(map(str, (root, *others)))
            raise UsageError(f"{found} is not one directory; a component is MODULE:NAME, such as my_module:SACAgent")
        weekly = arguments.github_dependencies
        return _init(root, names, arguments.output, github=arguments.github or weekly, weekly=weekly)
    except (SideError, OutputError, OSError, LookupError, RecursionError) as error:
        raise UsageError(str(error)) from None
    except KeyboardInterrupt:
        print_text("\ninterrupted\n")
        return _INTERRUPTED


def _init(root: Path, names: list[str], output: Path | None, *, github: bool, weekly: bool) -> int:
    from pytest_rlperf.components.libraries import libraries

    known = [library for library in libraries() if library.starter]
    print_text("importing the project's modules…\n")
    own = search(root, names, [library.module for library in known])
    declared = _declared(root)
    used = [] if names else _used(known, own, declared)
    output = output or _place(root, names, own)
    if output.suffix != ".py":
        raise UsageError(f"--output={output} is not a Python file: end its name in .py")
    top = tree_top(root.resolve())  # where GitHub reads workflows
    if github and not output.resolve().is_relative_to(top):
        raise UsageError(f"{output} is outside {top}, and the workflow checks out nothing else")
    kept = output.exists() or output.is_symlink()
    if kept and not github:
        raise UsageError(f"{output} already exists: choose another file with --output PATH")
    tested = used if own.known else []
    reason = "its tests would load none of your code: rlperf suite measures it"
    own.skipped += [(library.module, reason) for library in used if library not in tested]
    if not kept:
        _drop_repeated(own, output.parent)
    print_text(_found_text(own, tested))
    if kept:
        print_text(f"kept {output}\n")
    elif not _write_tests(root, output, own, tested):
        print_text("nothing was written\n" + ("" if names else _ADVICE))
        return Exit.NOTHING_MEASURED
    if github:
        other = {each.requirement.partition("[")[0]: each.requirement for each in used if each.module not in own.known}
        needed = [requirement for name, requirement in other.items() if name not in declared]
        write_workflows(root, top, output, needed, dependencies=sorted({*declared, *other}) if weekly else None)
    print_text(_next_steps(str(output)))
    return Exit.NOTHING_SLOWER


# --------------------------------------------------------------------------- the project


def _declared(root: Path) -> list[str]:
    """Return the distributions that a project declares as its dependencies."""
    from packaging.requirements import InvalidRequirement, Requirement

    requirements = root / "requirements.txt"
    pinned = requirements.read_text(encoding="utf-8", errors="replace") if requirements.is_file() else ""
    found = []
    poetry = [each for each in _setting(root, "tool", "poetry", "dependencies") if each != "python"]
    for line in [*_setting(root, "project", "dependencies"), *poetry, *pinned.splitlines()]:
        try:
            found.append(normalized(Requirement(line.partition(" #")[0].strip()).name))
        except InvalidRequirement:
            continue  # a pip option, a comment, a path
    return list(dict.fromkeys(found))


def _setting(root: Path, *keys: str) -> list[str]:
    """Return a list, a text's words or a table's keys from pyproject.toml; nothing if it has none."""
    found: Any = read_settings(root)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found.split() if isinstance(found, str) else [*map(str, found)] if isinstance(found, (list, dict)) else []


def _used(known: Iterable[Library], own: Search, declared: Collection[str]) -> list[Library]:
    """Return the installed libraries that the code imports or declares; in a library's own project, only itself."""
    used = []
    for library in known:
        is_declared = library.requirement.partition("[")[0].lower() in declared
        if library.module not in own.known and (own.known or not (is_declared or library.module in own.imported)):
            continue
        if find_spec(library.module) is None:
            how = "pip install -e ." if own.known else f"pip install {library.requirement}"
            own.skipped.append((library.module, f"used, but not installed here: {how}"))
        else:
            used.append(library)
    return used


def _place(root: Path, names: list[str], own: Search) -> Path:
    """Return the file to write: among the project's tests, or beside code that can be imported only from there."""
    name = "".join(f"_{each.partition(':')[2].lower()}" for each in names)
    if root.resolve() in own.entries and not installs_from(root.resolve()):
        return root / f"test_perf{name}.py"
    ini = ConfigParser(interpolation=None, strict=False)
    with suppress(ConfigParserError, UnicodeDecodeError):
        ini.read([root / each for each in ("setup.cfg", "tox.ini", "pytest.ini")], encoding="utf-8")
    places = [place for each in ("pytest", "tool:pytest") for place in ini.get(each, "testpaths", fallback="").split()]
    for keys in (("ini_options", "testpaths"), ("testpaths",)):
        places += _setting(root, "tool", "pytest", *keys)
    found = (root / each for each in [*places, "tests", "test"] if (root / each).is_dir())
    return next(found, root / "tests") / f"test_perf{name}.py"


# --------------------------------------------------------------------------- the file of tests


def _drop_repeated(own: Search, directory: Path) -> None:
    """Drop the drafts that have a test in the output's directory, with their name or their object's."""
    for draft in [*own.drafts]:
        words = draft.fixture, re.escape(draft.module), f"{re.escape(draft.name)}|{draft.test}"
        if found := _file_with(directory, *words):
            own.drafts.remove(draft)
            own.skipped.append((draft.place, f"{found} has its test"))


def _file_with(directory: Path, *words: str) -> str:
    """Return the file in a directory that has all of ``words``, which are patterns; "" without one."""
    for path in sorted(directory.glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if all(re.search(rf"(?<![\w.])({each})\b", text) for each in words):
            return str(path)
    return ""


def _write_tests(root: Path, output: Path, own: Search, used: Iterable[Library]) -> bool:
    """Write the tests that pass, and those that their author has to complete; return whether there are any."""
    texts = [text for text in map(library_tests, used) if not _file_with(output.parent, *tests_in(text))]
    one_thread = [_ONE_THREAD] * ("torch" in own.imported and find_spec("torch") is not None)
    trial = Trial(root, output, own, [*one_thread, *texts])
    missing = [place for place in (output.parent, *output.parent.parents) if not place.exists()]
    is_written = False
    try:
        while trial.left():
            write_file("--output", output, trial.text(_head()))
            print_text(f"trying {counted(len(trial.left()), 'test')}…\n")
            ended = trial.run()
            print_text(f"  {ended}\n" if ended else "")
        missing_code = {_missing(error) for error in trial.errors.values()}
        if not trial.passed() and missing_code and missing_code <= own.tops:
            raise UsageError(
                f"tests in {output.parent} cannot import {', '.join(sorted(missing_code))}: {_to_import(root, own)} "
                "and run this again; or choose a file beside it with --output"
            )
        if trial.passed() or trial.skipped():
            write_file("--output", output, trial.text(_head()))
            is_written = True
    finally:
        if not is_written:
            with suppress(OSError):
                output.unlink()
            for place in missing:
                shutil.rmtree(place, ignore_errors=True)  # bytecode may be in it
    print_text(_tried_text(trial, output, _to_import(root, own)))
    return is_written


def library_tests(library: Library) -> str:
    """Return a library's first tests, with full buffers and short episodes if its file has the functions for them."""
    text = library.first_tests.read_text(encoding="utf-8")
    for name in re.findall(r"^def (\w+)_replay\(transitions", text, re.MULTILINE):
        text = without(text, [f"test_{name}_replay_sample"]) + _FULL_BUFFERS.format(name)
    for name in re.findall(r"^def (\w+)_vecenv\(num_envs: int, env_id", text, re.MULTILINE):
        text += _SHORT_EPISODES.format(name)
    return text


def _head() -> str:
    """Return the file's docstring, which shows the commands to type."""
    return _HEAD.format(textwrap.dedent(_table(_commands("").items())))


# --------------------------------------------------------------------------- messages


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows in columns, with a terminal's control characters written out."""
    texts = [[cell and shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in texts)


def _found_text(own: Search, used: Iterable[Library]) -> str:
    """Return what was found, and what was skipped and why."""
    components = [(each.place, each.name, KINDS[each.fixture]) for each in own.drafts]
    known = [(library.module, "used, and known: its tests", "") for library in used]
    text = f"looked at {counted(len(own.sources), 'module')}\n"
    if components or known:
        text += "found\n" + _table([*components, *known])
    places: dict[str, list[str]] = {}
    for place, reason in own.skipped:
        places.setdefault(reason, []).append(place)
    skipped = [(f"{one} and {len(more)} more" if more else one, reason) for reason, (one, *more) in places.items()]
    if len(skipped) > _SHOWN:
        skipped[_SHOWN:] = [(f"and {len(skipped) - _SHOWN} more", "")]
    return text + ("skipped\n" + _table(skipped) if skipped else "")


def _tried_text(trial: Trial, output: Path, to_import: str) -> str:
    """Return which tests are written, and the error of each failing test, with its component's place."""
    rows: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    skipped = trial.skipped()
    for test, error in trial.errors.items():
        draft = trial.draft(test)
        missing = _missing(error)
        advice = f": {to_import if missing in trial.own.tops else 'pip install its package'}" if missing else ""
        if missing in {each.name for each, _ in trial.own.sources.values() if each.is_test}:
            advice = ": choose a file beside it with --output"
        rows[test in skipped].append((draft.place if draft else test, f"{error}{advice}"))
    text = "left out\n" + _table(rows[False]) if rows[False] else ""
    if trial.passed():
        text += f"wrote {output}: {', '.join(trial.passed())}\n"
    if skipped:
        what = "give a value for each ..., or mend what fails, and delete the skip"
        text += f"wrote {output}: {counted(len(skipped), 'test')} to complete: {what}\n{_table(rows[True])}"
    return text


def _to_import(root: Path, own: Search) -> str:
    """Return how to make the project's code importable by tests from anywhere."""
    if is_project(root):
        return "pip install -e . in the project"
    places = sorted(os.path.relpath(each, root.resolve()) for each in own.entries)
    return f"set pythonpath = {' '.join(map(shlex.quote, places))} in pytest's settings"


def _missing(error: str) -> str:
    """Return the module that an error says is missing, "" for another error."""
    found = re.search(r"No module named '(\w+)", error)
    return found[1] if found else ""


def _commands(output: str) -> dict[str, str]:
    """Return the commands to type, for the tests in a file or for all, and what they do."""
    return {command.format(f" {shlex.quote(output)}" if output else ""): text for command, text in _COMMANDS.items()}


def _next_steps(output: str) -> str:
    return "next:\n" + _table(_commands(output).items())


INIT = Command("init", "Write a first file of measured tests, for this project's code.", _add_arguments, _run)
