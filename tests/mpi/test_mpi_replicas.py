"""Logical devices on MPI ranks: replicas of any size side by side, whatever the number of ranks."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import DeviceAssignment, PerReplica, Strategy, Topology
from meshcomm.errors import MeshError, ShapeError
from meshcomm.tensorflow import topology as training_topology

WORLD = MPI.COMM_WORLD
SIZE = WORLD.size


def replicas_of(cores, count, comm=None):
    topology = Topology.from_comm(comm, mesh_shape=[SIZE, 1, 1, 1])
    return Strategy(DeviceAssignment.build(topology, [cores, 1, 1, 1], num_replicas=count), comm)


def test_topology_of_this_host():
    topology = Topology.from_comm()
    assert topology.ranks.size == SIZE
    assert sorted(topology.ranks.reshape(-1).tolist()) == list(range(SIZE))
    assert not len(topology.missing_devices)
    assert len({topology.serialized(), *WORLD.allgather(topology.serialized())}) == 1


def test_topology_of_two_hosts_in_turns(monkeypatch):
    monkeypatch.setattr(training_topology, "this_host", lambda: f"host {WORLD.rank % 2}")
    topology = Topology.from_comm()
    rows = [list(range(SIZE))[first::2] for first in (0, 1)]
    if SIZE % 2 == 0:
        assert topology.ranks.tolist() == rows
        assert topology.mesh_shape.tolist() == [2, SIZE // 2, 1, 1]
    else:
        assert topology.ranks.tolist() == [[rank] for row in rows for rank in row]
        assert topology.mesh_shape.tolist() == [SIZE, 1, 1, 1]


def test_ranks_that_ask_for_different_shapes():
    fits = WORLD.rank > 0  # rank 0 alone is wrong
    with pytest.raises(MeshError, match=f"holds {SIZE + 1} devices for {SIZE} ranks"):
        Topology.from_comm(mesh_shape=[SIZE, 1, 1, 1] if fits else [SIZE + 1, 1, 1, 1])
    assert Topology.from_comm(mesh_shape=[1, SIZE, 1, 1]).ranks.tolist() == [list(range(SIZE))]


def test_one_replica_of_all_ranks():
    whole = np.arange(SIZE * 5 * 3.0).reshape(SIZE, 5, 3)
    strategy = replicas_of(SIZE, 1)
    t = strategy.experimental_split_to_logical_devices(whole, [SIZE, 1, 1])
    k = strategy.logical_device_id
    assert np.array_equal(t.local, whole[k : k + 1])
    columns = mc.relayout(t, mc.Layout([mc.UNSHARDED, "d0", mc.UNSHARDED], t.mesh))
    assert np.array_equal(columns.to_numpy(), whole)
    one = strategy.experimental_assign_to_logical_device(t, SIZE - 1)
    assert (one.local is None) == (k != SIZE - 1)
    assert np.array_equal(strategy.experimental_replicate_to_logical_devices(one).local, whole)
    strategy.close()


def test_replicas_side_by_side():
    """Replica r makes r more relayouts than replica 0; ranks left over make none."""
    cores = max(1, SIZE // 2)
    count = SIZE // cores
    strategy = replicas_of(cores, count)
    batches = [np.arange(cores**2) + 100 * replica for replica in range(count)]

    def step(x, replica):
        t = strategy.experimental_split_to_logical_devices(x.reshape(cores, cores), [1, cores])
        for turn in range(3 + 5 * replica):
            t = strategy.experimental_split_to_logical_devices(t, [cores, 1] if turn % 2 == 0 else [1, cores])
        return t.to_numpy()

    result = strategy.run(step, (PerReplica(batches), PerReplica(range(count))))
    if strategy.replica_id is None:
        assert result is None
    else:
        assert np.array_equal(result.reshape(-1), batches[strategy.replica_id])
    strategy.close()


def test_a_communicator_in_reverse():
    comm = WORLD.Split(0, -WORLD.rank)
    try:
        strategy = replicas_of(SIZE, 1, comm)
        assert strategy.logical_device_id == comm.rank == SIZE - 1 - WORLD.rank
        bare = Strategy(strategy.device_assignment)  # the topology knows where its ranks count
        for one in (strategy, bare):
            t = one.experimental_split_to_logical_devices(np.arange(SIZE), [SIZE])
            assert t.local.tolist() == [comm.rank]
            assert t.to_numpy().tolist() == list(range(SIZE))
            one.close()
    finally:
        comm.Free()


def test_errors_on_every_rank():
    strategy = replicas_of(SIZE, 1)
    for shape, dims in (((SIZE,), [SIZE, 1]), ((SIZE + 1,), [SIZE + 2]), ((SIZE * 2,), [SIZE * 2])):
        with pytest.raises(ShapeError):
            strategy.experimental_split_to_logical_devices(np.zeros(shape), dims)
    with pytest.raises(MeshError, match="logical_device_id"):
        strategy.experimental_assign_to_logical_device(np.zeros(3), SIZE)
    topology = Topology(mesh_shape=[SIZE + 1, 1, 1, 1], device_coordinates=[[[i, 0, 0, 0]] for i in range(SIZE + 1)])
    with pytest.raises(MeshError, match=f"the world has {SIZE}"):
        Strategy(DeviceAssignment.build(topology, num_replicas=SIZE + 1)).run(int)
