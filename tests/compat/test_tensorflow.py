"""Placement: components, layouts of results, default meshes and barriers."""

import json
import threading
from collections import namedtuple

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import barrier, default_mesh, get_default_mesh, ones_like, run_on
from meshcomm.core._tuning import COMPARE_EVERY
from meshcomm.core.arrays import dtensor
from meshcomm.errors import CollectiveMismatch, CollectiveTimeout, LayoutError, MeshError, ShapeError
from meshcomm.tensorflow import names as tensorflow
from support.paths import DATA
from support.reference import on_ranks

U = mc.UNSHARDED
GOLDEN = json.loads((DATA / "pack_unpack.json").read_text())["cases"]


def on(size, program, *args):
    with mc.simulate(size) as world:
        return world.run(program, *args)


def raises_on_all_ranks(size, error, match, program):
    """Check that *program* raises on every rank, and that the mesh can be used afterwards, or a new one."""

    def tried():
        with pytest.raises(error, match=match):
            program()
        mesh = mc.create_mesh([("x", size)])
        if error is CollectiveMismatch:
            with pytest.raises(MeshError, match="make it again"):
                barrier(mesh)
            mesh.close()
        barrier(mc.create_mesh([("x", size)]))
        return True

    assert on(size, tried) == [True] * size


# -- pack and unpack --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['mesh_dims']} {case['specs']}".replace("'", ""))
def test_recorded_components(case):
    def program():
        mesh = mc.create_mesh([tuple(dim) for dim in case["mesh_dims"]])
        layout = mc.Layout(case["specs"], mesh)
        t = tensorflow.pack([np.array(case["components"][mesh.rank])], layout)
        (component,) = tensorflow.unpack(t)
        again = tensorflow.pack(tensorflow.unpack(t), layout)
        assert again.layout == t.layout
        assert again.shape == t.shape
        return list(t.shape), component.tolist(), t.to_numpy().tolist()

    assert on(6, program) == [(case["global_shape"], c, case["to_numpy"]) for c in case["components"]]


def test_pack_shares_the_block_and_takes_uneven_ones():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        block = np.full(3 - mesh.rank, mesh.rank)
        t = tensorflow.pack((block,), mc.Layout(["x"], mesh))
        assert np.shares_memory(t.local, block)
        return t.to_numpy().tolist()

    assert on(2, program) == [[0, 0, 0, 1, 1]] * 2


PACK_ERRORS = {
    "None": (lambda rank: [None], ShapeError, "the array is None"),
    "only one rank": (lambda rank: [np.zeros(2)] * (1 + rank), ShapeError, r"but got 2( \(seen by rank 1\))?"),
    "shapes": (lambda rank: [np.zeros(1 + 3 * rank)], ShapeError, "of which device 0 must hold 3"),
    "dtypes": (lambda rank: [np.zeros(2, "f4" if rank else "f8")], CollectiveMismatch, "from_local of float32"),
}


@pytest.mark.parametrize("case", PACK_ERRORS)
def test_pack_errors(case):
    components, error, match = PACK_ERRORS[case]

    def program():
        mesh = mc.create_mesh([("x", 2)])
        tensorflow.pack(components(mesh.rank), mc.Layout(["x"], mesh))

    raises_on_all_ranks(2, error, match, program)


def test_components_outside_of_the_mesh():
    def program():
        mesh = mc.create_mesh([("x", 1)])
        layout = mc.Layout(["x"], mesh)
        if mesh.rank is None:
            with pytest.raises(ShapeError, match="outside of the mesh"):
                tensorflow.pack([np.zeros(1)], layout)
        return tensorflow.unpack(mc.zeros((1,), "f8", layout))

    assert on(2, program) == [[np.zeros(1)], [None]]


# -- layouts ----------------------------------------------------------------------------------------------------------


class Holder:
    """As a variable: it has a value."""

    def __init__(self, value):
        self.value = value


def test_fetch_and_check_layout_and_is_dtensor():
    mesh = mc.Mesh(range(1), [("x", 1)])
    rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    t = mc.DTensor(np.zeros((2, 2)), rows, (2, 2), np.dtype(float))
    for held in (t, Holder(t)):
        assert dtensor.fetch_layout(held) == rows
        assert dtensor.is_dtensor(held)
        tensorflow.check_layout(held, rows)
        with pytest.raises(
            LayoutError, match=r"Layout of tensor: .*'x', UNSHARDED.*did not match expected layout: .*UNSHARDED, 'x'"
        ):
            tensorflow.check_layout(held, columns)
    for other in (None, np.zeros(2), 3.0, [t], Holder(3)):
        assert dtensor.fetch_layout(other) is None
        assert not dtensor.is_dtensor(other)
    with pytest.raises(LayoutError, match="Layout of tensor: None"):
        tensorflow.check_layout(np.zeros((2, 2)), rows)
    with pytest.raises(LayoutError, match="must be a Layout"):
        tensorflow.pack([np.zeros(1)], None)


def test_copy_to_mesh_and_variables_in_relayouts():
    def program():
        rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        t = tensorflow.copy_to_mesh([1, 2, 3], rows)
        moved = tensorflow.copy_to_mesh(Holder(t), mc.Layout([U], t.mesh))
        like = mc.relayout_like(moved, Holder(t))
        return t.local.tolist(), moved.local.tolist(), like.layout == rows

    assert on(2, program) == [([1, 2], [1, 2, 3], True), ([3], [1, 2, 3], True)]


def test_call_with_layout():
    Pair = namedtuple("Pair", "a b")

    def wants_layout(n, *, layout):
        return layout, n

    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows = mc.Layout(["x"], mesh)
        call = tensorflow.call_with_layout
        assert call(wants_layout, rows, 3) == (rows, 3)
        assert call(lambda: 3, None) == 3
        assert call(np.ones, None, 2).tolist() == [1, 1]
        t = call(mc.zeros, rows, (3,), "i4")
        assert (t.layout, t.dtype, t.local.shape) == (rows, np.int32, (2 - mesh.rank,))
        whole = mc.ones((3,), "f8", mc.Layout([U], mesh))
        made = call(lambda: {"a": np.arange(3), "b": [whole, (1, "text")], "c": Pair(whole, None)}, rows)
        assert made["a"].local.tolist() == [[0, 1], [2]][mesh.rank]
        assert made["b"][0].layout == rows
        assert made["b"][1] == (1, "text")
        assert type(made["c"]) is Pair
        assert made["c"].a.layout == rows
        assert made["c"].b is None
        return True

    assert on(2, program) == [True] * 2


# -- default meshes ---------------------------------------------------------------------------------------------------


def test_default_meshes_nest_and_are_restored():
    outer, inner = mc.Mesh(range(1), [("x", 1)]), mc.Mesh(range(1), [("y", 1)])
    assert get_default_mesh() is None
    context = default_mesh(outer)
    with context as entered:
        assert entered is outer
        with pytest.raises(ZeroDivisionError), default_mesh(inner):
            _ = 1 / (get_default_mesh() is not inner)
        assert get_default_mesh() is outer
        with run_on(inner), context:
            assert get_default_mesh() is outer
    with context:  # once more
        assert get_default_mesh() is outer
    assert get_default_mesh() is None


def test_default_mesh_as_a_decorator():
    mesh = mc.Mesh(range(1), [("x", 1)])

    @default_mesh(mesh)
    def depth(n):
        """Count down."""
        assert get_default_mesh() is mesh
        return n and depth(n - 1)

    assert depth(3) == 0
    assert depth.__name__ == "depth"
    assert get_default_mesh() is None


def test_default_meshes_belong_to_threads():
    seen = []
    with default_mesh(mc.Mesh(range(1), [("x", 1)])):
        thread = threading.Thread(target=lambda: seen.append(get_default_mesh()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_simulated_ranks_see_the_default_mesh_around_and_their_own():
    def program():
        around = get_default_mesh()
        mesh = mc.create_mesh([("x", 2)], f"mesh of rank {world.rank}".replace(" ", "_"))
        with default_mesh(mesh):
            barrier(around)  # the other rank enters its own
            own = get_default_mesh()
        return around.name, own.name, get_default_mesh().name

    with mc.simulate(2) as world:
        with default_mesh(mc.create_mesh([("x", 2)], "outer")):
            names = world.run(program)
        assert get_default_mesh() is None
    assert names == [("outer", f"mesh_of_rank_{rank}", "outer") for rank in range(2)]


@on_ranks(2)
def test_constructors_on_the_default_mesh():
    mesh = mc.create_mesh([("x", 2)])
    with default_mesh(mesh):
        made = [mc.zeros((2, 3)), mc.ones(3, "i4"), mc.full(2, 7), mc.full((), 1.5, "f4"), mc.empty((2, 2), "c8")]
    assert all(t.layout == mc.Layout.replicated(mesh, t.ndim) for t in made)
    assert [t.dtype for t in made] == ["f8", "i4", np.asarray(7).dtype, "f4", "c8"]
    assert made[2].local.tolist() == [7, 7]
    rows = mc.Layout(["x"], mesh)
    like = ones_like(mc.zeros((3,), "i2", rows))
    assert (like.layout, like.dtype, like.local.tolist()) == (rows, np.int16, [1] * (2 - mesh.rank))
    for make in (mc.zeros, mc.ones, mc.empty, lambda shape: mc.full(shape, 1)):
        with pytest.raises(MeshError, match="No default mesh has been registered to DTensor"):
            make((2,))


# -- barriers ---------------------------------------------------------------------------------------------------------


def test_a_barrier_keeps_those_who_are_first():
    order = []

    def program():
        mesh = mc.create_mesh([("x", 3)])
        for _ in range(2):
            order.append(("before", mesh.rank))
            barrier(mesh, "here")
            order.append(("after", mesh.rank))

    on(3, program)
    assert sorted(order[:3]) == [("before", rank) for rank in range(3)]
    assert order[3][0] == "after"


def test_a_barrier_concerns_only_its_mesh():
    def program():
        mesh = mc.create_mesh([("x", 1)])
        barrier(mesh)
        barrier(mesh, timeout_in_ms=0)
        return mesh.rank

    assert on(2, program) == [0, None]


def test_a_rank_that_never_comes():
    def program():
        mesh = mc.create_mesh([("x", 3)])
        barrier(mesh, timeout_in_ms=600_000)
        if mesh.rank == 2:
            return "left"
        with pytest.raises(
            CollectiveTimeout, match=r"barrier 'end' timed out: rank . has waited 50 ms, but rank 2 did not"
        ):
            barrier(mesh, "end", timeout_in_ms=50)
        return "waited"

    assert on(3, program) == ["waited", "waited", "left"]


def test_a_late_rank_goes_on():
    def program():
        first, second, third = (mc.create_mesh([("x", 2)], devices=ranks) for ranks in ([0, 1], [1, 2], [0, 2]))
        if first.rank is not None:
            barrier(first, "opens the communicator")
        if world.rank == 0:
            with pytest.raises(CollectiveTimeout, match="rank 1 did not arrive"):
                barrier(first, timeout_in_ms=10)
            barrier(third)  # this lets rank 2 go on, and that rank 1
        elif world.rank == 1:
            barrier(second)
            barrier(first, timeout_in_ms=10)
        else:
            barrier(third)
            barrier(second)
        if first.rank is not None:
            barrier(first, "again")  # the mesh can be used
        return world.rank

    with mc.simulate(3) as world:
        assert world.run(program) == [0, 1, 2]


def test_barriers_with_a_timeout_are_compared_now_and_then():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        for number in range(COMPARE_EVERY):
            barrier(mesh, f"{mesh.rank} at {number}", timeout_in_ms=600_000)

    raises_on_all_ranks(2, CollectiveMismatch, "they made different calls before it", program)
