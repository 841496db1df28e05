"""The command ``python -m meshcomm``: `run` programs, print `info` about the MPI here, `calibrate` the cost model.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    mpiexec -n 4 python -m meshcomm info
    mpiexec -n 4 python -m meshcomm calibrate machine.json
"""

import argparse
from collections.abc import Sequence

import meshcomm
from meshcomm.cli.calibrate import calibrate
from meshcomm.cli.info import info
from meshcomm.cli.run import run
from meshcomm.ranks.hosts import MACHINE_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments*, by default those of the process, and return its exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "info":
        return info()
    if options.command == "calibrate":
        return calibrate(options.file)
    if options.command == "run":
        if not options.program:
            parser.error("run needs a script, or -m and a module")
        run(options.program, options.module)
        return 0
    parser.print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m meshcomm",
        description="Meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.",
    )
    parser.add_argument("--version", action="version", version=f"meshcomm {meshcomm.__version__}")
    commands = parser.add_subparsers(dest="command", title="commands")
    run_parser = commands.add_parser(
        "run",
        help="run a Python program; if one rank fails or ends early, the whole job ends",
        description="Run a Python program, to be used as: mpiexec -n 4 python -m meshcomm run script.py args... "
        "An exception that nobody catches, sys.exit with an error, and a rank that ends while others wait for it in a "
        "call of meshcomm end the whole job and are reported.",
        usage="python -m meshcomm run [-h] (script.py | -m module) [args ...]",
    )
    run_parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a script")
    run_parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    commands.add_parser(
        "info",
        help="print what is known about Python, MPI and the ranks, and test a small relayout",
        description="Print what is known about Python, MPI and the ranks, and test a small relayout over them. "
        "Alone, or as: mpiexec -n 4 python -m meshcomm info",
    )
    calibrate_parser = commands.add_parser(
        "calibrate",
        help="measure what moving bytes costs here, by which relayouts are planned",
        description="Measure what moving bytes costs within a node and between nodes, by which relayouts are planned, "
        "with ranks placed as those of the programs to come: mpiexec -n 4 python -m meshcomm calibrate machine.json",
    )
    calibrate_parser.add_argument(
        "file", nargs="?", help=f"what to write for {MACHINE_FILE}; without it the constants are only printed"
    )
    return parser
