"""Groups and their communicators: cached, bounded, and given back; on simulated ranks."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, MeshError
from meshcomm.core.ranks import call_log, rank_sets
from meshcomm.core.ranks.meshes import world_of
from support.reference import numbered, simulated

U = "unsharded"


def here():
    return world_of(None)


def gathered(rank, rows):
    """Whether an all_gather over *rows* gives what it must."""
    (row,) = (row for row in rows if rank in row)
    return mc.all_gather([rank], rows, 0).tolist() == list(row)


def different_assignments(size, count):
    """*count* assignments of *size* ranks to rows of two, all of them different."""
    rng = np.random.default_rng(3)
    seen = set()
    while len(seen) < count:
        ranks = rng.permutation(size).tolist()
        rows = tuple(tuple(ranks[i : i + 2]) for i in range(0, size, 2))
        if rows not in seen:
            seen.add(rows)
            yield rows


def sets_with_rank_0(count):
    """*count* sets of rank 0 and some of seven others."""
    return [[0, *(rank for rank in range(1, 8) if bits >> rank & 1)] for bits in range(2, 2 * count + 2, 2)]


def test_communicators_are_bounded_however_many_assignments():
    bound = rank_sets.GROUPS_PER_WORLD + 1

    def program(rank):
        most = 0
        for rows in different_assignments(6, bound + 10):
            assert gathered(rank, rows)
            most = max(most, here().communicators)
        return most

    assert simulated(6, program) == [bound] * 6


def test_programs_are_bounded():
    bound = call_log.PREPARED_PER_RANK_SET

    def program(rank):
        for length in (*range(bound + 10), *range(12)):
            assert mc.all_gather(np.full(length, rank), None, 0).tolist() == [0] * length + [1] * length
            assert len(here().rank_set(range(2))._prepared) <= bound

    simulated(2, program)


def test_of_the_programs_that_of_the_call_made_longest_ago_goes():
    bound = call_log.PREPARED_PER_RANK_SET
    calls = call_log.CallLog()
    for number, key in enumerate((*range(bound), 0, bound)):
        if calls.recall(key) is None:
            calls.remember(key, call_log.PreparedCall(int, number))
    gone = [key for key in range(bound + 1) if not calls.knows(key)]
    assert gone == [*range(1, 1 + len(gone))]
    assert 1 <= len(gone) <= bound / 10


def test_groups_come_back_after_they_were_given_up(monkeypatch):
    """Programs outlive the communicators of their groups, and share those that others opened again."""
    monkeypatch.setattr(rank_sets, "GROUPS_PER_WORLD", 3)
    everything = list(different_assignments(4, 9))

    def program(rank):
        rng = np.random.default_rng(0)
        for _ in range(150):
            rows = everything[rng.integers(len(everything))]
            length = int(rng.integers(1, 4))  # another program of the same group
            row = next(row for row in rows if rank in row)
            wanted = [r for r in row for _ in range(length)]
            assert mc.all_gather([rank] * length, rows, 0).tolist() == wanted
            assert here().communicators <= 4

    simulated(4, program)


def test_one_communicator_serves_all_programs_of_a_group():
    def program(rank):
        opened = []
        for length in range(1, 6):
            mc.all_gather([rank] * length, [[1, 0], [3, 2]], 0)
            opened.append(here().communicators)
        mc.all_reduce([1], [[1, 0], [3, 2]])
        opened.append(here().communicators)
        return opened

    assert simulated(4, program) == [[2] * 6] * 4


def test_a_group_of_all_ranks_in_order_needs_no_communicator_of_its_own():
    def program(rank):
        for rows in (None, [[0, 1, 2]], np.arange(3)[None]):
            mc.all_gather([rank], rows, 0)
        return here().communicators

    assert simulated(3, program) == [1] * 3


def test_all_steps_along_the_same_dimensions_share_a_communicator():
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        specs = [["x", U], [U, "x"], ["y", U], [U, "y"]]
        for a in specs:
            for b in specs[:2] if a in specs[:2] else specs[2:]:
                mc.relayout(mc.distribute(numbered((4, 4)), Layout(a, mesh)), Layout(b, mesh))
        return here().communicators

    assert simulated(4, program) == [3] * 4  # along x, along y, and the one of all


def test_close_gives_everything_back_and_the_mesh_is_closed():
    def program(rank):
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        equal = mc.create_mesh([("x", 2), ("y", 2)])
        tensor = mc.distribute(numbered((4, 4)), Layout(["x", "y"], mesh))
        mc.relayout(tensor, Layout([U, "x"], mesh))
        assert here().communicators >= 1
        mesh.close()
        mesh.close()
        assert here().communicators == 0
        for use in (
            lambda: mc.relayout(tensor, Layout([U, "x"], mesh)),
            lambda: mc.zeros((4,), "f8", Layout(["x"], mesh)),
            lambda: tensor.to_numpy(),
            lambda: tensor.to_numpy(root=0),
        ):
            with pytest.raises(MeshError, match="is closed"):
                use()
        assert tensor.local is not None
        assert "closed" not in repr(tensor)
        moved = mc.relayout(tensor, Layout([U, "x"], equal))  # an equal mesh has the same devices
        assert (moved.to_numpy() == numbered((4, 4))).all()
        assert mc.all_gather([rank], None, 0).tolist() == [0, 1, 2, 3]

    simulated(4, program)


def test_closing_one_mesh_leaves_others_over_the_same_ranks_working():
    def program(rank):
        a, b = mc.create_mesh([("x", 4)]), mc.create_mesh([("p", 2), ("q", 2)])
        layouts = Layout(["p", "q"], b), Layout(["q", "p"], b)
        tensor = mc.distribute(numbered((5, 7)), layouts[0])
        for _ in range(2):
            assert (mc.relayout(tensor, layouts[1]).to_numpy() == numbered((5, 7))).all()
            a.close()

    simulated(4, program)


def test_meshes_over_many_sets_of_ranks():
    """Only the ranks of a mesh take part, also in opening its communicator."""

    def program(rank):
        for bits in range(1, 32):
            devices = [r for r in range(5) if bits >> r & 1][:: -1 if bits % 2 else 1]
            mesh = mc.create_mesh([("x", len(devices))], devices=devices)
            if rank in devices:
                tensor = mc.distribute(numbered((7,)), Layout(["x"], mesh))
                assert mc.relayout(tensor, Layout([U], mesh)).local.tolist() == list(range(7))
        return here().communicators

    assert all(count <= 31 * 2 for count in simulated(5, program))


def test_too_many_open_sets_of_ranks_are_refused_and_can_be_closed():
    bound = rank_sets.RANK_SETS_PER_WORLD
    *several, last_devices = sets_with_rank_0(bound + 1)

    def program(rank):
        meshes = []
        for devices in several:
            meshes.append(mc.create_mesh([("x", -1)], devices=devices))
            if rank in devices:
                mc.relayout(mc.zeros((2,), "i4", Layout(["x"], meshes[-1])), Layout([U], meshes[-1]))
        last = mc.create_mesh([("x", -1)], devices=last_devices)
        if rank in last_devices:
            tensor = mc.zeros((2,), "i4", Layout(["x"], last))
            with pytest.raises(MeshError, match=f"more than {bound} different sets of ranks"):
                mc.relayout(tensor, Layout([U], last))
        meshes[0].close()
        if rank in last_devices:
            assert mc.relayout(tensor, Layout([U], last)).local.tolist() == [0, 0]

    simulated(8, program)


def test_meshes_that_are_only_looked_at_open_nothing():
    sets = sets_with_rank_0(rank_sets.RANK_SETS_PER_WORLD + 10)

    def program(rank):
        meshes = [mc.create_mesh([("x", -1)], devices=devices) for devices in sets]
        assert [mesh.rank for mesh in meshes] == [devices.index(rank) if rank in devices else None for devices in sets]
        assert here().communicators == 0
        if rank in sets[-1]:
            mesh = meshes[-1]
            tensor = mc.relayout(mc.distribute(numbered((3,)), Layout(["x"], mesh)), Layout([U], mesh))
            assert tensor.local.tolist() == [0, 1, 2]

    simulated(8, program)


def test_a_mesh_may_be_smaller_than_its_world_but_not_larger():
    def program(rank):
        mesh = mc.Mesh(range(3), [("x", 3)])  # describing it is fine
        for use in (
            lambda: mc.create_mesh([("x", 3)]),
            lambda: mesh.rank,
            lambda: mc.zeros((3,), "f8", Layout(["x"], mesh)),
            lambda: mc.distribute(numbered((3,)), Layout(["x"], mesh)),
        ):
            with pytest.raises(MeshError, match=r"needs 3 ranks up to rank 2, but the world has 2.*simulate\(3\)"):
                use()
        assert mc.create_mesh([("x", 2)]).rank == rank

    simulated(2, program)


@pytest.mark.parametrize("root", range(3))
def test_one_rank_gathers_from_all(root):
    def program(rank):
        gather = here().rank_set(range(3)).everyone.communicator().gather_json
        return gather(root, ["of", rank] * rank), gather(root, "")

    found = simulated(3, program)
    assert found.pop(root) == ([[], ["of", 1], ["of", 2, "of", 2]], [""] * 3)
    assert found == [([], [])] * 2
