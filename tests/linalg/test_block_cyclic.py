"""Layouts in which ScaLAPACK works, and their descriptors, by the rules of ScaLAPACK's users' guide."""

from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.linalg.block_cyclic import USUAL_BLOCK, cyclic_axes, descriptor, grid_mesh, product_work, square_work

U = mc.UNSHARDED
GRIDS = [(1, 1), (1, 3), (2, 2), (3, 2), (4, 1)]


def mesh_of(x, y):
    return mc.Mesh(range(x * y), [("x", x), ("y", y)])


def layouts_on(mesh):
    x, y = mesh.shape()
    specs = [
        [mc.Cyclic("x", 3), mc.Cyclic("y", 5)],
        [mc.Cyclic("y", 4, offset=y - 1), mc.Cyclic("x", 4, offset=x - 1)],
        [mc.Cyclic(("y", "x"), 2), U],
        [U, mc.Cyclic(("x", "y"), 100)],
        ["x", "y"],
        [("x", "y"), U],
        [mc.Cuts(("x", "y"), sizes=[7] + [0] * (x * y - 1)), U],
        [mc.Cyclic("x", 2), U],
        [U, U],
    ]
    return [mc.Layout(each, mesh) for each in specs]


def numroc(n, block, process, first, processes):
    """ScaLAPACK's NUMROC: how many of *n* rows or columns a process has; from TOOLS/numroc.f."""
    distance = (processes + process - first) % processes
    blocks, rest = divmod(n, block)
    found = blocks // processes * block
    extra = blocks % processes
    return found + block if distance < extra else found + rest if distance == extra else found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (13, 30), (64, 65)])
def test_descriptors_say_what_the_blocks_are(grid, shape):
    for layout in layouts_on(mesh_of(*grid)):
        axes = cyclic_axes(layout)
        if axes is None:
            continue
        for device, (row, column) in enumerate(layout.offset_to_shard()):
            numbers = descriptor(layout, [axis.block for axis in axes], shape, 5, device)
            # DTYPE_, CTXT_, M_, N_, MB_, NB_, RSRC_, CSRC_, LLD_, all of the transpose
            kind, context, m, n, m_block, n_block, first_row, first_column, leading = numbers
            assert (kind, context, m, n) == (1, 5, shape[1], shape[0])
            assert (m_block, n_block) == tuple(min(a.block, k) for a, k in zip(axes[::-1], shape[::-1], strict=True))
            local = layout.block_shape(shape, device)
            assert numroc(n, n_block, row, first_column, layout.shape[0]) == local[0]
            assert numroc(m, m_block, column, first_row, layout.shape[1]) == local[1]
            assert leading == max(1, local[1])


def test_ranks_outside_have_no_context():
    layout = mc.Layout([mc.Cyclic("x", 2), mc.Cyclic("y", 2)], mesh_of(2, 2))
    one = mc.create_mesh([("a", 1)])
    with mc.simulate(5) as world:
        contexts = world.run(lambda: (one.size, descriptor(layout, (2, 2), (4, 4), 3, layout.mesh.rank)[1]))
    assert [context for _, context in contexts] == [3, 3, 3, 3, -1]


def test_a_size_beyond_32_bits_is_refused():
    layout = mc.Layout([mc.Cyclic("x", 2), mc.Cyclic("y", 2)], mesh_of(2, 2))
    with pytest.raises(mc.LayoutError, match="32 bits"):
        descriptor(layout, (2, 2), (2**31, 4), 0, 0)
    huge = mc.Layout([mc.Cyclic("x", 2**40), mc.Cyclic("y", 2**40)], mesh_of(2, 2))
    assert descriptor(huge, (2**40, 2**40), (6, 4), 0, 0)[4:6] == (4, 6)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 8, 12])
def test_the_grid_has_all_devices(size):
    mesh = mc.Mesh([3 * i for i in range(size)], {"x": size})
    grid = grid_mesh(mesh)
    rows, columns = grid.shape()
    assert rows * columns == size
    assert rows <= columns
    assert list(grid.ranks) == list(mesh.ranks)


@pytest.mark.parametrize("grid", GRIDS)
def test_layouts_for_a_factor(grid):
    for layout, block in product(layouts_on(mesh_of(*grid)), (1, 6, 64)):
        (work,), (size,) = square_work(layout, block)
        rows, columns = cyclic_axes(work)
        assert rows.block == columns.block == size or work.mesh.size == 1
        given = cyclic_axes(layout)
        if given is not None and given[0].block == given[1].block:
            assert work is layout


@pytest.mark.parametrize("grid", GRIDS)
def test_layouts_for_a_product(grid):
    layouts = layouts_on(mesh_of(*grid))
    for one, other, block in product(layouts, layouts, (1, 64)):
        (a, b, c), blocks = product_work(one, other, block)
        assert a.mesh == b.mesh == c.mesh
        assert (a.axes[0], b.axes[1]) == c.axes
        for layout, sizes in ((a, blocks[:2]), (b, blocks[1:]), (c, blocks[::2])):
            for axis, shards, size in zip(cyclic_axes(layout), layout.shape, sizes, strict=True):
                assert axis.block == size or shards == 1
        if cyclic_axes(one) is not None:
            assert a == one
        elif cyclic_axes(other) is not None:
            assert b == other


def test_what_fits_is_left_as_it_is():
    mesh = mesh_of(2, 2)
    a = mc.Layout([mc.Cyclic("x", 3), mc.Cyclic("y", 5, offset=1)], mesh)
    b = mc.Layout([mc.Cyclic("x", 5, offset=1), mc.Cyclic("y", 7)], mesh)
    assert product_work(a, b, 64)[0][:2] == (a, b)
    twice, _ = product_work(b, b, 64)
    assert twice[0] == b
    assert twice[1] != b  # the summed axis has blocks of 7, then of 5
    c = mc.Layout([mc.Cyclic("y", 5), mc.Cyclic("x", 7)], mesh)
    assert product_work(a, c, 64)[0][1].sharding_specs == [mc.Cyclic("x", 5), mc.Cyclic("y", 64)]


def test_one_device_takes_any_layout():
    mesh = mc.Mesh([0], {"x": 1})
    for specs in (["x", U], [U, U], [mc.Cyclic("x", 7), U]):
        assert [axis.block for axis in cyclic_axes(mc.Layout(specs, mesh))] == [USUAL_BLOCK] * 2
    single = mc.Layout.from_device("CPU:0")
    assert cyclic_axes(single) is None
    assert np.prod(square_work(single, 64)[0][0].shape) == 1
