"""The command ``python -m meshcomm``: `run` a program, print `info`, `calibrate` the cost model, read `flights`;
merge a `trace`; `bench` operations; `ls`, `verify` and `convert` files of arrays; `show` a layout, and `plan` a
relayout; print scripts for `slurm` and `pbs`.

::

    mpiexec -n 4 python -m meshcomm run script.py args...
    mpiexec -n 4 python -m meshcomm run -m module args...
    python -m meshcomm run -n 4 --numpy script.py args...
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
from meshcomm.core._files import opened
from meshcomm.core._mistakes import suggestion
from meshcomm.core.ranks.hosts import MACHINE_FILE
from meshcomm.tools.cli.batch import SYSTEMS, script_command
from meshcomm.tools.cli.bench.options import BENCH
from meshcomm.tools.cli.commands import PROGRAM, Argument, Command, Commands, imported_command
from meshcomm.tools.cli.hashes import same_hashes
from meshcomm.tools.cli.launch import launch
from meshcomm.tools.cli.once import print_once
from meshcomm.tools.cli.plan import PLAN
from meshcomm.tools.cli.show import SHOW


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with *arguments*, by default those of the process, and return its exit code."""
    parser = _parser()
    options, unknown_arguments = parser.parse_known_args(arguments)
    if unknown_arguments:
        _refuse(options.parser, unknown_arguments)
    try:
        if options.command == "run" and arguments is None and options.ranks is None:
            same_hashes()
        if options.command is not None:
            return options.action(options)
        parser.print_help()
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # who reads, such as head, has enough
        os.dup2(opened(Path(os.devnull), os.O_WRONLY), sys.stdout.fileno())
        return 0


def _refuse(parser: argparse.ArgumentParser, unknown_arguments: Sequence[str]) -> NoReturn:
    """End the process with the usage of the command of *parser*, which does not know these arguments."""
    option_strings = [name for action in parser._actions for name in action.option_strings]
    hint = suggestion(unknown_arguments[0].partition("=")[0], option_strings)
    parser.error(f"unrecognized arguments: {' '.join(unknown_arguments)}{hint}")


def _run_program(options: argparse.Namespace) -> int:
    from meshcomm.tools.cli.run import run

    if not options.program:
        _parser().error("run needs a script, or -m and a module")
    if options.ranks is not None:
        launch(options.ranks)
    run(options.program, options.module, options.numpy)
    return 0


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


def _rank_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} ranks: there must be one rank or more")
    return int(text)


_RANK_ARGUMENTS = (
    Argument("-n", dest="ranks", type=_rank_count, default=4, metavar="RANKS", help="so many ranks; by default 4"),
    Argument("--numpy", action="store_true", help="import numpy gives meshcomm.numpy"),
    Argument("--mpiexec", metavar="COMMAND", help="what starts the ranks, such as 'srun --mpi=pmi2'"),
)

COMMANDS = {
    "run": Command(
        help="run a Python program; if one rank fails or ends early, end the whole job",
        description="Run a Python program: mpiexec -n 4 python -m meshcomm run script.py args... "
        "The whole job ends, and says why, if a rank raises an exception that nothing catches, calls sys.exit with an "
        "error, or ends while other ranks wait for it in a call of meshcomm. "
        "With --numpy the program is a script of NumPy, whose arrays are cut over the ranks.",
        usage="python -m meshcomm run [-h] [-n RANKS] [--numpy] (script.py | -m module) [args ...]",
        arguments=(
            Argument("-n", dest="ranks", type=int, metavar="RANKS", help="start mpiexec with so many ranks"),
            Argument("--numpy", action="store_true", help="import numpy in the program gives meshcomm.numpy"),
            *PROGRAM,
        ),
        action=_run_program,
    ),
    "shell": Command(
        help="a prompt whose lines run on all ranks",
        description="A prompt on several ranks: IPython's where it is installed, else "
        "Python's own. What is typed runs on all ranks; rank 0 shows its output. A file runs first.",
        arguments=(*_RANK_ARGUMENTS, Argument("file", type=Path, nargs="?", help="a program that runs first")),
        action=imported_command("interactive:shell"),
    ),
    "jupyter": Command(
        help="install a kernel for Jupyter whose cells run on all ranks",
        description="Install a kernel for Jupyter, which starts ranks and runs each cell on all of them.",
        arguments=(
            *_RANK_ARGUMENTS,
            Argument("--name", help="what Jupyter shows; by default such as 'NumPy on 4 ranks'"),
            Argument("--list", action="store_true", help="list the kernels that are installed"),
            Argument("--remove", metavar="NAME", help="remove a kernel"),
        ),
        action=imported_command("interactive:jupyter"),
    ),
    "kernel": Command(
        help="what Jupyter starts: the ranks of a kernel that meshcomm jupyter has installed",
        description="Start the ranks of a kernel for Jupyter, which have one connection file.",
        arguments=(
            *_RANK_ARGUMENTS,
            Argument("-f", dest="connection", type=Path, required=True, help="the connection file"),
            Argument(
                "--rank",
                dest="role",
                choices=("kernel", "ipython", "python"),
                help="be a rank of a kernel, or of a prompt",
            ),
            Argument("--note", type=Path, help="where rank 0 notes the message whose cell runs"),
        ),
        action=imported_command("interactive:kernel"),
    ),
    "info": Command(
        help="print facts about Python, MPI and the ranks, check them, and test a small relayout",
        description="Print facts about Python, MPI and the ranks, what is wrong with them and the cure, and test a "
        "small relayout over all ranks. The exit code is 1 if there is a problem. "
        "Run it alone, or under mpiexec: mpiexec -n 4 python -m meshcomm info",
        arguments=(Argument("--json", action="store_true", help="print one document of JSON"),),
        action=imported_command("info:info", "json"),
    ),
    "calibrate": Command(
        help="measure what it costs to move bytes here; relayouts are planned by these costs",
        description="Measure what it costs to move bytes within a node and between nodes. Relayouts are planned by "
        "these costs. Start as many ranks on each node as your programs do: "
        "mpiexec -n 4 python -m meshcomm calibrate machine.json",
        arguments=(
            Argument(
                "file", nargs="?", help=f"the file to write, for {MACHINE_FILE}; without it, only print the constants"
            ),
        ),
        action=imported_command("calibrate:calibrate", "file"),
    ),
    "bench": BENCH,
    "flights": Command(
        help="read what each rank of a job did last, and find the first difference",
        description="When a job ends because a rank waits for too long, each rank writes its last calls and where it "
        "is. Print who is where, the first call that ranks made differently, and the stacks.",
        arguments=(Argument("folder", type=Path, help="the folder that the last words of the job name"),),
        action=imported_command("flights:flights", "folder"),
    ),
    "trace": Command(
        help="make one trace of those that the ranks of a job wrote with MESHCOMM_TRACE",
        description="With MESHCOMM_TRACE=FOLDER each rank of a program writes what it did to a file in FOLDER. "
        "Make one file of them, for ui.perfetto.dev, and print how long each rank waited and moved data.",
        arguments=(
            Argument("folder", type=Path, help="the folder that MESHCOMM_TRACE named"),
            Argument("out", type=Path, help="the file to write"),
        ),
        action=imported_command("trace:trace", "folder", "out"),
    ),
    "clean": Command(
        help="remove memory that MPI left behind on this host when a job was killed",
        description="MPI shares memory by files in /dev/shm, and leaves them there when a job is killed. Remove those "
        "of yours that no process has open. On a cluster, run it on each node: srun --ntasks-per-node 1 python -m "
        "meshcomm clean",
        arguments=(Argument("--dry-run", action="store_true", help="only list them"),),
        action=imported_command("clean:clean", "dry_run"),
    ),
    "ls": Command(
        help="list the arrays of a file or a checkpoint",
        description="List the arrays of a file or a checkpoint: name, shape, dtype, bytes, and the layout in which it "
        "was saved; and its metadata. Of a folder of checkpoints, list the steps.",
        arguments=(
            Argument(
                "paths",
                type=Path,
                metavar="PATH",
                nargs="+",
                help="a .npy, .safetensors, .h5 or .zarr file, a checkpoint, or a folder of them",
            ),
        ),
        action=imported_command("files:ls", "paths"),
    ),
    "verify": Command(
        help="compare the data of a checkpoint with their checksums",
        description="Read all data of a checkpoint, or of each step in a folder of them, and compare the checksums. "
        "Print ok, or each range that is damaged; then the exit code is 1. Of other formats, look at the structure.",
        arguments=(
            Argument(
                "paths", type=Path, metavar="PATH", nargs="+", help="a checkpoint, a folder of checkpoints, or a file"
            ),
        ),
        action=imported_command("files:verify", "paths"),
    ),
    "convert": Command(
        help="write the arrays of a file to a file of another format",
        description="Write the arrays of a file to a file of another format, a box at a time: memory does not have to "
        "hold them. The suffix says the format; no suffix is a checkpoint. With several ranks, each does its share: "
        "mpiexec -n 4 python -m meshcomm convert a.h5 b.safetensors",
        arguments=(
            Argument("source", type=Path, help="the file or folder to read"),
            Argument("target", type=Path, help="the file or folder to write"),
            Argument("--overwrite", action="store_true", help="replace the target if it is there"),
        ),
        action=imported_command("files:convert", "source", "target", "overwrite"),
    ),
    "show": SHOW,
    "plan": PLAN,
    **{system: script_command(system) for system in SYSTEMS},
}
"""In the order of the list that ``--help`` prints."""


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="meshcomm" if Path(sys.argv[0]).name == "meshcomm" else "python -m meshcomm",
        description="Meshes, layouts, AllToAll and relayout of distributed arrays for MPI programs, with NumPy.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"meshcomm {meshcomm.__version__}")
    parser.set_defaults(parser=parser)
    commands = cast(Commands, parser.add_subparsers(dest="command", title="commands"))
    for name, command in COMMANDS.items():
        command.add(name, commands)
    return parser
