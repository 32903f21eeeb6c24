"""``rlperf machine``: what identifies a machine, and how two differ."""

from __future__ import annotations

import argparse

from pytest_rlperf.cli.command import Command, Exit, has_color, print_text, table_width
from pytest_rlperf.cli.files import located, read

_DIFFER = "times stored on one are INCOMPARABLE on the other; live pairs are not."
_EQUAL = "They are of one class: times stored on one are compared with times of the other."


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a run's JSON or a baseline: its machine beside this one, or beside that of a second file",
    )


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from pytest_rlperf.baseline.machine import differences, slug, this_machine
    from pytest_rlperf.report.printable import shown
    from pytest_rlperf.report.recorded import render_machines

    if len(arguments.files) > 2:
        parser.error("name two files at most: a machine is compared with one other")
    paths = [located(path) for path in arguments.files]
    machines = {name: read(path).machine for name, path in zip("AB", paths, strict=False)}
    if len(machines) < 2:
        machines["this machine"] = this_machine()
    legend = [f"{name}  {shown(path)}\n" for name, path in zip("AB", paths, strict=False)]
    text = render_machines(machines, width=table_width(), color=has_color())
    classes = [f"class of {name}: {slug(machine)}\n" for name, machine in machines.items()]
    said = ""
    if len(machines) == 2:
        names = [difference.partition(":")[0] for difference in differences(*machines.values())]
        said = f"\nThey differ ({', '.join(names)}): {_DIFFER}\n" if names else f"\n{_EQUAL}\n"
    print_text("\n".join([*(["".join(legend)] if legend else []), text, "".join(classes)]) + said)
    return Exit.NOTHING_SLOWER


COMMAND = Command("machine", "Show what identifies this machine, or how two machines differ.", _add_arguments, _run)
