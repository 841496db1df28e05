"""Indexing of tensors in layouts of all kinds against NumPy: slices, assignments, masks."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cuts, Cyclic, Layout, ShapeError
from meshcomm.core.layouts.slicing import parsed_index
from meshcomm.numpy.indexing.slicing import local_slice_of
from support import indexing
from support.indexing import random_index
from support.reference import block_of, on_ranks
from support.sampling import sampled
from support.tensors import check, layout_of, on_a_mesh, shape_of

U = "unsharded"
SEEDS = sampled(range(80), 8)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("what", ["slices", "assignments", "overlaps", "masks"])
def test_indexing_is_numpys(what, seed):
    on_a_mesh(seed, getattr(indexing, what))


@on_ranks(4)
def test_a_slice_is_a_view_both_ways():
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    t = mc.distribute(np.arange(48.0).reshape(6, 8), Layout(["x", "y"], mesh))
    inner = t[1:-1, 1:-1]
    assert np.shares_memory(inner.local, t.local)
    inner *= 2
    expected = np.arange(48.0).reshape(6, 8)
    expected[1:-1, 1:-1] *= 2
    check(t, expected)
    t[...] = 0
    assert (inner.local == 0).all()
    inner.local[...] = 5
    assert t.to_numpy().sum() == 5 * inner.size
    row = t[3]
    assert np.shares_memory(row.local, t.local) == (row.local.size > 0)
    row[...] = 1
    assert (t.to_numpy()[3] == 1).all()


def test_slices_keep_elements_where_they_are():
    """Also in the words of layouts: boundaries, cyclic blocks from a block on, and rows on one device."""
    mesh = mc.Mesh(range(6), {"x": 3, "y": 2})

    def specs(layout, shape, index):
        return local_slice_of(layout, shape, parsed_index(index, shape), 0).layout.sharding_specs

    rows = Layout(["x", U], mesh)
    assert specs(rows, (10, 4), np.s_[2:8]) == [Cuts("x", (0, 2, 5, 6)), U]
    assert specs(rows, (10, 4), np.s_[:7:3, ::-1]) == [Cuts("x", (0, 2, 3, 3)), U]
    assert specs(rows, (10, 4), np.s_[5]) == [Cuts("x", (0, 0, 4, 4))]
    assert specs(rows, (10, 4), np.s_[:, 2, None]) == ["x", U]
    both = Layout(["x", "y"], mesh)
    assert specs(both, (6, 4), np.s_[3]) == [Cuts(("x", "y"), (0, 0, 0, 2, 4, 4, 4))]
    cyclic = Layout([Cyclic("x", 2), U], mesh)
    assert specs(cyclic, (20, 4), np.s_[4:17]) == [Cyclic("x", 2, offset=2), U]
    assert specs(cyclic, (20, 4), np.s_[9:10]) == [Cuts("x", (0, 0, 1, 1)), U]
    assert specs(rows, (20, 4), np.s_[5:4:-1]) == ["x", U]
    for layout, index in [(rows, np.s_[5:3:-1]), (cyclic, np.s_[1:9]), (cyclic, np.s_[::2]), (both, np.s_[1, 2])]:
        assert local_slice_of(layout, (20, 4), parsed_index(index, (20, 4)), 0) is None


@on_ranks(2)
def test_slices_that_moved_are_views():
    """One element is a copy in all layouts, as NumPy's scalars are."""
    mesh = mc.create_mesh([("x", 2)])
    for spec in ("x", Cyclic("x", 2), U):
        t = mc.distribute(np.arange(8.0), Layout([spec], mesh))
        first = t[0]
        t[0] = t[7]
        t[7] = first
        first += 100
        assert t.to_numpy().tolist() == [7, 1, 2, 3, 4, 5, 6, 0]
        t[::-1] += 1
        t[1:-1] += 1
        assert t.to_numpy().tolist() == [8, 3, 4, 5, 6, 7, 8, 1]
        if spec != U:
            moved = t[::-1]
            np.add(t, 1, out=moved)
            assert t.to_numpy().tolist() == [2, 9, 8, 7, 6, 5, 4, 9]
            assert (moved + 1).to_numpy()[0] == 10
            t[7] = 50
            moved += 1
            assert t.to_numpy().tolist() == [3, 10, 9, 8, 7, 6, 5, 51]
            t[0] = 60
            moved[0] = 1
            moved[[2, 3]] = moved[moved > 50] = 2
            assert t.to_numpy().tolist() == [2, 10, 9, 8, 2, 2, 5, 1]


@on_ranks(4)
def test_a_tensor_of_another_mesh_is_assigned():
    mesh, other = mc.create_mesh([("x", 4)]), mc.create_mesh([("a", 2)], devices=[3, 1])
    t = mc.distribute(np.zeros((6, 5)), Layout([U, "x"], mesh))
    v = mc.distribute(np.arange(5.0), Layout(["a"], other))
    t[2:4] = v
    expected = np.zeros((6, 5))
    expected[2:4] = np.arange(5.0)
    check(t, expected)


@on_ranks(3)
def test_ranks_outside_of_the_mesh():
    mesh = mc.create_mesh([("x", 2)], devices=[2, 0])
    t = mc.zeros((5, 3), "f4", Layout(["x", U], mesh))
    t[1:3] = 4
    t[0] = t[1]
    found = t[1:, ::-1]
    assert (found.shape, found.dtype) == ((4, 3), np.dtype("f4"))
    assert (found.local is None) == (mesh.rank is None)
    assert t[::-1].shape == (5, 3)
    assert t[2, 1].shape == ()
    if mesh.rank is None:
        with pytest.raises(ShapeError, match="a rank outside of the mesh cannot know"):
            t[t > 3]
    else:
        assert t[t > 3].shape == (9,)
        assert float(t[2, 1]) == 4


@on_ranks(3)
def test_whether_an_element_is_in_a_tensor_is_as_in_numpy():
    a = np.arange(30.0).reshape(6, 5)
    t = mc.distribute(a, Layout(["x", U], mc.create_mesh([("x", 3)])))
    for value in (7, 30, 7.5, np.float32(29), a[2], a[2] + 30, np.nan):
        assert (value in t) == (value in a)
    assert 435 in t.sum()
    assert len(t) == 6
    assert [1, 2, 3][t[0, 1].astype(int) + 1] == 3


@on_ranks(3)
def test_slices_of_all_dtypes_keep_their_bits():
    mesh = mc.create_mesh([("x", 3)])
    x = np.zeros(9, [("a", "i1"), ("b", ">f8")])
    x.view(np.uint8)[:] = np.random.default_rng(1).integers(0, 256, x.nbytes)
    t = mc.distribute(x, Layout(["x"], mesh))
    assert t[2:7].to_numpy().tobytes() == x[2:7].tobytes()
    t[:4] = t[5:]
    assert t.to_numpy().tobytes() == x[5:].tobytes() + x[4:].tobytes()


@on_ranks(2)
def test_what_a_slice_gives_goes_everywhere():
    """Slices as sources and as results of all forms of relayout."""
    mesh = mc.create_mesh([("x", 2)])
    rows, columns = Layout(["x", U], mesh), Layout([U, "x"], mesh)
    x = np.arange(60.0).reshape(6, 10)
    t = mc.distribute(x, rows)
    inner, expected = t[1:5, 2:9:2], x[1:5, 2:9:2]
    check(mc.relayout(inner, columns), expected)
    check(mc.relayout([inner, t[:2]], columns)[0], expected)
    check(mc.start_relayout(inner, columns).wait(), expected)
    check(np.transpose(inner), expected.T)
    check(inner @ inner.T, expected @ expected.T)
    check(mc.transpose(inner, layout=rows), expected.T)
    np.testing.assert_array_equal(
        inner.to_numpy(root=1) if mesh.rank == 1 else inner.to_numpy(root=1) or expected, expected
    )
    check(inner.copy(), expected)
    assert inner.copy().local.flags.c_contiguous
    assert float(inner.sum()) == expected.sum()
    out = mc.zeros((6, 10), "f8", columns)
    into, whole = out[:, ::2], np.zeros((6, 10))
    for number, move in enumerate(
        (
            lambda s: mc.relayout(s, into.layout, out=into),
            lambda s: mc.relayout([s], [into.layout], out=[into])[0],
            lambda s: mc.start_relayout(s, into.layout, out=into).wait(),
            lambda s: mc.plan_relayout(s.shape, s.dtype, s.layout, into.layout).execute(s, out=into),
            lambda s: mc.relayout(s.to_numpy(), into.layout, out=into),
        )
    ):
        assert move(t[:, ::2] + number) is into
        whole[:, ::2] = x[:, ::2] + number
        check(out, whole)
    with pytest.raises(mc.LayoutError, match="out shares memory"):
        mc.relayout(t[:, ::2], t[:, ::2].layout, out=t[:, ::2])
    mc.relayout(t[:, ::2], t[:, 1::2].layout, out=t[:, 1::2])  # other elements of the same rows
    x[:, 1::2] = x[:, ::2]
    check(t, x)
    assert "block of this rank" in repr(inner)


def test_layouts_of_random_slices_on_every_device():
    """The pure function on many devices: what it keeps is what NumPy gives, element by element."""
    random = Random(5)
    mesh = mc.Mesh(range(12), {"x": 3, "y": 4})
    kept = 0
    for _ in range(300):
        shape = shape_of(random)
        layout = layout_of(random, mesh, shape)
        index = random_index(random, shape)
        whole = np.arange(np.prod(shape, dtype=int)).reshape(shape)
        for device in range(mesh.size):
            found = local_slice_of(layout, shape, parsed_index(index, shape), device)
            if found is None:
                continue
            kept += 1
            taken = block_of(whole, layout, device)[(..., *found.block)].reshape(found.lengths)
            np.testing.assert_array_equal(taken, block_of(np.asarray(whole[index]), found.layout, device))
    assert kept > 1000


@on_ranks(2)
def test_what_a_newcomer_met():
    mesh, other = mc.create_mesh([("x", 2)]), mc.create_mesh([("y", 2)])
    t = mc.zeros((6, 5), "c16", Layout(["x", U], mesh))
    for index in (
        mc.distribute(np.arange(3), Layout(["y"], other)),
        mc.distribute(np.ones(6, bool), Layout([U], other)),
    ):
        with pytest.raises(mc.MeshError, match="operands must be on one mesh"):
            t[index, 0]
        with pytest.raises(mc.MeshError, match="operands must be on one mesh"):
            t[index, 0] = 1
    check(t[range(1, 3)], np.zeros((2, 5), "c16"))
    t.imag += 1
    t.real = 2
    check(t, np.full((6, 5), 2 + 1j))
    with pytest.raises(AttributeError, match="another T"):
        t.T = t
    for dtype, value in (("u8", 2**64 - 1), ("i8", -(2**63))):
        with pytest.raises(ShapeError, match="must have no negative elements"):
            np.bincount(mc.distribute(np.array([value, 0], dtype), Layout(["x"], mesh)))


@on_ranks(4)
def test_elements_by_number_are_numpys():
    expected = np.arange(48.0).reshape(6, 8)
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    t = mc.distribute(expected, Layout(["x", "y"], mesh))
    for index, value in ((3, 7), (-1, 8), (np.int64(20), 9), (slice(None, None, 9), -1), (slice(-3, 2, -4), [1, 2])):
        t.flat[index] = expected.flat[index] = value
        check(t, expected)
        assert np.array_equal(t.flat[index].to_numpy(), expected.flat[index])
    with pytest.raises(IndexError, match="index 48 is out of bounds for size 48"):
        t.flat[48] = 1
