"""The command ``python -m meshcomm``: `run` a program, print `info`, `calibrate` the cost model, read `flights`;
merge a `trace`; `bench` operations; `ls`, `verify` and `convert` files of arrays; `show` a layout, and `plan` a
relayout; print scripts for `slurm` and `pbs`.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    mpiexec -n 4 python -m meshcomm info
    mpiexec -n 4 python -m meshcomm calibrate machine.json
    mpiexec -n 4 python -m meshcomm bench relayout fft
    python -m meshcomm flights FOLDER
    python -m meshcomm trace FOLDER out.json
    python -m meshcomm ls PATH ...
    python -m meshcomm verify PATH ...
    mpiexec -n 4 python -m meshcomm convert a.h5 b.safetensors
    python -m meshcomm show "x,unsharded" --mesh x=4,y=2 --shape 10,7
    python -m meshcomm plan --shape 4096,4096 --mesh x=64 --from x,unsharded --to unsharded,x
    python -m meshcomm slurm --nodes 2 --ntasks-per-node 64 script.py args...
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, cast

import meshcomm
from meshcomm._mistakes import suggestion
from meshcomm.cli.batch import SCRIPTS, add_parsers
from meshcomm.cli.bench.options import add_bench
from meshcomm.cli.once import print_once
from meshcomm.cli.plan import add_plan
from meshcomm.cli.show import add_show
from meshcomm.ranks.hosts import MACHINE_FILE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments*, by default those of the process, and return its exit code."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        _refuse(options.parser, unknown)
    try:
        if options.command is not None:
            return _run(parser, options)
        parser.print_help()
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # who reads, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """End the process with the usage of the command whose *parser* does not know these arguments."""
    known = [name for action in parser._actions for name in action.option_strings]
    meant = suggestion(unknown[0].partition("=")[0], known)
    parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Run a command. Each imports its own modules only: a rank that waits for the imports of others does nothing."""
    if options.command == "info":
        from meshcomm.cli.info import info

        return info(options.json)
    if options.command == "calibrate":
        from meshcomm.cli.calibrate import calibrate

        return calibrate(options.file)
    if options.command == "bench":
        from meshcomm.cli.bench.command import bench

        return bench(options)
    if options.command == "flights":
        from meshcomm.cli.flights import flights

        return flights(Path(options.folder))
    if options.command == "trace":
        from meshcomm.cli.trace import trace

        return trace(Path(options.folder), Path(options.out))
    if options.command in ("show", "plan"):
        code: int = options.action(options)
        return code
    if options.command in SCRIPTS:
        from meshcomm.cli.batch import batch

        return batch(options)
    if options.command == "run":
        from meshcomm.cli.run import run

        if not options.program:
            parser.error("run needs a script, or -m and a module")
        run(options.program, options.module)
        return 0
    from meshcomm.cli.files import convert, ls, verify

    if options.command == "ls":
        return ls([Path(path) for path in options.paths])
    if options.command == "verify":
        return verify([Path(path) for path in options.paths])
    return convert(Path(options.source), Path(options.target), options.overwrite)


class _Parser(argparse.ArgumentParser):
    """A parser that prints what is wrong once, and not on every rank."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and *message* on one rank of each host, and end the process."""
        print_once(f"{self.format_usage()}{self.prog}: error: {message}")
        sys.exit(2)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += suggestion(value, map(str, action.choices or ()))
            raise


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="meshcomm" if Path(sys.argv[0]).name == "meshcomm" else "python -m meshcomm",
        description="Meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.",
    )
    parser.add_argument("--version", action="version", version=f"meshcomm {meshcomm.__version__}")
    commands = cast(
        "argparse._SubParsersAction[argparse.ArgumentParser]",
        parser.add_subparsers(dest="command", title="commands"),
    )
    _add_run(commands)
    _add_info(commands)
    add_bench(commands)
    _add_flights(commands)
    _add_trace(commands)
    _add_files(commands)
    add_show(commands)
    add_plan(commands)
    add_parsers(commands)
    for each in (parser, *commands.choices.values()):
        each.set_defaults(parser=each)
        each.allow_abbrev = False  # --ntasks of Slurm is not --ntasks-per-node
    return parser


def _add_run(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
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


def _add_info(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    info_parser = commands.add_parser(
        "info",
        help="print facts about Python, MPI and the ranks, check them, and test a small relayout",
        description="Print facts about Python, MPI and the ranks, what is wrong with them and the cure, and test a "
        "small relayout over all ranks. The exit code is 1 if there is a problem. "
        "Run it alone, or under mpiexec: mpiexec -n 4 python -m meshcomm info",
    )
    info_parser.add_argument("--json", action="store_true", help="print one document of JSON")
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


def _add_flights(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    flights_parser = commands.add_parser(
        "flights",
        help="read what each rank of a job did last, and find the first difference",
        description="When a job ends because a rank waits for too long, each rank writes its last calls and where it "
        "is. Print who is where, the first call that ranks made differently, and the stacks.",
    )
    flights_parser.add_argument("folder", help="the folder that the last words of the job name")


def _add_trace(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    trace_parser = commands.add_parser(
        "trace",
        help="make one trace of those that the ranks of a job wrote with MESHCOMM_TRACE",
        description="With MESHCOMM_TRACE=FOLDER each rank of a program writes what it did to a file in FOLDER. "
        "Make one file of them, for ui.perfetto.dev, and print how long each rank waited and moved data.",
    )
    trace_parser.add_argument("folder", help="the folder that MESHCOMM_TRACE named")
    trace_parser.add_argument("out", help="the file to write")


def _add_files(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    ls_parser = commands.add_parser(
        "ls",
        help="list the arrays of a file or a checkpoint",
        description="List the arrays of a file or a checkpoint: name, shape, dtype, bytes, and the layout in which it "
        "was saved; and its metadata. Of a folder of checkpoints, list the steps.",
    )
    of_ls = "a .npy, .safetensors, .h5 or .zarr file, a checkpoint, or a folder of them"
    ls_parser.add_argument("paths", metavar="PATH", nargs="+", help=of_ls)
    verify_parser = commands.add_parser(
        "verify",
        help="compare the data of a checkpoint with their checksums",
        description="Read all data of a checkpoint, or of each step in a folder of them, and compare the checksums. "
        "Print ok, or each range that is damaged; then the exit code is 1. Of other formats, look at the structure.",
    )
    of_verify = "a checkpoint, a folder of checkpoints, or a file"
    verify_parser.add_argument("paths", metavar="PATH", nargs="+", help=of_verify)
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
