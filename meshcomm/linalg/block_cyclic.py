"""The layouts in which ScaLAPACK works: both axes of a matrix are block-cyclic over a grid of all devices.

ScaLAPACK stores matrices by columns, and a block here is stored by rows. So ScaLAPACK sees a block of the transposed
matrix. Its grid of processes is transposed as well: the devices along axis 1 are its rows. It gets the transposed
problem, and nothing has to be copied::

    C = A B      <=>   C' = B' A'
    A = L L^H    <=>   A' = U^H U   with U = L'
"""

import math
from typing import NamedTuple, TypeAlias

from meshcomm.core._types import Names, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic

USUAL_BLOCK = 64
"""Rows or columns of a block. A compromise that is usual for ScaLAPACK: large for BLAS, small for equal work."""


class CyclicAxis(NamedTuple):
    """A block-cyclic axis: mesh dimensions, elements of a block, and the device of the first block."""

    names: Names
    block: int
    offset: int = 0

    @property
    def spec(self) -> Names:
        """The sharding spec."""
        return Cyclic(self.names, self.block, self.offset) if self.names else ()


WorkLayouts: TypeAlias = tuple[tuple[Layout, ...], tuple[int, ...]]
"""The layouts in which a routine works, and the sizes of blocks in its descriptors.

The layout does not know the size of blocks along an axis that one device holds completely.
"""


def cyclic_axes(layout: Layout) -> tuple[CyclicAxis, CyclicAxis] | None:
    """Return the block-cyclic axes of a matrix, or None unless ScaLAPACK can use the blocks as they are.

    No element may be on two devices, and an axis over several devices must be `Cyclic`. An axis that one device
    holds completely counts as block-cyclic with blocks of any size.

    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> cyclic_axes(Layout([Cyclic("x", 3), Cyclic("y", 2, offset=1)], mesh))
    (CyclicAxis(names=('x',), block=3, offset=0), CyclicAxis(names=('y',), block=2, offset=1))
    >>> cyclic_axes(Layout([Cyclic(("y", "x"), 3), "unsharded"], mesh))
    (CyclicAxis(names=('y', 'x'), block=3, offset=0), CyclicAxis(names=(), block=3, offset=0))
    >>> cyclic_axes(Layout([Cyclic("x", 3), "unsharded"], mesh)), cyclic_axes(Layout(["x", "y"], mesh))
    (None, None)
    """
    if layout.is_single_device() or math.prod(layout.shape) != layout.mesh.size:
        return None
    rules = [layout.cyclic(axis) for axis in range(layout.ndim)]
    if any(shards > 1 and rule is None for shards, rule in zip(layout.shape, rules, strict=True)):
        return None
    block = next((rule.block for rule in rules if rule), USUAL_BLOCK)
    rows, columns = (
        CyclicAxis(tuple(rule), rule.block, rule.offset) if rule else CyclicAxis(names, block)
        for names, rule in zip(layout.axes, rules, strict=True)
    )
    return rows, columns


def grid_mesh(mesh: Mesh, along: int | None = None) -> Mesh:
    """Return a mesh of rows and columns over the devices of *mesh*, as square as their number allows.

    With *along*, most devices lie along this axis: at least four times as many as along the other one, or all.
    Routines that work column by column, such as a pivot search, are fast if few devices share a column: these wait
    for each other n times.

    >>> [grid_mesh(Mesh(range(n), {"x": n})).shape() for n in (1, 3, 4, 12)]
    [[1, 1], [1, 3], [2, 2], [3, 4]]
    >>> [grid_mesh(Mesh(range(n), {"x": n}), along=0).shape() for n in (3, 4, 16, 64)]
    [[3, 1], [4, 1], [8, 2], [16, 4]]
    """
    limit = math.isqrt(mesh.size if along is None else mesh.size // 4)
    short_side = max(n for n in range(1, max(1, limit) + 1) if mesh.size % n == 0)
    rows = mesh.size // short_side if along == 0 else short_side
    return mesh.of_ranks(mesh.ranks, [("rows", rows), ("columns", mesh.size // rows)])


def square_work(layout: Layout, block: int) -> WorkLayouts:
    """Return the layout in which to factor a matrix: square blocks; *layout* itself if it has them.

    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> square_work(Layout([Cyclic("y", 8), Cyclic("x", 8)], mesh), 64)[0][0].sharding_specs
    [Cyclic('y', 8), Cyclic('x', 8)]
    >>> square_work(Layout(["x", "unsharded"], mesh), 64)[0][0].sharding_specs
    [Cyclic('rows', 64), Cyclic('columns', 64)]
    """
    axes = cyclic_axes(layout)
    if axes is not None and axes[0].block == axes[1].block:
        return (layout,), (axes[0].block,)
    mesh, rows, columns = (layout.mesh, *axes) if axes else _default_axes(layout.mesh, block)
    return (Layout([CyclicAxis(rows.names, block).spec, CyclicAxis(columns.names, block).spec], mesh),), (block,)


def product_work(a: Layout, b: Layout, block: int) -> WorkLayouts:
    """Return the layouts for both operands of a product and for its result; operands keep theirs if they fit.

    Rows of the result are cut as rows of *a*, columns as columns of *b*. The summed axis has equal block sizes in both
    operands. The sizes of blocks are those of the rows, of the summed axis, and of the columns.

    >>> mesh = Mesh(range(4), [("x", 2), ("y", 2)])
    >>> rows, cyclic = Layout(["x", "y"], mesh), Layout([Cyclic("x", 5), Cyclic("y", 3)], mesh)
    >>> layouts, blocks = product_work(cyclic, rows, 64)
    >>> layouts[0] == cyclic, layouts[1].sharding_specs, layouts[2].sharding_specs, blocks
    (True, [Cyclic('x', 3), Cyclic('y', 64)], [Cyclic('x', 5), Cyclic('y', 64)], (5, 3, 64))
    """
    a_axes, b_axes = cyclic_axes(a), cyclic_axes(b)
    if a_axes is None and b_axes is None:
        mesh, rows, summed = _default_axes(a.mesh, block)
        b_rows, columns = rows, summed
    elif a_axes is None:
        assert b_axes is not None
        mesh, (b_rows, columns) = b.mesh, b_axes
        rows, summed = CyclicAxis(b_rows.names, block), CyclicAxis(columns.names, b_rows.block)
    else:
        mesh, (rows, summed) = a.mesh, a_axes
        b_rows, columns = CyclicAxis(rows.names, summed.block), CyclicAxis(summed.names, block)
        if b_axes is not None and (b_axes[0].names, b_axes[0].block, b_axes[1].names) == (*b_rows[:2], columns.names):
            b_rows, columns = b_axes  # b keeps its layout
    pairs = (rows, summed), (b_rows, columns), (rows, columns)
    layouts = tuple(Layout([row_axis.spec, column_axis.spec], mesh) for row_axis, column_axis in pairs)
    return layouts, (rows.block, summed.block, columns.block)


def _default_axes(mesh: Mesh, block: int) -> tuple[Mesh, CyclicAxis, CyclicAxis]:
    return grid_mesh(mesh), CyclicAxis(("rows",), block), CyclicAxis(("columns",), block)


def descriptor(
    layout: Layout, blocks: tuple[int, int], shape: Shape, context: int, device: int | None
) -> tuple[int, ...]:
    """Return ScaLAPACK's descriptor of a matrix in a layout of `WorkLayouts`.

    It is ``Layout.descriptor`` with the sizes of *blocks* for rows and columns: routines compare them, and the layout
    does not know them where one device holds an axis completely. They are at most the length of the axis, so that they
    fit into 32 bits.
    """
    entries = layout.descriptor(shape, context, device)
    rows, columns = (min(block, max(1, length)) for block, length in zip(blocks, shape, strict=True))
    return (*entries[:4], columns, rows, *entries[6:])
