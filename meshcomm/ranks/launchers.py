"""What a launcher told this process. ``import meshcomm`` imports this, and so it imports little."""

import os

_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
)
"""Environment variables with which launchers tell each process its rank, and the number of ranks."""


def launched() -> tuple[int, int] | None:
    """Return the rank that a launcher gave this process, and of how many; None if there was no launcher.

    Read from the environment: MPI does not have to be loaded, nor initialised.
    """
    for names in _LAUNCHERS:
        rank, size = (os.environ.get(name, "") for name in names)
        if rank.isdigit() and size.isdigit():
            return int(rank), int(size)
    return None
