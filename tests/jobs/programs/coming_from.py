"""Both sides of a page of docs/coming-from, on the ranks of a job: ``mpiexec -n 4 python coming_from.py PAGE``.

PyTorch finds its ranks in the environment, as under torchrun. tests/ is on the path.
"""

import os
import socket
import sys

from mpi4py import MPI

from support.side_by_side import differences

COMM = MPI.COMM_WORLD.Dup()


def like_torchrun():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = COMM.bcast(free.getsockname()[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= address | {"RANK": str(COMM.rank), "WORLD_SIZE": str(COMM.size)}


if __name__ == "__main__":
    like_torchrun()
    found = list(differences(sys.argv[1], COMM.rank))
    found = sorted({each for those in COMM.allgather(found) for each in those})
    if COMM.rank == 0:
        print(*found, "the end", sep="\n")
    sys.exit(bool(found))
