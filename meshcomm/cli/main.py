"""The command ``python -m meshcomm``: `run` a program, print `info`, `calibrate` the cost model, read `flights`.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    mpiexec -n 4 python -m meshcomm info
    mpiexec -n 4 python -m meshcomm calibrate machine.json
    python -m meshcomm flights FOLDER
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import meshcomm
from meshcomm.cli.calibrate import calibrate
from meshcomm.cli.flights import flights
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
    if options.command == "flights":
        return flights(Path(options.folder))
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
        help="run a Python program; if one rank fails or ends early, end the whole job",
        description="Run a Python program: mpiexec -n 4 python -m meshcomm run script.py args... "
        "The whole job ends, and says why, if a rank raises an exception that nothing catches, calls sys.exit with an "
        "error, or ends while other ranks wait for it in a call of meshcomm.",
        usage="python -m meshcomm run [-h] (script.py | -m module) [args ...]",
    )
    run_parser.add_argument("-m", dest="module", action="store_true", help="the program is a module, not a script")
    run_parser.add_argument("program", nargs=argparse.REMAINDER, help="the program and its arguments")
    commands.add_parser(
        "info",
        help="print facts about Python, MPI and the ranks, and test a small relayout",
        description="Print facts about Python, MPI and the ranks, and test a small relayout over all ranks. "
        "Run it alone, or under mpiexec: mpiexec -n 4 python -m meshcomm info",
    )
    calibrate_parser = commands.add_parser(
        "calibrate",
        help="measure what it costs to move bytes here; relayouts are planned by these costs",
        description="Measure what it costs to move bytes within a node and between nodes. Relayouts are planned by "
        "these costs. Start as many ranks on each node as your programs do: "
        "mpiexec -n 4 python -m meshcomm calibrate machine.json",
    )
    calibrate_parser.add_argument(
        "file", nargs="?", help=f"the file to write, for {MACHINE_FILE}; without it, only print the constants"
    )
    _add_flights(commands)
    return parser


def _add_flights(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    flights_parser = commands.add_parser(
        "flights",
        help="read what each rank of a job did last, and find the first difference",
        description="When a job ends because a rank waits for too long, each rank writes its last calls and where it "
        "is. Print who is where, the first call that ranks made differently, and the stacks.",
    )
    flights_parser.add_argument("folder", help="the folder that the last words of the job name")
