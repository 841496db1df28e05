"""``run -n 4``: this command again, as the ranks of a job."""

import os
import shutil
import sys
from pathlib import Path

from meshcomm.core.failures.launchers import launched
from meshcomm.tools.cli.once import print_once

_OVERSUBSCRIBED = {
    "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
"""Environment variables of MPICH and Open MPI by which more ranks than cores run, and yield while they wait."""


def launch(ranks: int) -> None:
    """Replace this process by an mpiexec that runs its command, without ``-n``, on *ranks* ranks."""
    if launched() is not None or ranks < 1:
        reason = "this is a rank already" if launched() is not None else "there must be one rank or more"
        print_once(f"meshcomm: run -n {ranks}: {reason}")
        sys.exit(2)
    mpiexec = found_mpiexec("run -n")
    run_index = sys.argv.index("run")
    run_arguments = _without_ranks(sys.argv[run_index + 1 :])
    command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "meshcomm", "run", *run_arguments]
    sys.stdout.flush()
    os.execve(mpiexec, command, usual_environment(ranks) | os.environ)


def found_mpiexec(command: str) -> str:
    """Return the path of the mpiexec beside this Python, else on PATH; end the process if there is none.

    *command* is the name in the error message.
    """
    beside_python = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside_python) if beside_python.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        print_once(f"meshcomm: {command} needs mpiexec, which is neither beside this Python nor on PATH")
        sys.exit(2)
    return mpiexec


def usual_environment(ranks: int) -> dict[str, str]:
    """Return the environment variables that *ranks* ranks on this host should have, unless they are set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    variables = {
        "OMP_NUM_THREADS": str(max(1, cores // ranks)),
        **(_OVERSUBSCRIBED if ranks > cores else {}),
    }
    return variables | {"PYTHONHASHSEED": "0"}  # all ranks go through a set of texts in one order


def _without_ranks(arguments: list[str]) -> list[str]:
    """Return the *arguments* of run without ``-n`` and its number, which come before the program.

    >>> _without_ranks(["-n", "4", "--numpy", "a.py", "-n", "5"]), _without_ranks(["-n4", "a.py"])
    (['--numpy', 'a.py', '-n', '5'], ['a.py'])
    """
    ranks_index = next(index for index, argument in enumerate(arguments) if argument.startswith("-n"))
    return arguments[:ranks_index] + arguments[ranks_index + (2 if arguments[ranks_index] == "-n" else 1) :]
