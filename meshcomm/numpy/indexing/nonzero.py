"""Indices of nonzero elements: nonzero, argwhere, flatnonzero.

The indices are in C order, as in NumPy: a tensor whose blocks are not in this order is converted to bool and relaid
first. The results have one axis, with `Cuts`: each rank has the indices of the elements of its block.
"""

import numpy as np

from meshcomm.blocks.make import make, mapped, refuse_outside
from meshcomm.blocks.map import elementwise
from meshcomm.blocks.small import tensor_of_rows
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.blocks.whole import in_flat_order
from meshcomm.core._types import Array
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.partition import global_indices
from meshcomm.numpy.elementwise.signatures import implements


@implements(np.nonzero, partly=True)
def nonzero(a: DTensor) -> tuple[DTensor, ...]:
    """Return the indices of nonzero elements, one tensor per axis, as numpy.nonzero. Collective over the mesh.

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
    return true_indices("numpy.nonzero", truth(tensor))


@implements(np.argwhere, partly=True)
def argwhere(a: DTensor) -> DTensor:
    """Return the indices of nonzero elements, one row each, as numpy.argwhere. Collective over the mesh."""
    tensor = as_tensor("numpy.argwhere", a)
    indices = true_indices("numpy.argwhere", tensor_np.atleast_1d(truth(tensor)))
    first_index = indices[0]
    layout, shape = first_index.layout.insert(first_index.ndim), (*first_index.shape, tensor.ndim)
    return mapped(lambda *indices: np.stack(indices, axis=1)[:, : tensor.ndim], *indices, layout=layout, shape=shape)


@implements(np.flatnonzero, partly=True)
def flatnonzero(a: DTensor) -> DTensor:
    """Return the flat indices of nonzero elements, as numpy.flatnonzero. Collective over the mesh."""
    tensor = tensor_np.atleast_1d(as_tensor("numpy.flatnonzero", a))
    return flat_true_indices("numpy.flatnonzero", truth(tensor))


def truth(tensor: DTensor) -> DTensor:
    """Return the tensor converted to bool; a boolean tensor itself."""
    if tensor.dtype == np.bool_:
        return tensor
    return elementwise("astype", lambda block: np.asarray(block).astype(bool), [tensor])


def flat_true_indices(name: str, mask: DTensor) -> DTensor:
    """Return the flat indices where *mask* is true. Collective over the mesh."""
    indices = true_indices(name, mask)
    if len(indices) == 1:
        return indices[0]
    return mapped(
        lambda *axis_arrays: np.ravel_multi_index(axis_arrays, mask.shape) if mask.size else axis_arrays[0], *indices
    )


def true_indices(name: str, mask: DTensor) -> tuple[DTensor, ...]:
    """Return the indices where *mask* is true, one tensor per axis. Collective over the mesh.

    *name* is the operation. ``ShapeError`` on a rank outside of the mesh.
    """
    rows = in_flat_order(mask, name)
    refuse_outside(name, rows.mesh, "how many elements are chosen")
    box = rows.layout.block_box(rows.shape)
    indices = [
        np.ascontiguousarray(global_indices(interval, array))
        for interval, array in zip(box, np.nonzero(rows._block), strict=True)
    ]
    first_index = tensor_of_rows(name, indices[0], rows.mesh, rows.layout.sharding_dims)
    return tuple(make(array, first_index.layout, first_index.shape, first_index.dtype) for array in indices)


def indices_of_mask(mask: DTensor | Array) -> tuple[DTensor | Array, ...]:
    """Return the indices where the mask of an index is true, one per axis. Collective over the mesh of a tensor."""
    return true_indices("t[mask]", mask) if isinstance(mask, DTensor) else np.nonzero(mask)
