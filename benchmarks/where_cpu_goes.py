"""Where the CPU time of a measured run goes, by part: ``python benchmarks/where_cpu_goes.py [DIRECTORY] [OPTION...]``.

It runs ``pytest --rlperf OPTION...`` in a directory with itself as a plugin, which notes what every process used by the
end of each part: templates and workers by their own clock, drivers and preload servers by the kernel's when they end.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

VARIABLE = "WHERE_CPU_GOES"
PARTS = {
    "Take plain": "plain slices, which decide",
    "Count": "counting",
    "WarmUp": "warming up",
    "call": "fork to the call of the fixture",
    "Check": "check",
    "Take traced": "traced slices",
    "template": "templates",
    "server": "preload servers",
    "driver": "drivers",
    "observer": "observers, templates included",
    "run": "the run itself",
}


def note(part: str, seconds: float) -> None:
    """Add the CPU time of a part to the file of this run; observers are one part."""
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([part, seconds]) + "\n")


def used_s(pid: int) -> float:
    """Return the CPU seconds that a process and its threads have used."""
    try:
        return (
            sum(int((each / "schedstat").read_text().split()[0]) for each in Path(f"/proc/{pid}/task").iterdir()) / 1e9
        )
    except OSError:
        return 0.0


# --------------------------------------------------------------------------- the plugin


def pytest_configure(config: Any) -> None:
    """Wrap what is to be timed, in the run and in its templates."""
    if VARIABLE not in os.environ:
        return
    (_wrap_worker if hasattr(config, "workerinput") else _wrap_run)()


def _wrap_run() -> None:
    from pytest_rlperf.run.endpoints import Endpoint, PairDriver

    end = Endpoint.end

    def noted(process: Endpoint, limit_s: float) -> None:
        if process.pid and process.alive:
            note("driver" if isinstance(process, PairDriver) else "server", used_s(process.pid))
        end(process, limit_s)

    Endpoint.end = noted  # type: ignore[assignment,method-assign]


def pytest_unconfigure(config: Any) -> None:
    """Note what the run's own process has used."""
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        note("run", time.process_time())


def _wrap_worker() -> None:
    from pytest_rlperf.worker.engine import Engine

    answer, send, ready = Engine._answer, Engine.send, Engine.get_copied
    noted_s = 0.0  # of a template, which is ready to be copied after its collection and after each later import

    def kind(engine: Engine, part: str) -> str:
        return "observer" if engine._observer is not None else part

    @functools.wraps(answer)
    def answered(engine: Engine, order: Any, *others: Any) -> Any:
        began_s, name = time.process_time(), type(order).__name__
        if name == "Take":
            name = f"Take {order.kind.value}"
        try:
            return answer(engine, order, *others)
        finally:
            note(kind(engine, name), time.process_time() - began_s)

    def sent(engine: Engine, message: Any) -> None:
        if type(message).__name__ == "Called":
            note(kind(engine, "call"), time.process_time())
        send(engine, message)

    def collected(engine: Engine) -> None:
        nonlocal noted_s
        before_s, noted_s = noted_s, time.process_time()
        note(kind(engine, "template"), noted_s - before_s)
        ready(engine)

    for name, wrapped in (("_answer", answered), ("send", sent), ("get_copied", collected)):
        setattr(Engine, name, wrapped)


# --------------------------------------------------------------------------- the script


def main(directory: str = ".", *options: str) -> None:
    """Run pytest, and print the CPU seconds of each part."""
    with tempfile.NamedTemporaryFile() as file:
        environment = os.environ | {
            VARIABLE: file.name,
            "PYTEST_PLUGINS": Path(__file__).stem,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        }
        command = [sys.executable, "-m", "pytest", "--rlperf", "-q", *options]
        began_s = time.monotonic()
        status = subprocess.run(
            command, cwd=directory, env=environment, stdout=subprocess.DEVNULL, check=False
        ).returncode
        wall_s = time.monotonic() - began_s
        used: Counter[str] = Counter()
        times: Counter[str] = Counter()
        for line in Path(file.name).read_text(encoding="utf-8").splitlines():
            part, seconds = json.loads(line)
            used[part] += seconds
            times[part] += 1
    whole_s = sum(used.values())
    print(f"{' '.join(command)}: {wall_s:.1f} s, {whole_s:.1f} CPU s, exit {status}")
    for part, seconds in used.most_common():
        print(f"{PARTS.get(part, part):<36} {seconds:6.1f} {100 * seconds / whole_s:5.0f} % {times[part]:6}")


if __name__ == "__main__":
    main(*sys.argv[1:])
