"""The command ``python -m meshcomm``: `run` a program, print `info`, `calibrate` the cost model, read `flights`;
`ls`, `verify` and `convert` files of arrays; print scripts for `slurm` and `pbs`.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    mpiexec -n 4 python -m meshcomm info
    mpiexec -n 4 python -m meshcomm calibrate machine.json
    python -m meshcomm flights FOLDER
    python -m meshcomm ls PATH
    python -m meshcomm verify PATH
    mpiexec -n 4 python -m meshcomm convert a.h5 b.safetensors
    python -m meshcomm slurm --nodes 2 --ntasks-per-node 64 script.py args...
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import meshcomm
from meshcomm.cli.batch import SCRIPTS, add_parsers, batch
from meshcomm.cli.calibrate import calibrate
from meshcomm.cli.files import convert, ls, verify
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
    if options.command == "ls":
        return ls(Path(options.path))
    if options.command == "verify":
        return verify(Path(options.path))
    if options.command == "convert":
        return convert(Path(options.source), Path(options.target), options.overwrite)
    if options.command in SCRIPTS:
        return batch(options)
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
    _add_files(commands)
    add_parsers(commands)
    return parser


def _add_flights(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    flights_parser = commands.add_parser(
        "flights",
        help="read what each rank of a job did last, and find the first difference",
        description="When a job ends because a rank waits for too long, each rank writes its last calls and where it "
        "is. Print who is where, the first call that ranks made differently, and the stacks.",
    )
    flights_parser.add_argument("folder", help="the folder that the last words of the job name")


def _add_files(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    ls_parser = commands.add_parser(
        "ls",
        help="list the arrays of a file or a checkpoint",
        description="List the arrays of a file or a checkpoint: name, shape, dtype, bytes, and the layout in which it "
        "was saved; and its metadata. Of a folder of checkpoints, list the steps.",
    )
    ls_parser.add_argument("path", help="a .npy, .safetensors, .h5 or .zarr file, a checkpoint, or a folder of them")
    verify_parser = commands.add_parser(
        "verify",
        help="compare the data of a checkpoint with their checksums",
        description="Read all data of a checkpoint, or of each step in a folder of them, and compare the checksums. "
        "Print ok, or each range that is damaged; then the exit code is 1. Of other formats, look at the structure.",
    )
    verify_parser.add_argument("path", help="a checkpoint, a folder of checkpoints, or a file")
    convert_parser = commands.add_parser(
        "convert",
        help="write the arrays of a file to a file of another format",
        description="Write the arrays of a file to a file of another format, a box at a time: memory does not have to "
        "hold them. The suffix says the format; no suffix is a checkpoint. With several ranks, each does its share: "
        "mpiexec -n 4 python -m meshcomm convert a.h5 b.safetensors",
    )
    convert_parser.add_argument("source", help="the file or folder to read")
    convert_parser.add_argument("target", help="the file or folder to write")
    convert_parser.add_argument("--overwrite", action="store_true", help="replace the target if it is there")
