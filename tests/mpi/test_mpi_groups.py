"""Communicators under mpiexec: bounded, given back, of the user's or our own."""

import numpy as np
import pytest
from mpi4py import MPI

import meshcomm as mc
from meshcomm import GroupError, Layout, MeshError
from meshcomm.core.ranks import rank_sets
from meshcomm.core.ranks.meshes import location_in, world_of
from support.reference import blocks_of, numbered, same_bits
from support.verdicts import agree_raises

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
U = "unsharded"


TURNS = 100 if SIZE <= 2 else 40  # of calls that open communicators and give them back


@pytest.fixture(scope="module")
def few_left(comm):
    """Take all communicators but some, so that `TURNS` turns that lose one each fail.

    With one or two ranks of MPICH, which has about 2,000: opening so many takes long with more ranks.
    """
    held = []
    if SIZE <= 2 and "MPICH" in MPI.Get_library_version():
        try:
            while True:
                held.append(comm.Dup())
        except MPI.Exception:
            give_back(held[: TURNS // 2])
            del held[: TURNS // 2]
    yield
    give_back(held)


def give_back(communicators):
    for each in communicators:
        each.Free()


def gathered(rows, comm=None, rank=RANK):
    (row,) = (row for row in rows if rank in row)
    return mc.all_gather([rank], rows, 0, comm=comm).tolist() == list(row)


def some_assignments(count):
    rng = np.random.default_rng(1)
    for _ in range(count):
        length = rng.choice([n for n in range(1, SIZE + 1) if SIZE % n == 0])
        yield rng.permutation(SIZE).reshape(-1, length).tolist()


def test_different_assignments_at_the_real_bound():
    world = world_of(None)
    for rows in some_assignments(150 if SIZE > 2 else 400):
        assert gathered(rows)
        assert world.communicators <= rank_sets.GROUPS_PER_WORLD + 1
    for rows in some_assignments(150 if SIZE > 2 else 400):  # again, some of them given back in the meantime
        assert gathered(rows)
    world.close()
    assert world.communicators == 0
    assert gathered([list(range(SIZE))]), "a world that gave all back is usable"


def test_meshes_on_a_communicator_with_reversed_ranks(comm):
    backwards = comm.Split(0, -RANK)
    assert backwards.rank == SIZE - 1 - RANK
    mesh = mc.create_mesh([("x", SIZE)], comm=backwards)
    assert mesh.rank == backwards.rank
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    array = numbered((7, 5))
    moved = mc.relayout(mc.distribute(array, rows), columns)
    assert same_bits(moved.local, blocks_of(array, columns)[backwards.rank])
    usual = mc.create_mesh([("x", SIZE)])
    assert usual == mesh
    assert usual.rank == RANK
    assert same_bits(mc.relayout(array, Layout(["x", U], usual)).local, blocks_of(array, rows)[RANK])
    if SIZE > 1:
        with agree_raises(MeshError, "stays in one world"):
            mc.relayout(moved, Layout([U, U], usual))
    assert gathered([list(range(SIZE))], comm=backwards, rank=backwards.rank)
    mesh.close()
    backwards.Free()


def test_a_mesh_ends_with_the_communicator_it_was_made_on(comm):
    """Ours are freed with it: an MPI has about 2,000, and nobody may close the mesh."""
    mine = comm.Dup()
    mesh = mc.create_mesh([("x", SIZE)], comm=mine)
    tensor = mc.distribute(numbered((6, 4)), Layout(["x", U], mesh))
    mc.relayout(tensor, Layout([U, "x"], mesh))
    world = mesh.world
    assert world.communicators > 0
    mine.Free()
    assert world.communicators == 0
    for call in (lambda: mc.relayout(tensor, Layout([U, U], mesh)), tensor.to_numpy, lambda: mc.barrier(mesh)):
        with agree_raises(MeshError, "the communicator that this mesh was made on was freed"):
            call()
    mesh.close()


def test_ranks_outside_of_a_mesh_take_no_part():
    """The others make their own mesh, or nothing at all, at the same time."""
    for count in range(1, SIZE + 1):
        if count <= RANK:
            continue
        mesh = mc.create_mesh([("x", count)])
        tensor = mc.distribute(numbered((5, 6)), Layout(["x", U], mesh))
        assert same_bits(mc.relayout(tensor, Layout([U, "x"], mesh)).to_numpy(), numbered((5, 6)))
    mine = [r for r in range(SIZE) if r % 2 == RANK % 2]
    mesh = mc.create_mesh([("x", len(mine))], devices=mine[::-1])
    tensor = mc.distribute(numbered((5, 6)), Layout(["x", U], mesh))
    assert same_bits(mc.relayout(tensor, Layout([U, "x"], mesh)).to_numpy(), numbered((5, 6)))
    assert mesh.rank == len(mine) - 1 - mine.index(RANK)
    mesh.close()


def test_what_is_no_communicator_is_refused(comm):
    for bad in (MPI.COMM_NULL, 5, "world", MPI.GROUP_EMPTY):
        with agree_raises(GroupError, "comm must be an intracommunicator"):
            mc.all_reduce([1], None, comm=bad)
        with agree_raises(GroupError, "comm must be an intracommunicator"):
            mc.create_mesh([("x", SIZE)], comm=bad)
    if SIZE > 1:
        half = comm.Split(RANK % 2, RANK)
        between = half.Create_intercomm(0, comm, 1 - RANK % 2)
        with agree_raises(GroupError, "comm must be an intracommunicator"):
            mc.all_reduce([1], None, comm=between)
        between.Free()
        half.Free()


def test_messages_of_the_user_on_the_same_communicator_do_not_mix(comm):
    """Ours travel on a duplicate: a message of the user may be under way, with any tag, from anybody."""
    inbox = np.zeros(1)
    request = comm.Irecv(inbox, MPI.ANY_SOURCE, MPI.ANY_TAG)
    mesh = mc.create_mesh([("x", SIZE)], comm=comm)
    tensor = mc.distribute(numbered((6,)) if RANK == 0 else None, Layout(["x"], mesh), root=0)
    assert mc.relayout(tensor, Layout([U], mesh)).local.tolist() == list(range(6))
    assert mc.collective_permute([RANK], [(r, (r + 1) % SIZE) for r in range(SIZE)], comm=comm)[0] == (RANK - 1) % SIZE
    comm.Send(np.array([RANK + 0.5]), (RANK + 1) % SIZE, 7)
    request.Wait()
    assert inbox[0] == (RANK - 1) % SIZE + 0.5


# -- with few communicators left --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_left")
def test_assignments_give_their_communicators_back(monkeypatch):
    """With a bound of 2, almost every call opens one and gives one back."""
    monkeypatch.setattr(rank_sets, "GROUPS_PER_WORLD", 2)
    world_of(None).close()
    for rows in some_assignments(3 * TURNS):
        assert gathered(rows)
    assert world_of(None).communicators <= 3
    world_of(None).close()


@pytest.mark.usefixtures("few_left")
def test_opening_and_closing_meshes_leaks_nothing():
    for i in range(TURNS):
        mesh = mc.create_mesh([("x", SIZE)], devices=np.roll(range(SIZE), i).tolist())
        tensor = mc.distribute(numbered((5,)), Layout(["x"], mesh))
        assert mc.relayout(tensor, Layout([U], mesh)).local.tolist() == [0, 1, 2, 3, 4]
        mesh.close()
    assert world_of(None).communicators == 0


@pytest.mark.usefixtures("few_left")
def test_user_communicators_that_come_and_go(comm):
    for _ in range(TURNS):
        mine = comm.Dup()
        assert gathered([list(range(SIZE))], comm=mine)
        assert gathered([list(reversed(range(SIZE)))], comm=mine)
        mine.Free()


@pytest.mark.parametrize("root", range(SIZE))
def test_one_rank_gathers_from_all(comm, root):
    mesh = mc.create_mesh([("x", SIZE)], comm=comm)
    gather = location_in(mesh).rank_set.everyone.communicator().gather_json
    expected = [["of", rank] * 1000 * rank for rank in range(SIZE)]
    assert gather(root, ["of", RANK] * 1000 * RANK) == (expected if root == RANK else [])
    assert gather(root, "") == ([""] * SIZE if root == RANK else [])
