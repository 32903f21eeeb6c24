"""How a worker process is started."""

from __future__ import annotations

import os
import random
import subprocess
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from pytest_rlperf.errors import MeasurementError
from pytest_rlperf.measure import messages as m
from pytest_rlperf.model import Side
from pytest_rlperf.timers.arming import VARIABLE

_PADDING = "PYTEST_RLPERF_PADDING"
_PADDING_MOST = 4096  # bytes: a page

Conversation: TypeAlias = "Connection[Any, Any]"

# Takes the current directory off the path, where a file may bear the name of a module; the coordinator's path follows.
_BOOT = "import sys; sys.path = [p for p in sys.path if p]; from pytest_rlperf.measure.worker import main; main()"


@dataclass(frozen=True)
class Launch:
    """What every worker of one side is started with.

    ``name`` is what its workers are called. The first worker of a launch that ``reports`` is the one the user sees.
    ``watched`` are the directories and ``packages`` the import packages whose loaded files are told, ``foreign`` the
    directories that nothing should be loaded from.
    """

    name: str
    side: Side
    reports: bool
    markup: bool
    share_terminal: bool
    watched: tuple[str, ...]
    packages: tuple[str, ...]
    foreign: tuple[str, ...]

    def start(self, number: int, name: str, scratch: Path, log: Path) -> tuple[subprocess.Popen[bytes], Conversation]:
        """Start worker ``number``, which keeps its files in ``scratch`` and writes to ``log``."""
        here, there = Pipe()
        side = self.side
        # With -s the user sees what the reporting worker prints, as it prints it.
        reporter = self.reports and number == 0
        start = m.Start(
            descriptor=there.fileno(),
            number=number,
            path=list(side.path),
            args=list(side.args),
            files=[str(path) for path in side.files],
            scratch=str(scratch),
            markup=self.markup,
            reports=reporter,
            watched=list(self.watched),
            packages=list(self.packages),
            foreign=list(self.foreign),
        )
        output = None if self.share_terminal and reporter else log.open("ab")
        try:
            process = subprocess.Popen(
                [side.python, *_interpreter_flags(), "-c", _BOOT],
                stdin=subprocess.DEVNULL,
                stdout=None if reporter else output,  # what a test writes past the capture is for the user to see
                stderr=output,
                cwd=side.directory,
                env=_environment(side) | {m.ENVIRONMENT_KEY: m.encode_start(start)},
                pass_fds=[there.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is the coordinator's to handle
            )
        except OSError as error:
            here.close()
            raise MeasurementError(f"cannot start {name}: {error}") from None
        finally:
            there.close()
            if output is not None:
                output.close()
        return process, here


def _environment(side: Side) -> dict[str, str]:
    """Return a worker's environment: this process's, less what is meant for it alone, and the side's own.

    Each worker has its own hash seed and, by an environment of another size, its own addresses of the stack: one
    layout for all would be a bias that looks like a result. (T. Mytkowicz et al., "Producing wrong data without doing
    anything obviously wrong!", ASPLOS 2009)
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("COV_CORE_", "COVERAGE_PROCESS_"))
        and name not in ("PYTEST_CURRENT_TEST", "PYTHONHASHSEED")
    }
    for name, setting in side.environment.items():
        if setting is None:
            environment.pop(name, None)
        else:
            environment[name] = setting
    environment.setdefault("TORCHRL_PROFILING", "1")  # TorchRL's ranges: likewise
    environment[VARIABLE] = "standby"  # before anything binds a scope; traced slices switch them on
    environment[_PADDING] = "." * random.SystemRandom().randrange(_PADDING_MOST)
    return environment


def _interpreter_flags() -> list[str]:
    """Return the flags this interpreter was started with, as multiprocessing passes them on."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags
