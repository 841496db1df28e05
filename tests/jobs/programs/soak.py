"""Random programs one after the other: ``mpiexec -n 4 python soak.py SEED SECONDS MOST [SIMULATED]``.

They have the seeds SEED, SEED + 1 and so on, until SECONDS are over or MOST have run. With the fourth argument one
process simulates that many ranks. At the end rank 0 says how many programs and steps ran. tests/ is on the path.
"""

import sys
import time

import meshcomm as mc
from support.random_programs import run_program


def simulated(seed, ranks):
    with mc.simulate(ranks) as world:
        return world.run(lambda: run_program(seed, world.rank, ranks))[0]


def over_mpi():
    """Return how to run a program on the ranks of COMM_WORLD, and how they agree on whether to go on."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    return lambda seed: run_program(seed, comm.rank, comm.size, comm), comm.bcast, comm.rank


def main(seed, seconds, most, ranks=None):
    run, agreed, rank = over_mpi() if ranks is None else (lambda seed: simulated(seed, ranks), bool, 0)
    end, programs, steps = time.monotonic() + seconds, 0, 0
    while agreed(programs < most and time.monotonic() < end):
        steps += run(seed + programs)
        programs += 1
    if rank == 0:
        print(f"soaked: {programs} programs, {steps} steps", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
