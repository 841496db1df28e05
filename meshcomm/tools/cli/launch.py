"""``run -n 4``: this command again, as the ranks of a job."""

import os
import shutil
import sys
from pathlib import Path

from meshcomm.core.failures.launchers import launched
from meshcomm.tools.cli.once import print_once

_WHERE_CORES_ARE_FEW = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""What lets more ranks than cores run, and sleep while they wait: for MPICH, and for Open MPI."""


def launch(ranks: int) -> None:
    """Replace this process by an mpiexec that runs the command of this process, without ``-n``, on so many *ranks*."""
    if launched() is not None or ranks < 1:
        why = "this is a rank already" if launched() is not None else "there must be one rank or more"
        print_once(f"meshcomm: run -n {ranks}: {why}")
        sys.exit(2)
    mpiexec = found_mpiexec("run -n")
    at = sys.argv.index("run")
    rest = _without_ranks(sys.argv[at + 1 :])
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "meshcomm", "run", *rest]
    sys.stdout.flush()
    os.execve(mpiexec, command, usual_environment(ranks) | os.environ)


def found_mpiexec(command: str) -> str:
    """Return the path of the mpiexec of this Python, else of PATH; end the *command* if there is none."""
    beside_python = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        print_once(f"meshcomm: {command} needs mpiexec, which is neither beside this Python nor on PATH")
        sys.exit(2)
    return mpiexec


def usual_environment(ranks: int) -> dict[str, str]:
    """Return the environment variables that so many *ranks* on this host should have, unless they are set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usual = {"OMP_NUM_THREADS": str(max(1, cores // ranks)), **(_WHERE_CORES_ARE_FEW if ranks > cores else {})}
    return usual | {"PYTHONHASHSEED": "0"}  # all ranks go through a set of texts in one order


def _without_ranks(arguments: list[str]) -> list[str]:
    """Return the *arguments* of run without ``-n`` and its number, which come before the program.

    >>> _without_ranks(["-n", "4", "--numpy", "a.py", "-n", "5"]), _without_ranks(["-n4", "a.py"])
    (['--numpy', 'a.py', '-n', '5'], ['a.py'])
    """
    at = next(number for number, argument in enumerate(arguments) if argument.startswith("-n"))
    return arguments[:at] + arguments[at + (2 if arguments[at] == "-n" else 1) :]
