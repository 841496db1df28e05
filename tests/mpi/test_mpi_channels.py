"""Channels: the messages of small exchanges over MPI, under mpiexec."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm.core._tuning import CHANNELS_PER_GROUP, IDLE_CHANNELS, MAX_HEADER_BLOCK_BYTES
from meshcomm.core.ranks.channels import MPIChannels
from support.reference import blocks_of, numbered, same_bits

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
pytestmark = pytest.mark.skipif(SIZE == 1, reason="one rank alone sends no messages")


@pytest.fixture
def made(monkeypatch):
    """The requests of each channel that is made."""
    found, make = [], MPIChannels._new_channel

    def noting(channels):
        data, into, requests = make(channels)
        found.append(requests)
        return data, into, requests

    monkeypatch.setattr(MPIChannels, "_new_channel", noting)
    return found


def check_in_flight(layouts, shape, count):
    """Start *count* relayouts of different arrays, wait for them in an order of this rank, and check them."""
    rows, columns = layouts
    arrays = [numbered(shape) + 1000 * i for i in range(count)]
    requests = [mc.start_relayout(mc.distribute(array, rows), columns) for array in arrays]
    for i in np.random.default_rng(RANK).permutation(count):
        while i % 2 and not requests[i].test():
            pass
        assert same_bits(requests[i].wait().local, blocks_of(arrays[i], columns)[RANK])


def freed(requests):
    return all(request == MPI.REQUEST_NULL for request in requests)


def test_channels_are_used_again(own, made):
    check_in_flight(own, (4 * SIZE, 5 * SIZE), 1)
    for _ in range(5):
        check_in_flight(own, (4 * SIZE, 5 * SIZE), 1)
    assert len(made) == 1
    check_in_flight(own, (4 * SIZE, 5 * SIZE), IDLE_CHANNELS + 3)
    assert len(made) == IDLE_CHANNELS + 3, "one for each exchange in flight"
    assert sum(map(freed, made)) == 3, "those beyond the limit are not kept"


def test_large_blocks_have_none(own, made):
    check_in_flight(own, (MAX_HEADER_BLOCK_BYTES, SIZE), 1)
    assert not made


def test_exchanges_of_different_sizes_are_in_flight_together(own):
    rows, columns = own
    arrays = [numbered((SIZE + i, 2 * SIZE + i)) for i in range(6)] * 3
    requests = [mc.start_relayout(mc.distribute(array, rows), columns) for array in arrays]
    for i in np.random.default_rng(RANK).permutation(len(arrays)):
        assert same_bits(requests[i].wait().local, blocks_of(arrays[i], columns)[RANK])


def test_a_group_keeps_channels_of_few_exchanges(own, made):
    """Those of others are freed; an exchange that lost its channels makes one each time."""
    shapes = [(SIZE, SIZE + i) for i in range(CHANNELS_PER_GROUP + 1)]
    for shape in (*shapes, shapes[0]):
        check_in_flight(own, shape, 1)
    assert len(made) == len(shapes) + 1
    assert [freed(requests) for requests in made] == [True, *[False] * CHANNELS_PER_GROUP, True]


def test_blocking_exchanges_have_channels_too(comm, made, monkeypatch):
    """Between nonblocking ones of the same layouts, and of more shapes than a group keeps channels of."""
    monkeypatch.setenv("MESHCOMM_SHARED_MEMORY", "0")
    world = comm.Dup()
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    rows, columns = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    for turn in range(2):
        for i in range(CHANNELS_PER_GROUP + 3):
            array = numbered((SIZE + 1, 2 * SIZE + i)) + turn
            tensor = mc.distribute(array, rows)
            request = mc.start_relayout(tensor, columns) if i < 2 else None
            assert same_bits(mc.relayout(tensor, columns).local, blocks_of(array, columns)[RANK])
            assert request is None or same_bits(request.wait().local, blocks_of(array, columns)[RANK])
    assert CHANNELS_PER_GROUP + 3 <= len(made) <= 2 * (CHANNELS_PER_GROUP + 5)
    mesh.close()
    assert all(map(freed, made))
    world.Free()


def test_channels_are_freed_with_their_communicator(comm, made):
    world = comm.Dup()
    mesh = mc.create_mesh([("x", SIZE)], comm=world)
    layouts = mc.Layout(["x", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "x"], mesh)
    check_in_flight(layouts, (2 * SIZE, SIZE), 1)
    array = numbered((2 * SIZE, SIZE))
    requests = [mc.start_relayout(mc.distribute(array, layouts[0]), layouts[1]) for _ in range(2)]
    mesh.close()
    assert same_bits(requests[1].wait().local, blocks_of(array, layouts[1])[RANK])
    assert same_bits(requests[0].wait().local, blocks_of(array, layouts[1])[RANK])
    assert len(made) == 2
    assert all(map(freed, made))
    world.Free()
