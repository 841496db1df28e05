"""The side channel of the watchdogs, under mpiexec."""

from pathlib import Path

import pytest
from mpi4py import MPI

from meshcomm.core.failures.side_channel import SideChannel
from support.patience import until

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank alone sends no messages")


def test_the_first_look_finds_what_has_come(comm, tmp_path):
    channel = SideChannel(MPI, comm.Dup())
    sent, looked = (Path(comm.bcast(str(tmp_path / name))) for name in ("sent", "looked"))
    comm.Barrier()
    if RANK == 0:
        for number in range(3):
            channel.send(["state?", number], 1)
        sent.touch()
    found = []
    if RANK == 1:
        until(sent.exists, 10.0)  # and not with MPI, which would fetch the messages
        found = channel.receive()
        looked.touch()
    until(looked.exists, 10.0)  # as a message of another rank on its way to the barrier would be fetched first
    comm.Barrier()
    channel.close()
    assert found == ([(0, ["state?", number]) for number in range(3)] if RANK == 1 else [])
