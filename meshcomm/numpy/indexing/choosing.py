"""Elements chosen among several arrays: choose, select; and indices: ix_, unravel_index, ravel_multi_index."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.map import elementwise, elementwise_results, with_out
from meshcomm.blocks.rules import broadcast_shape, shape_of
from meshcomm.blocks.whole import whole_along
from meshcomm.core._arguments import as_shape
from meshcomm.core._types import Array, Indices, Shape, ShapeLike
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.indexing.index_tuples import check_mode, check_square, check_within, on_mesh
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.indexing.nonzero import indices_of_mask

_choose: Callable[..., Array] = np.choose  # NumPy's types know modes and orders by their values only
_unravel: Callable[..., tuple[Array, ...]] = np.unravel_index
_ravel: Callable[..., Array] = np.ravel_multi_index


@implements(np.choose, partly=True)
def choose(
    a: DTensor | ArrayLike, choices: Sequence[DTensor | ArrayLike] | DTensor, out: object = None, mode: str = "raise"
) -> DTensor:
    """Return elements of the *choices* by the choice numbers in *a*, as numpy.choose. Collective if operands move.

    Parameters
    ----------
    a: tensor or array of integers, which broadcasts with the choices
    choices: sequence of tensors and arrays, or one tensor with an axis more
    out: tensor to write the result to
    mode: treatment of integers without a choice: ``raise`` a ``ValueError`` on all ranks, ``wrap`` them around, or
        ``clip`` them

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([0, 1, 1]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.choose(t, [t - 10, t + 10]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[-10, 11], [11]]
    """
    name = "numpy.choose"
    check_mode(name, mode)
    unwrapped_choices = unwrapped(choices)
    if isinstance(unwrapped_choices, DTensor):
        stacked_choices = whole_along(unwrapped_choices, (0,), name)
        choice_list: list[object] = [getitem(stacked_choices, number) for number in range(len(stacked_choices))]
    else:
        choice_list = list(unwrapped_choices)
    if not choice_list:
        raise ShapeError(f"{name}: there must be a choice")
    choice_numbers, *choice_tensors = on_mesh(name, [a, *choice_list])
    np.empty(0, choice_numbers.dtype).astype(np.intp, casting="safe")  # NumPy's error
    if mode == "raise":
        error = ValueError(f"{name}: an element is no number of one of the {len(choice_tensors)} choices")
        check_within(name, [choice_numbers], [(0, len(choice_tensors))], lambda number, n: error)
        mode = "clip"  # a sample is 1, which may be no choice
    result = elementwise(
        name,
        lambda block, *arrays: _choose(np.asarray(block).astype(np.intp), arrays, mode=mode),
        [choice_numbers, *choice_tensors],
    )
    return with_out(name, out, result)


@implements(np.select, partly=True)
def select(
    condlist: Sequence[DTensor | ArrayLike], choicelist: Sequence[DTensor | ArrayLike], default: object = 0
) -> DTensor:
    """Return elements of the first choice whose condition is true, as numpy.select. Collective if operands move.

    ``ShapeError`` for different numbers of choices and conditions, or none; ``TypeError`` for conditions without
    bools.
    """
    name, count = "numpy.select", len(condlist)
    if count != len(choicelist) or not count:
        raise ShapeError(f"{name}: {count} conditions and {len(choicelist)} choices; there must be as many, and some")

    def select_block(*blocks: Array) -> Array:
        conditions = [np.asarray(block) for block in blocks[:count]]
        return np.select(conditions, blocks[count:-1], blocks[-1])

    return elementwise(name, select_block, [unwrapped(x) for x in (*condlist, *choicelist, default)])


@implements(np.unravel_index, partly=True)
def unravel_index(indices: DTensor, shape: ShapeLike, order: str = "C") -> tuple[DTensor, ...]:
    """Return an index for each axis of *shape* from flat indices, as numpy.unravel_index. Collective over the mesh.

    ``ValueError`` on all ranks for an index out of bounds.
    """
    name = "numpy.unravel_index"
    tensor = as_tensor(name, indices)
    lengths = as_shape(shape)
    size = int(np.prod(lengths, dtype=object))
    _unravel(np.empty(0, tensor.dtype), lengths, order)
    check_within(
        name,
        [tensor],
        [(0, size)],
        lambda index, n: ValueError(f"{name}: index {index} is out of bounds for array with size {n}"),
    )

    def unravel_block(block: Array) -> tuple[Array, ...]:
        if not size:
            return tuple(np.zeros(np.shape(block), np.intp) for _ in lengths)
        return _unravel(np.asarray(block) % size, lengths, order)  # a sample is 1, which may be out of bounds

    return elementwise_results(name, unravel_block, [tensor])


@implements(np.ravel_multi_index, partly=True)
def ravel_multi_index(
    multi_index: Sequence[DTensor | ArrayLike], dims: Shape, mode: str | tuple[str, ...] = "raise", order: str = "C"
) -> DTensor:
    """Return flat indices from an index for each axis, as numpy.ravel_multi_index. Collective over the mesh.

    ``ValueError`` on all ranks for an index out of bounds along an axis with mode ``raise``; *mode* may be a tuple
    with one mode per axis.
    """
    name = "numpy.ravel_multi_index"
    lengths = (dims,) if isinstance(dims, int) else tuple(dims)
    indices = on_mesh(name, multi_index)
    modes = (mode,) * len(lengths) if isinstance(mode, str) else tuple(mode)
    for axis_mode in modes:
        check_mode(name, axis_mode)
    if not len(indices) == len(lengths) == len(modes):
        raise ShapeError(f"{name}: {len(indices)} indices and {len(modes)} modes for {len(lengths)} axes")
    _ravel([np.empty(0, array.dtype) for array in indices], lengths, "clip", order)
    checked_axes = [axis for axis, axis_mode in enumerate(modes) if axis_mode == "raise"]
    check_within(
        name,
        [indices[axis] for axis in checked_axes],
        [(0, lengths[axis]) for axis in checked_axes],
        lambda axis, n: ValueError(f"{name}: invalid entry {axis} in coordinates array, for an axis of {n}"),
    )
    safe_modes = tuple("clip" if axis_mode == "raise" else axis_mode for axis_mode in modes)
    if 0 in lengths and 0 not in broadcast_shape(name, [shape_of(array) for array in indices]):
        raise ValueError(f"{name}: no entry fits an axis of 0")  # on all ranks, also those without an element
    return elementwise(name, lambda *blocks: np.asarray(_ravel(blocks, lengths, safe_modes, order)), indices)


@implements(np.ix_)
def ix_(*args: object) -> tuple[object, ...]:
    """Return indices that together index the outer product of several sequences, as numpy.ix_.

    A mask stands for the indices where it is true. Collective over the mesh of a tensor of bool.
    """
    results = list[object]()
    for number, sequence in enumerate(args):
        value = unwrapped(sequence)
        index: DTensor | Array = value if isinstance(value, DTensor) else np.asarray(value)
        if index.ndim != 1:
            raise ShapeError("numpy.ix_: Cross index must be 1 dimensional")
        if not isinstance(index, DTensor) and not index.size:
            index = index.astype(np.intp)
        if index.dtype == bool:
            (index,) = indices_of_mask(index)
        other_axes = [axis for axis in range(len(args)) if axis != number]
        results.append(np.expand_dims(index, tuple(other_axes)))
    return tuple(results)


@implements(np.diag_indices_from, partly=True)
def diag_indices_from(arr: DTensor) -> tuple[Indices, ...]:
    """Return the indices of the main diagonal of *arr* as plain arrays, as numpy.diag_indices_from."""
    tensor = as_tensor("numpy.diag_indices_from", arr)
    check_square("numpy.diag_indices_from", tensor.shape, 1)
    return np.diag_indices(tensor.shape[0], tensor.ndim)
