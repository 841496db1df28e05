"""``python -m meshcomm slurm`` and ``pbs``: batch scripts, as text."""

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from meshcomm.core._arguments import counted, quote
from meshcomm.tools.cli.about import loaded_modules
from meshcomm.tools.cli.commands import PROGRAM, Argument, Command
from meshcomm.tools.cli.terminal import say

SAVE_BEFORE = 300
"""Seconds before its time limit at which a job is asked to save a checkpoint."""

_WORD = re.compile(r"[A-Za-z0-9_.@+-]+(?:,[A-Za-z0-9_.@+-]+)*")
_RANGE = r"\d+(?:-\d+(?::\d+)?)?"


class BatchSystem(NamedTuple):
    """A batch system: its name, its command to submit a script, and its syntax for numbers of an array of jobs."""

    title: str
    submit_command: str
    number_variable: str
    """The environment variable with the number of a job in an array of jobs."""
    numbers_pattern: re.Pattern[str]
    """Matches the numbers of an array of jobs."""
    examples: str
    """Such numbers, for people."""


SYSTEMS = {
    "slurm": BatchSystem(
        "Slurm",
        "sbatch",
        "SLURM_ARRAY_TASK_ID",
        re.compile(rf"{_RANGE}(?:,{_RANGE})*(?:%\d+)?"),
        "0-9, 1,4,7 or 0-99%10 (10 at a time)",
    ),
    "pbs": BatchSystem(
        "PBS", "qsub", "PBS_ARRAY_INDEX", re.compile(r"\d+-\d+(?::\d+)?(?:%\d+)?"), "0-9 or 0-99%10 (10 at a time)"
    ),
}


class BatchJob(NamedTuple):
    """The job of a batch script.

    Parameters
    ----------
    program: a script, or -m and a module, and its arguments
    nodes, ntasks_per_node: number of nodes, and number of ranks on each node
    seconds: the time limit
    container: an Apptainer image in which the program runs
    requeue: whether the job saves a checkpoint before its time is over, and starts again
    array: the numbers of the jobs in an array of jobs
    partition, account: partition and account of the batch system
    mpi: launcher of the ranks in Slurm: srun or mpiexec
    pmi: the protocol that srun speaks
    environment: the folder with the commands of a virtual environment
    modules: environment modules to load
    python: the command
    numpy: whether the program is a script of NumPy, as of ``run --numpy``
    """

    program: tuple[str, ...]
    nodes: int = 1
    ntasks_per_node: int = 1
    seconds: int = 3600
    container: str | None = None
    requeue: bool = False
    array: str | None = None
    partition: str | None = None
    account: str | None = None
    mpi: str = "srun"
    pmi: str = "pmi2"
    environment: str | None = None
    modules: tuple[str, ...] = ()
    python: str = "python"
    numpy: bool = False

    @property
    def name(self) -> str:
        """A name that both batch systems take: that of the program."""
        program = self.program[self.program[0] == "-m"]
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(program).stem)[:15]
        return name if name[:1].isalpha() else f"job_{name}"[:15]


# -- the command ------------------------------------------------------------------------------------------------------


def batch(options: argparse.Namespace) -> int:
    """Print the batch script for *options*, and return the exit code. Bad values print one line; the code is 2."""
    system: str = options.command
    try:
        job = _job_of(options)
    except ValueError as error:
        say(f"meshcomm: {system}: {error}", error=True)
        return 2
    sys.stdout.write(script(system, job))  # as it is: a file
    return 0


def script_command(system: str) -> Command:
    """Return the command that prints scripts for a batch *system*."""
    title, examples = SYSTEMS[system].title, SYSTEMS[system].examples
    launchers = (
        Argument("--mpi", default="srun", metavar="LAUNCHER", help="srun (the default) or mpiexec"),
        Argument("--pmi", default="pmi2", metavar="TYPE", help="for srun: see srun --mpi=list (pmi2)"),
    )
    return Command(
        help=f"print a batch script for {title}",
        description=f"Print a commented batch script for {title} that runs a program on many ranks: "
        f"python -m meshcomm {system} --nodes 2 --ntasks-per-node 64 script.py args... > job.sh",
        usage=f"python -m meshcomm {system} [options] (script.py | -m module) [args ...]",
        arguments=(
            Argument("--nodes", default="1", metavar="N", help="how many nodes (1)"),
            Argument("--ntasks-per-node", default="1", metavar="N", help="how many ranks on each node (1)"),
            Argument("--time", default="1:00:00", metavar="LIMIT", help="[days-]hours:minutes:seconds"),
            Argument("--container", metavar="IMAGE", help="an Apptainer image in which the program runs"),
            Argument("--requeue", action="store_true", help="save before the time is over, and go on later"),
            Argument("--array", metavar="NUMBERS", help=f"many jobs: {examples}".replace("%", "%%")),
            Argument("--partition", "--queue", metavar="NAME", help="the partition or queue"),
            Argument("--account", metavar="NAME", help="the account or project that pays"),
            Argument("--numpy", action="store_true", help="the program is a script of NumPy, as of run --numpy"),
            *(launchers if system == "slurm" else ()),
            *PROGRAM,
        ),
        action=batch,
    )


def _job_of(options: argparse.Namespace) -> BatchJob:
    """Return the job that the command line describes, run with this Python. ``ValueError`` for bad values."""
    if not options.program:
        raise ValueError("it needs a script, or -m and a module")
    if any("\0" in word or "\n" in word for word in (*options.program, options.container or "")):
        raise ValueError("no argument may have a line break in it")
    mpi, pmi = getattr(options, "mpi", "mpiexec"), getattr(options, "pmi", "")
    if mpi not in ("srun", "mpiexec"):
        raise ValueError(f"--mpi is srun or mpiexec, not {quote(mpi)}")
    for name, value in (("partition", options.partition), ("account", options.account), ("pmi", pmi or None)):
        if value is not None and not _WORD.fullmatch(value):
            raise ValueError(f"--{name} is a name, not {quote(value)}")
    system = SYSTEMS[options.command]
    if options.array is not None and not system.numbers_pattern.fullmatch(options.array):
        raise ValueError(f"--array has numbers, such as {system.examples}, not {quote(options.array)}")
    if options.container == "":
        raise ValueError("--container is the path of an image")
    seconds = _time_limit(options.time)
    if options.requeue and seconds <= SAVE_BEFORE:
        raise ValueError(f"--requeue saves {SAVE_BEFORE} s before the end: --time must be longer than that")
    in_environment = sys.prefix != sys.base_prefix or (Path(sys.prefix) / "conda-meta").is_dir()
    return BatchJob(
        program=("-m", *options.program) if options.module else tuple(options.program),
        nodes=_checked_count("--nodes", options.nodes),
        ntasks_per_node=_checked_count("--ntasks-per-node", options.ntasks_per_node),
        seconds=seconds,
        container=options.container,
        requeue=options.requeue,
        array=options.array,
        partition=options.partition,
        account=options.account,
        mpi=mpi,
        pmi=pmi,
        environment=str(Path(sys.prefix) / "bin") if in_environment else None,
        modules=loaded_modules(),
        numpy=options.numpy,
        python="python" if in_environment or options.container else Path(sys.executable).name,
    )


def _checked_count(option: str, text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,6}", text):
        raise ValueError(f"{option} is a number, 1 or more, not {quote(text)}")
    return int(text)


def _time_limit(text: str) -> int:
    """Return a time limit in seconds.

    >>> _time_limit("1:30:00"), _time_limit("2-00:00:10")
    (5400, 172810)
    """
    match = re.fullmatch(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", text)
    days, hours, minutes, seconds = (int(number or 0) for number in match.groups()) if match else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise ValueError(f"--time is [days-]hours:minutes:seconds, such as 1:30:00, not {quote(text)}")
    return total


# -- the scripts ------------------------------------------------------------------------------------------------------

# A line [words] is a condition: the lines below it are in the script if all its words are true for the job. A "!"
# negates a word. <word> stands for a value of the job: see `_word_values`.

_SCRIPT = f"""\
#!/bin/bash
# <size>. Submit it from the folder in which it is to run: <submit> job.sh
[slurm]
#SBATCH --job-name=<name>
#SBATCH --nodes=<nodes>
#SBATCH --ntasks-per-node=<ntasks_per_node>
#SBATCH --cpus-per-task=1
#SBATCH --time=<time>
[slurm partition]
#SBATCH --partition=<partition>
[slurm account]
#SBATCH --account=<account>
[slurm array]
#SBATCH --array=<array>
#SBATCH --output=%x-%A_%a.out
[slurm !array]
#SBATCH --output=%x-%j.out
[slurm requeue]
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@{SAVE_BEFORE}
[pbs]
#PBS -N <name>
#PBS -l select=<nodes>:ncpus=<ntasks_per_node>:mpiprocs=<ntasks_per_node>
#PBS -l walltime=<time>
#PBS -j oe
[pbs requeue]
#PBS -r y
[pbs !requeue]
#PBS -r n
[pbs partition]
#PBS -q <partition>
[pbs account]
#PBS -A <account>
[pbs array]
#PBS -J <array>
[]

[pbs]
cd "$PBS_O_WORKDIR" || exit # PBS begins in the home folder

[array]
# One of several jobs: the program finds its number in $<number>.

[modules]
module load <modules>
[!modules]
# module load mpich # or the module of your MPI, if it comes as one
[environment !container]
export PATH=<environment>:"$PATH"
[]

# One thread per rank: else NumPy takes one for each core, in every rank.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMEXPR_NUM_THREADS=1
export PYTHONUNBUFFERED=1 # what the program prints is in the file at once
export PYTHONHASHSEED=0 # a loop over a set of names has one order on all ranks

[srun]
# srun must speak the protocol of the MPI; "srun --mpi=list" shows what it knows. MPICH, Intel MPI:
# pmi2 or pmix; Open MPI: pmix; Cray MPICH: cray_shasta.
export SLURM_MPI_TYPE=<pmi>
[srun pmi2]
# MPICH on several nodes: its ranks exchange addresses in pieces that Slurm's pmi2 can take.
export MPIR_CVAR_CH4_ROOTS_ONLY_PMI=1
[srun]

[srun requeue]
# An MPICH that was killed leaves files that stop it from starting again under the same number of a job.
# Those that a process uses belong to another job of yours.
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ]; then
    srun --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --mpi=none bash -c 'for file in /dev/shm/mpich_*; do
        [ ! -O "$file" ] || grep -qsF "$file" /proc/[0-9]*/maps || rm "$file"; done'
fi

[pbs]
# Cray: mpiexec -n <ranks> --ppn <ntasks_per_node> --cpu-bind core
[srun]
# Each rank keeps to its core. If one rank dies, the others are ended too.
[!srun]
# Each rank keeps to its core. This mpiexec must belong to the MPI that mpi4py loads.
[container]
# Hybrid: the MPI in the image is of the launcher's family (MPICH, Intel and Cray; or Open MPI).
# Bind: the host's MPI instead. Add after exec: --bind /opt/mpi --env LD_LIBRARY_PATH=/opt/mpi/lib
[]
launch=(<launcher>)

# The job ends here if the ranks do not find each other: another MPI, or another protocol.
"${{launch[@]}}" <python> -m meshcomm info || exit

[!requeue]
# The exit code of the last line is that of the job.
"${{launch[@]}}" <python> -m meshcomm run <program>
[slurm requeue]
"${{launch[@]}}" <python> -m meshcomm run <program> &
program=$!

# {SAVE_BEFORE} s before the time is over, Slurm sends USR1 to this script, which sends it on.
[pbs requeue]
# PBS sends no signal before the time is over, but timeout does: USR1, {SAVE_BEFORE} s before.
[requeue]
# The program then saves and ends, if it has
#     checkpoints = meshcomm.Checkpoints(folder, save_on="SIGUSR1")
# and calls checkpoints.wanted() after each step.
[slurm requeue]
# Then the job starts again, from there.
asked=
trap 'trap "" USR1; asked=yes; kill -USR1 "$program"' USR1
wait "$program"
code=$?
if [ "$asked" ]; then # the signal has ended the first wait
    wait "$program"
    code=$?
    [ "$code" -ne 0 ] || scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
[pbs requeue]
# Submit the job again: it goes on there.
timeout --preserve-status --signal=USR1 $((<saves_at> - SECONDS)) \\
    "${{launch[@]}}" <python> -m meshcomm run <program>
"""


def script(system: str, job: BatchJob) -> str:
    """Return the batch script of a job.

    >>> script("slurm", BatchJob(("a b.py",), nodes=2, ntasks_per_node=64)).splitlines()[-1]
    '"${launch[@]}" python -m meshcomm run \\'a b.py\\''
    >>> print(script("pbs", BatchJob(("a.py",), nodes=2, ntasks_per_node=64)).splitlines()[3])
    #PBS -l select=2:ncpus=64:mpiprocs=64
    """
    values = _word_values(system, job)
    true_words = {word for word, value in values.items() if value}
    lines, is_included = [], True
    for line in _SCRIPT.splitlines():
        if condition := re.fullmatch(r"\[([\w! ]*)\]", line):
            is_included = all((word.strip("!") in true_words) != word.startswith("!") for word in condition[1].split())
        elif is_included:
            lines.append(re.sub(r"<(\w+)>", lambda match: str(values[match[1]]), line))
    return "\n".join(lines) + "\n"


def _word_values(system: str, job: BatchJob) -> dict[str, object]:
    """Return the value of each word in `_SCRIPT`."""
    uses_srun, ranks = system == "slurm" and job.mpi == "srun", job.nodes * job.ntasks_per_node
    rank_count = '"$SLURM_NTASKS"' if system == "slurm" else ranks
    launcher = "srun --cpu-bind=cores --kill-on-bad-exit=1" if uses_srun else f"mpiexec -n {rank_count} --bind-to core"
    return job._asdict() | {
        "size": f"{counted(ranks, 'rank')}, {job.ntasks_per_node} on each node",
        "submit": SYSTEMS[system].submit_command,
        "number": SYSTEMS[system].number_variable,
        system: True,
        "name": job.name,
        "ranks": ranks,
        "time": _clock_text(job.seconds),
        "saves_at": job.seconds - SAVE_BEFORE,
        "modules": shlex.join(job.modules),
        "environment": job.environment and shlex.quote(job.environment),
        "srun": uses_srun,
        "pmi2": job.pmi == "pmi2",
        "launcher": launcher + (f" apptainer exec {shlex.quote(job.container)}" if job.container else ""),
        "program": "--numpy " * job.numpy + shlex.join(job.program),
    }


def _clock_text(seconds: int) -> str:
    """Return hours, minutes and seconds, which all batch systems take.

    >>> _clock_text(172810)
    '48:00:10'
    """
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
