"""DTensor and its constructors, on simulated ranks."""

import copy
import math
import pickle

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import CollectiveMismatch, DTypeError, Layout, LayoutError, MeshcommError, MeshError, ShapeError
from meshcomm.core._tuning import WHOLE_ARRAY
from support.reference import blocks_of, numbered, on_ranks, random_bits, same_bits, simulated
from support.strategies import DTYPES, dtype_id

U = "unsharded"


def a_tensor(rank=0, specs=("x", U), shape=(5, 4), devices=None):
    mesh = mc.create_mesh([("x", 2)], devices=devices)
    return mc.distribute(numbered(shape), Layout(list(specs), mesh))


# -- constructors give each rank its block ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
def test_every_dtype_bit_for_bit(dtype):
    raw = random_bits((5, 3), f"V{dtype.itemsize}" if dtype.names else dtype).view(f"V{dtype.itemsize}")

    def program(rank):
        rows = Layout(["x", U], mc.create_mesh([("x", 2)]))
        mine = blocks_of(raw, rows)[rank]
        for tensor in (
            mc.distribute(raw.view(dtype), rows),
            mc.distribute(raw.view(dtype) if rank == 1 else None, rows, root=1),
            mc.from_local(mine.view(dtype), rows),
            mc.from_local(mine.view(dtype), rows, (5, 3)).copy(),
        ):
            assert tensor.dtype == tensor.local.dtype == dtype
            assert same_bits(tensor.local.view(raw.dtype), mine)
            assert same_bits(tensor.to_numpy().view(raw.dtype), raw)
            whole = tensor.to_numpy(root=0)
            assert rank or same_bits(whole.view(raw.dtype), raw)

    simulated(2, program)


@on_ranks(2)
def test_filled_tensors(rank):
    layout = Layout([U, "x"], mc.create_mesh([("x", 2)]))
    for tensor, value in [
        (mc.zeros((2, 3), "i2", layout), 0),
        (mc.ones((2, 3), "i2", layout), 1),
        (mc.full((2, 3), 7, "i2", layout), 7),
        (mc.zeros_like(mc.full((2, 3), 7, "i2", layout)), 0),
    ]:
        assert same_bits(tensor.local, np.full((2, 2 - rank), value, "i2"))
        assert tensor.layout == layout
    assert mc.empty((2, 3), "c16", layout).local.shape == (2, 2 - rank)
    assert mc.zeros(3, float, Layout(["x"], layout.mesh)).shape == (3,)
    assert mc.full((), 2.5, "f4", Layout([], layout.mesh)).local.tolist() == 2.5
    assert mc.zeros((2, 3), "S3", layout).local.tolist() == [[b""] * (2 - rank)] * 2


# -- from_local -------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_from_local_wraps_a_contiguous_block_and_copies_any_other():
    rows = Layout(["x", U], mc.create_mesh([("x", 2)]))
    block = numbered((2, 3))
    for shape in (None, (4, 3)):
        assert np.shares_memory(mc.from_local(block, rows, shape).local, block)
        for other in (np.asfortranarray(block), block[::-1], np.repeat(block, 2, 1)[:, ::2]):
            tensor = mc.from_local(other, rows, shape)
            assert not np.shares_memory(tensor.local, other)
            assert tensor.local.flags.c_contiguous
            assert (tensor.local == other).all()
    assert mc.from_local(block.tolist(), rows).local.tolist() == block.tolist()
    matrix = block.view(type("Sub", (np.ndarray,), {}))
    assert type(mc.from_local(matrix, rows).local) is np.ndarray


def test_from_local_agrees_on_the_global_shape():
    def program(rank, sizes, specs, lengths):
        layout = Layout(specs, mc.create_mesh(sizes))
        return mc.from_local(np.zeros(lengths[rank]), layout).shape

    assert simulated(3, program, [("x", 3)], ["x"], [3, 2, 2]) == [(7,)] * 3
    assert simulated(3, program, [("x", 3)], ["x"], [1, 0, 0]) == [(1,)] * 3
    assert simulated(3, program, [("x", 3)], [U], [2, 2, 2]) == [(2,)] * 3
    assert simulated(4, program, [("x", 2), ("y", 2)], [("y", "x")], [2, 1, 1, 1]) == [(5,)] * 4
    assert simulated(4, program, [("x", 2), ("y", 2)], ["y"], [3, 2, 3, 2]) == [(5,)] * 4


@pytest.mark.parametrize(
    ("specs", "shapes", "text"),
    [
        (["x"], [(2,), (3,), (2,)], "add up to 7 elements, of which device 0 must hold 3"),
        (["x"], [(3,), (3,), (1,)], "of which device 1 must hold 2"),
        (["x"], [(0,), (1,), (0,)], "of which device 0 must hold 1"),
        ([U], [(2,), (2,), (3,)], "devices 0 and 2 hold the same elements along axis 0, but .* 2 and 3 there"),
        (["x", U], [(2, 3), (2, 3), (2, 4)], "devices 0 and 2 hold the same elements along axis 1"),
        (["x", U], [(2, 3), (2, 2), (2, 3)], "devices 0 and 1 hold the same elements along axis 1"),
    ],
)
def test_blocks_that_do_not_fit_together_are_refused_on_all_ranks(specs, shapes, text):
    def program(rank):
        layout = Layout(specs, mc.create_mesh([("x", 3)]))
        with pytest.raises(ShapeError, match=text) as caught:
            mc.from_local(np.zeros(shapes[rank]), layout)
        check_usable(layout.mesh)
        return str(caught.value)

    assert len(set(simulated(3, program))) == 1


def check_usable(mesh):
    """A right relayout after whatever went wrong."""
    tensor = mc.distribute(numbered((7,)), Layout([mesh.dim_names[0]], mesh))
    assert mc.relayout(tensor, Layout([U], mesh)).local.tolist() == list(range(7))


def check_unusable(mesh):
    """No call after a mismatch, until the mesh is made again."""
    with pytest.raises(MeshError, match="make it again"):
        check_usable(mesh)
    mesh.close()
    check_usable(mc.create_mesh(mesh.dims))


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.zeros((), "f8"), np.array([None]), None, [[1], [1, 2]]])
def test_one_bad_block_is_refused_on_all_ranks(bad):
    def program(rank):
        layout = Layout(["x"], mc.create_mesh([("x", 2)]))
        with pytest.raises(MeshcommError) as caught:
            mc.from_local(bad if rank else np.zeros(2), layout)
        check_usable(layout.mesh)
        return type(caught.value)

    kinds = simulated(2, program)
    assert kinds[0] is kinds[1]
    assert issubclass(kinds[0], (LayoutError, DTypeError, ShapeError))


# -- from_callback ----------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_from_callback_converts_what_loses_no_kind_of_number(rank):
    layout = Layout(["x"], mc.create_mesh([("x", 2)]))
    held = np.arange(3 - rank)
    tensor = mc.from_callback((5,), "f4", layout, lambda _: held)
    assert same_bits(tensor.local, held.astype("f4"))
    tensor = mc.from_callback((5,), held.dtype, layout, lambda _: held)
    assert not np.shares_memory(tensor.local, held)


@on_ranks(2)
def test_from_callback_of_an_array_that_no_memory_holds():
    layout = Layout(["x", "y"], mc.Mesh(range(2**30), [("x", 2**15), ("y", 2**15)]))
    slices = layout.block_slices((2**20, 2**20), 2**30 - 1)
    assert slices == (slice(2**20 - 32, 2**20),) * 2
    mesh = mc.create_mesh([("x", 2)], devices=[0, 1])
    shape = (2, 2**40, 0)
    assert (
        mc.from_callback(shape, "u1", Layout(["x", U, U], mesh), lambda s: np.zeros((1, 2**40, 0), "u1")).shape
        == shape
    )


# -- distribute and to_numpy ------------------------------------------------------------------------------------------


def test_distribute_from_root_sends_each_block_once():
    array = numbered((6, 4), "i4")
    with mc.simulate(3) as world:

        def program():
            rows = Layout(["x", U], mc.create_mesh([("x", 3)]))
            return mc.distribute(array if world.rank == 2 else None, rows, root=2).to_numpy(root=1)

        results = world.run(program)
    assert [result is None for result in results] == [True, False, True]
    assert same_bits(results[1], array)
    block = array.nbytes // 3
    assert world.bytes_moved == [block, block + 2 * block, 0]


@on_ranks(2)
def test_errors_of_root_are_raised_on_all_ranks(rank):
    rows = Layout(["x", U], mc.create_mesh([("x", 2)]))
    for array, error in [(None, ShapeError), (np.zeros(3), LayoutError), (np.zeros((2, 2), "O"), DTypeError)]:
        with pytest.raises(error):
            mc.distribute(array if rank == 1 else np.zeros((4, 4)), rows, root=1)
        check_usable(rows.mesh)
    for root in (-1, True):
        for call in (lambda root: mc.distribute(np.zeros((4, 4)), rows, root=root), a_tensor().to_numpy):
            with pytest.raises(MeshError, match="root"):
                call(root=root)
    with pytest.raises(mc.CollectiveMismatch):
        mc.distribute(np.zeros((4, 4)), rows, root=rank)
    check_unusable(rows.mesh)


# -- the object -------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_arrays_of_large_sharded_tensors_are_refused():
    tensor = mc.empty(WHOLE_ARRAY + 1, "i1", Layout(["x"], mc.create_mesh([("x", 2)])))
    for use in (np.asarray, np.array, np.vectorize(abs)):
        with pytest.raises(TypeError, match=r"67,108,865 bytes of at most .* t\.local .* t\.to_numpy\(\)"):
            use(tensor)


@on_ranks(2)
def test_rows_of_a_tensor():
    for specs in (["x", U], [U, "x"], [U, U]):
        tensor = a_tensor(specs=specs)
        rows = list(tensor)
        assert [row.to_numpy().tolist() for row in rows] == tensor.to_numpy().tolist()
        assert [float(x) for x in rows[1].copy()] == tensor.to_numpy()[1].tolist()
        rows[0][0] = 7
        assert tensor.to_numpy()[0, 0] == 7
        whole = tensor.to_numpy()
        for array in (tensor, whole):  # a write is seen by the rows that follow
            for i, row in enumerate(array[:-1]):
                row *= 2
                array[i + 1] = row + array[i + 1]
        assert tensor.to_numpy().tolist() == whole.tolist()


@on_ranks(2)
def test_elements_that_are_written_in_a_loop():
    tensor, whole = mc.distribute(np.arange(7.0), Layout(["x"], mc.create_mesh([("x", 2)]))), np.arange(7.0)
    for array in (tensor, whole):
        for i, x in enumerate(array[:-1]):
            array[i + 1] = x + 2
    assert tensor.to_numpy().tolist() == whole.tolist() == [0, 2, 4, 6, 8, 10, 12]


@on_ranks(3)
def test_small_sharded_tensors_become_arrays(rank):
    for specs, devices in ((["x", U], [0, 1]), ([U, "x"], [2, 0])):
        tensor = a_tensor(specs=specs, devices=devices)
        if tensor.mesh.rank is None:
            with pytest.raises(TypeError, match="outside of its mesh"):
                np.asarray(tensor)
            continue
        whole = numbered((5, 4))
        assert same_bits(np.asarray(tensor), whole)
        assert same_bits(np.asarray(tensor.T), whole.T)
        assert np.asarray(tensor, "f4").dtype == np.float32
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(tensor)[0] = 1
        np.array(tensor)[0] = 1
        with pytest.raises(ValueError, match="lend"):
            np.asarray(tensor, copy=False)
        # What NumPy does without its protocol, with arrays of its own and Python's lists
        assert same_bits(np.array([tensor[0], tensor[1]]), whole[:2])
        assert same_bits(whole[:, 0].dot(tensor), whole[:, 0].dot(whole))
        assert same_bits(np.arange(20)[tensor], whole)
        into = np.zeros((5, 4), int)
        into[...] = tensor
        assert same_bits(into, whole)


def test_a_rank_that_makes_an_array_alone_is_found():
    with mc.simulate(2) as world:

        def program():
            tensor = a_tensor()
            return np.asarray(tensor) if world.rank == 0 else tensor.sum()

        with pytest.raises(CollectiveMismatch, match=r"(?s)numpy\.asarray.* sum over"):
            world.run(program)


@on_ranks(2)
def test_arrays_of_replicated_tensors_are_copies():
    for specs in ([U, U], ["y", U]):  # y divides nothing
        tensor = mc.distribute(numbered((5, 4)), Layout(specs, mc.create_mesh([("x", 2), ("y", 1)])))
        array = np.asarray(tensor)
        assert same_bits(array, numbered((5, 4)))
        assert not np.shares_memory(array, tensor.local)
        assert np.asarray(tensor, dtype="f4").dtype == np.dtype("f4")
        with pytest.raises(ValueError, match="lend"):
            np.asarray(tensor, copy=False)


def test_repr_communicates_nothing_and_is_short():
    with mc.simulate(2) as world:

        def program():
            if world.rank == 0:  # alone: what communicates would wait for ever
                tensor = a_tensor()
                assert "DTensor of (5, 4) int64 in [x, unsharded] on mesh x=2" in repr(tensor)
                assert "(3, 4)" in repr(tensor)
                assert len(repr(a_tensor(shape=(4000, 3)))) < 1000
                assert str(tensor) == repr(tensor)
                assert (tensor.shape, tensor.ndim, tensor.size, tensor.nbytes) == ((5, 4), 2, 20, 160)
                assert tensor.mesh.size == 2
                assert isinstance(tensor != a_tensor(), mc.DTensor)

        world.run(program)
        assert world.messages == [0, 0]


@on_ranks(2)
def test_tensors_do_not_change_layout_dtype_or_block():
    tensor = a_tensor()
    for name in ("local", "layout", "dtype", "other"):
        with pytest.raises(AttributeError):
            setattr(tensor, name, getattr(tensor, name, None))
    with pytest.raises(ValueError, match="truth"):
        bool(tensor)


@on_ranks(2)
def test_pickling_refuses_and_says_what_to_do():
    tensor = a_tensor()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match=r"t\.local.*from_local.*to_numpy"):
            pickle.dumps(tensor, protocol)
    layout = pickle.loads(pickle.dumps(tensor.layout))
    again = mc.from_local(pickle.loads(pickle.dumps(tensor.local)), layout, tensor.shape)
    assert same_bits(again.local, tensor.local)


@on_ranks(2)
def test_copies_have_their_own_block():
    tensor = a_tensor()
    for other in (tensor.copy(), copy.copy(tensor), copy.deepcopy(tensor)):
        assert same_bits(other.local, tensor.local)
        assert not np.shares_memory(other.local, tensor.local)
        assert (other.layout, other.shape, other.dtype) == (tensor.layout, tensor.shape, tensor.dtype)


def test_ranks_outside_of_the_mesh_know_shape_dtype_and_layout():
    array = numbered((5, 4), "i2")

    def program(rank):
        mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
        rows = Layout(["x", U], mesh)
        device = mesh.rank
        block = None if device is None else blocks_of(array, rows)[device]
        tensors = [
            mc.distribute(array, rows),
            mc.from_callback((5, 4), "i2", rows, lambda slices: array[slices]),
            mc.zeros((5, 4), "i2", rows),
            mc.full((5, 4), 3, "i2", rows),
            mc.ones((5, 4), "i2", rows),
            mc.empty((5, 4), "i2", rows),
            mc.relayout(mc.distribute(array, Layout([U, "x"], mesh)), rows),
            mc.relayout(array, rows),
        ]
        for tensor in (*tensors, *(mc.zeros_like(t) for t in tensors), *(t.copy() for t in tensors)):
            assert (tensor.shape, tensor.dtype, tensor.layout) == ((5, 4), np.dtype("i2"), rows)
            assert (tensor.local is None) == (rank == 1)
            assert rank != 1 or "outside of the mesh" in repr(tensor)
        whole = [tensors[0].to_numpy(), tensors[0].to_numpy(root=0)]
        assert [w is None for w in whole] == [rank == 1, rank != 2], "root is a device: device 0 is rank 2"
        tensor = mc.from_local(block, rows, (5, 4))
        assert tensor.shape == (5, 4)
        if rank == 1:
            with pytest.raises(TypeError, match="outside"):
                np.asarray(mc.distribute(array, Layout([U, U], mesh)))
            with pytest.raises(ShapeError, match="pass global_shape"):
                mc.from_local(None, rows)
            with pytest.raises(MeshError, match="outside of the mesh"):
                mc.distribute(None, rows, root=0)

    simulated(3, program)


# -- arguments --------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_tensor_of_one_element_is_a_number_where_every_rank_has_it():
    mesh = mc.create_mesh([("x", 2)])
    total = mc.distribute(np.arange(4.0), Layout(["x"], mesh)).sum()
    assert (bool(total), float(total), int(total), math.sqrt(total + 3)) == (True, 6.0, 6, 3.0)
    assert (round(total / 4), round(total / 7, 2)) == (2, 0.86)
    assert (f"{total:.2f}", f"{total}", str(total)) == ("6.00", "6.0", "6.0")
    one = mc.distribute(np.array([[2.5]]), Layout([U, U], mesh))
    assert (bool(one), bool(one - 2.5), f"{one:.1f}", round(one)) == (True, False, "2.5", 2)
    sharded = mc.distribute(np.array([2.5]), Layout(["x"], mesh))
    for ask in (bool, float, int, round, math.sqrt, "{:.1f}".format):
        with pytest.raises(LayoutError, match=r"t\.to_numpy"):
            ask(sharded)
    check_usable(mesh)


def test_texts_that_are_no_numbers_are_an_error_on_all_ranks():
    def program():
        t = mc.distribute(np.array(["1", "2", "x"]), Layout(["x"], mc.create_mesh([("x", 3)])))
        with pytest.raises(ValueError, match="invalid literal for int"):
            t.astype(int)
        return t[:2].astype("i2").to_numpy().tolist()

    with mc.simulate(3) as world:
        assert world.run(program)[0] == [1, 2]


@on_ranks(3)
def test_a_shape_can_be_set():
    mesh, array = mc.create_mesh(), np.arange(24).reshape(4, 6)
    for specs in (["x", mc.UNSHARDED], [mc.UNSHARDED, "x"], [mc.UNSHARDED] * 2):
        tensor = mc.distribute(array, Layout(specs, mesh))
        for shape in (24, (2, -1), (3, 8)):
            tensor.shape = shape
            assert same_bits(tensor.to_numpy(), array.reshape(shape))
        tensor[0, 0] += 7
        assert tensor.to_numpy()[0, 0] == 7
        with pytest.raises(mc.ShapeError):
            tensor.shape = (7, 7)
