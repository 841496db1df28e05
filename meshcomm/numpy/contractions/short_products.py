"""Products of vectors and matrices with a short result, without a plan.

A loop may make products of many lengths, and each would need a plan. A plan compares the costs of moving one operand
or another. Here only the result or a short vector moves, so there is nothing to compare. The result has the layout
that the contraction would give it.
"""

import numpy as np

from meshcomm.blocks.align import cut_by, relaid
from meshcomm.blocks.make import make, mapped, mapping, on_blocks
from meshcomm.blocks.small import is_short, is_short_view, to_all
from meshcomm.core._callers import not_raising_float_errors
from meshcomm.core._tuning import MAX_UNPLANNED_BYTES, SMALL_MESHES
from meshcomm.core._types import Array, Names
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted
from meshcomm.core.layouts.coordinates import devices_along
from meshcomm.core.layouts.specs import Cyclic, free_names
from meshcomm.numpy.contractions.contraction import spread_over


def short_product(a: object, b: object) -> DTensor | None:
    """Return the product of a vector and a matrix of one floating-point dtype; None if it needs a plan.

    In a script also the product of two vectors. Collective over the mesh if something moves.
    """
    if type(a) is not DTensor or type(b) is not DTensor or a.layout.mesh is not b.layout.mesh:
        return None
    if a.dtype != b.dtype or a.dtype.char not in "fdFD" or not a.ndim or not b.ndim or a.shape[-1] != b.shape[0]:
        return None
    if a.ndim == b.ndim == 1 and is_scripted() and is_short(a) and is_short(b):
        return _vector_product(a, b)
    if {a.ndim, b.ndim} != {1, 2}:
        return None
    mesh, (vector, matrix, summed_axis) = a.layout.mesh, (a, b, 0) if a.ndim == 1 else (b, a, 1)
    n = matrix.shape[1 - summed_axis]
    if not 0 < n * a.dtype.itemsize <= MAX_UNPLANNED_BYTES or mesh.size > SMALL_MESHES or not a.size:
        return None
    summed_cut, free_cut, vector_cut = (
        matrix.layout.axes[summed_axis],
        matrix.layout.axes[1 - summed_axis],
        vector.layout.axes[0],
    )
    if isinstance(summed_cut, Cyclic) or isinstance(free_cut, Cyclic) or isinstance(vector_cut, Cyclic):
        return None
    if not free_cut and summed_cut == vector_cut and devices_along(mesh, summed_cut) > 1:
        return _summed_product(a, b, n, summed_cut)
    if (
        devices_along(mesh, summed_cut) == 1
        and {*vector_cut} <= {*free_cut}
        and (is_short_view(vector) or not any(vector_cut))
    ):
        whole_vector = relaid(vector, ((),), "numpy.matmul")
        operands = (whole_vector, b) if vector is a else (a, whole_vector)
        layout = matrix.layout._recut((free_cut,))
        return mapped(np.matmul, *operands, layout=layout, shape=(n,), dtype=np.result_type(a.dtype))
    return None


def product_of_one_device(a: object, b: object) -> Call | None:
    """Return the call that makes the product of matrices and vectors of one dtype on one device; None for others."""
    if type(a) is not DTensor or type(b) is not DTensor or a.layout.mesh is not b.layout.mesh or a.mesh.size > 1:
        return None
    if a.dtype != b.dtype or a.dtype.char not in "fdFD" or not 0 < a.ndim < 3 or not 0 < b.ndim < 3:
        return None
    if a.shape[-1] != b.shape[0]:
        return None
    row_axes = a.layout.axes[:-1]
    taken_names = {name for names in row_axes for name in names}
    layout = a.layout._recut((*row_axes, *(free_names(names, taken_names) for names in b.layout.axes[1:])))
    shape, dtype = (*a.shape[:-1], *b.shape[1:]), np.result_type(a.dtype, b.dtype)  # in native byte order
    return mapping(np.matmul, a, b, layout=layout, shape=shape, dtype=dtype)


def _vector_product(a: DTensor, b: DTensor) -> DTensor:
    """Return the product of two short vectors, which all devices get, with NumPy's digits. Collective."""
    vectors = [x if x.layout.is_fully_replicated() else to_all(x, "numpy.matmul") for x in (a, b)]
    return mapped(np.matmul, *vectors, layout=a.layout._recut(()), shape=(), dtype=np.result_type(a.dtype))


def _summed_product(a: DTensor, b: DTensor, n: int, cut: Names) -> DTensor:
    """Return the product of operands that are only cut along the summed axis. Collective over the mesh."""
    mesh, device_count = a.layout.mesh, devices_along(a.layout.mesh, cut)
    shares = to_all(
        make(
            on_blocks(_product_row, a, b),
            a.layout._recut((tuple(cut), ())),
            (device_count, n),
            np.result_type(a.dtype),
        ),
        "numpy.matmul",
    )
    names = tuple(name for name, size in mesh.dims if name in cut and size > 1)
    target = a.layout._recut(spread_over(((),), (n,), names, mesh))
    total = mapped(_sum_of_rows, shares, layout=a.layout._recut(((),)), shape=(n,))
    return total if is_scripted() else cut_by(target, total)  # in a script, small results are replicated


def _product_row(a: Array, b: Array) -> Array:
    """Return the product of two blocks as a row. An overflow on one rank must not raise before the exchange."""
    with not_raising_float_errors():
        row: Array = np.matmul(a, b)[np.newaxis]
    return row


def _sum_of_rows(shares: Array) -> Array:
    """Return the sum of the rows, in their order: the same on all ranks."""
    total: Array = shares[0].copy()
    with not_raising_float_errors():
        for share in shares[1:]:
            total += share
    return total
