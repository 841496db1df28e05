"""The hashes of text, which Python salts in each process: with them, the order of a set differs from rank to rank."""

import os
import sys

VARIABLE = "PYTHONHASHSEED"


def hashes_text() -> str:
    """Return, for people, whether hashes of text are the same on all ranks."""
    if not sys.flags.hash_randomization:
        return "0: without salt, the same on all ranks"
    seed = os.environ.get(VARIABLE, "")
    if seed.isdigit() and not sys.flags.ignore_environment:
        return f"{seed}: the same on all ranks"
    return "not set: a loop over a set of texts has another order on each rank; python -m meshcomm run sets it"


def same_hashes() -> None:
    """Restart this process with ``PYTHONHASHSEED=0``, unless the variable is set: Python reads it when it starts.

    Call it before MPI starts: a process joins a job only once.
    """
    if VARIABLE in os.environ or sys.flags.ignore_environment or "mpi4py.MPI" in sys.modules:
        return
    os.environ[VARIABLE] = "0"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
