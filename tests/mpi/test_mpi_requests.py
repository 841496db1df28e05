"""Requests that cannot be completed, under mpiexec: no data of another call leave them, and their memory is kept."""

import threading
from contextlib import suppress

import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm.core._tuning import MAX_HEADER_BLOCK_BYTES
from meshcomm.core.arrays import nonblocking
from meshcomm.core.ranks import progress
from meshcomm.core.ranks.channels import in_flight
from meshcomm.core.ranks.meshes import location_in
from support.reference import numbered

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SHAPES = [(4 * SIZE, 5 * SIZE), (MAX_HEADER_BLOCK_BYTES, SIZE)]  # in channels of messages, and as an MPI_Ialltoallv

pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank alone sends no messages")


@pytest.fixture
def rows(own):
    yield own[0]
    nonblocking._requests_over_mpi.clear()  # requests that cannot be completed are kept, with their memory


def until_complete(request):
    while not request.test():
        pass


def check_unusable(request):
    """Neither `test` nor `wait` says that the exchange is complete."""
    for call in (request.test, request.wait, request.test):
        with pytest.raises(mc.MeshError, match="ended with an error"):
            call()


@pytest.mark.parametrize("complete", [until_complete, lambda request: request.wait()])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_request_with_the_data_of_another_call(rows, shape, complete):
    columns = mc.Layout([mc.UNSHARDED, "x"], rows.mesh)
    tensors = [mc.distribute(numbered(shape).astype(dtype), rows) for dtype in ("i8", "f8")]
    for tensor in tensors:
        mc.start_relayout(tensor, columns).wait()
    request = mc.start_relayout(tensors[RANK == 0], columns)
    with pytest.raises(mc.CollectiveMismatch):
        complete(request)
    check_unusable(request)


def test_ghosts_of_another_call(comm, rows):
    """In shared memory the ranks that start later find the difference at once."""
    halo = mc.halo(mc.distribute(numbered((4 * SIZE, 3)), rows), 1, "periodic")
    halo.start_update().wait()
    mc.relayout(halo.tensor(), rows)
    if RANK == 0:
        mc.relayout(halo.tensor(), rows)  # which moves nothing
        request = halo.start_update()
        comm.Barrier()
        with pytest.raises(mc.CollectiveMismatch):
            until_complete(request)
        check_unusable(request)
    else:
        comm.Barrier()
        with suppress(mc.CollectiveMismatch):  # a rank that has no ghosts of rank 0 finds nothing
            halo.start_update().wait()
        location_in(rows.mesh).rank_set.fail(RuntimeError("rank 0 has found a difference"))


@pytest.mark.parametrize("shape", SHAPES)
def test_an_interrupt_before_there_is_a_request(rows, shape, monkeypatch):
    """It lets no further call be made, and MPI may still write to the new block."""

    def interrupt(result, source, exchange, rank_set, block):
        found.append(exchange)
        raise KeyboardInterrupt

    columns, found = mc.Layout([mc.UNSHARDED, "x"], rows.mesh), []
    tensor = mc.distribute(numbered(shape), rows)
    mc.start_relayout(tensor, columns).wait()
    before = set(in_flight)
    monkeypatch.setattr(nonblocking, "RelayoutRequest", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mc.start_relayout(tensor, columns)
    with pytest.raises(mc.MeshError, match="KeyboardInterrupt"):
        mc.start_relayout(tensor, columns)
    (exchange,) = found
    memory = exchange._channel if shape == SHAPES[0] else exchange._rounds[0][0]._memory
    assert any(memory is each for each in in_flight.values())
    exchange.wait()  # so that the mesh can be closed
    assert set(in_flight) == before, "what is complete is not kept, but for channels"


def test_a_thread_calls_mpi_while_large_messages_are_in_flight(comm):
    """And rests when somebody waits for them."""
    progress.begin()
    progress.begin()
    progress.end()
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("meshcomm progress") == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    assert progress._wanted.is_set()
    progress.end()
    assert not progress._wanted.is_set()
