"""Where a tensor is not zero: nonzero, argwhere, flatnonzero.

The elements that are found are in C order, as in NumPy: a tensor whose blocks are not in this order is relaid first,
as one of bool. The results have one axis, with `Cuts`: each rank has the indices of the elements of its block.
"""

import numpy as np

from meshcomm.blocks.make import make, mapped, refuse_outside
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.small import of_rows
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.blocks.whole import in_flat_order
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.partition import global_indices
from meshcomm.numpy.elementwise.signatures import implements


@implements(np.nonzero, partly=True)
def nonzero(a: DTensor) -> tuple[DTensor, ...]:
    """Return where *a* is not zero, as numpy.nonzero: an index for each of its axes. Collective over the mesh.

    ``ValueError`` for a tensor without axes; ``ShapeError`` on a rank outside of the mesh, which does not know how
    many elements there are.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([0, 3, 0, 4, 5]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.nonzero(t)[0].local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1], [3, 4]]
    """
    tensor = as_tensor("numpy.nonzero", a)
    if not tensor.ndim:
        raise ValueError("numpy.nonzero of a tensor without axes is not allowed; use numpy.atleast_1d(t)")
    return where_true("numpy.nonzero", truth(tensor))


@implements(np.argwhere, partly=True)
def argwhere(a: DTensor) -> DTensor:
    """Return where *a* is not zero, as numpy.argwhere: a row of indices for each element. Collective over the mesh."""
    tensor = as_tensor("numpy.argwhere", a)
    lines = where_true("numpy.argwhere", tensor_np.atleast_1d(truth(tensor)))
    first = lines[0]
    layout, shape = first.layout.insert(first.ndim), (*first.shape, tensor.ndim)
    return mapped(lambda *lines: np.stack(lines, axis=1)[:, : tensor.ndim], *lines, layout=layout, shape=shape)


@implements(np.flatnonzero, partly=True)
def flatnonzero(a: DTensor) -> DTensor:
    """Return where the flattened *a* is not zero, as numpy.flatnonzero. Collective over the mesh."""
    tensor = tensor_np.atleast_1d(as_tensor("numpy.flatnonzero", a))
    return flat_true("numpy.flatnonzero", truth(tensor))


def truth(tensor: DTensor) -> DTensor:
    """Return the tensor as one of bool: itself if it is one."""
    if tensor.dtype == np.bool_:
        return tensor
    return elementwise("astype", lambda block: np.asarray(block).astype(bool), [tensor])


def flat_true(name: str, mask: DTensor) -> DTensor:
    """Return where the flattened *mask* is true. Collective over the mesh."""
    indices = where_true(name, mask)
    if len(indices) == 1:
        return indices[0]
    return mapped(lambda *lines: np.ravel_multi_index(lines, mask.shape) if mask.size else lines[0], *indices)


def where_true(name: str, mask: DTensor) -> tuple[DTensor, ...]:
    """Return where *mask* is true: an index for each of its axes. Collective over the mesh.

    *name* is the operation. ``ShapeError`` on a rank outside of the mesh.
    """
    rows = in_flat_order(mask, name)
    refuse_outside(name, rows.mesh, "how many elements are chosen")
    box = rows.layout.block_box(rows.shape)
    indices = [
        np.ascontiguousarray(global_indices(span, line))
        for span, line in zip(box, np.nonzero(rows._block), strict=True)
    ]
    first = of_rows(name, indices[0], rows.mesh, rows.layout.sharding_dims)
    return tuple(make(line, first.layout, first.shape, first.dtype) for line in indices)


def indices_of_mask(mask: DTensor | Array) -> tuple[DTensor | Array, ...]:
    """Return where the mask of an index is true, as `where_true`. Collective over the mesh of a tensor."""
    return where_true("t[mask]", mask) if isinstance(mask, DTensor) else np.nonzero(mask)
