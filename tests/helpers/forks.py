"""One interpreter for many cases: what they import takes longer than they do, and no case may see another's changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_FORKS = """
import json, os, sys, traceback

imports, program, cases = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
names = {}
exec(imports, names)
ended = []
for number, case in enumerate(cases):
    said, saying = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(saying, 1)
        os.dup2(saying, 2)
        code = 1
        try:
            exec(program, {**names, "number": number, "case": case})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    os.close(saying)
    with open(said) as text:
        ended.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text.read()))
print(json.dumps(ended))
"""


def run_forked(imports: str, program: str, cases: Sequence[object], directory: Path) -> list[tuple[int, str]]:
    """Run a program for each case, in a process of its own; return how each ended, and what it said.

    The interpreter has run ``imports`` before, in the directory. The program finds its ``case`` and its ``number``.
    """
    command = [sys.executable, "-c", _FORKS, imports, program, json.dumps(cases)]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in json.loads(done.stdout)]
