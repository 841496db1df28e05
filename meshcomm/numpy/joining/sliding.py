"""All windows of a length along axes: a view, as NumPy's, of the block and of the elements behind it.

The windows that begin in the block of a device are on that device. The last ones reach into the blocks behind it. So
these few elements are fetched, and the windows are a view of the block with them at its end. Where no axis is cut,
they are a view of the block itself.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from meshcomm.blocks.align import relaid
from meshcomm.blocks.assemble import assembling
from meshcomm.blocks.moved import refreshed_by
from meshcomm.blocks.views import abstract_array, sharing
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._types import Array, Axis, Shape
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.specs import Cuts
from meshcomm.numpy.elementwise.signatures import implements

_NAME = "numpy.lib.stride_tricks.sliding_window_view"


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: DTensor, window_shape: int | Sequence[int], axis: Axis = None, *, subok: bool = False, writeable: bool = False
) -> DTensor:
    """Return all windows along some axes, as numpy.lib.stride_tricks.sliding_window_view: a view to read only.

    Collective over the mesh if an axis is sharded: then it is a view of a copy of the block, with the elements behind
    it, which alone move.

    Parameters
    ----------
    x: a tensor
    window_shape: length of a window along each axis
    axis: axis, or several, one for each length; by default all
    subok: has no effect
    writeable: must be False

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(4), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.lib.stride_tricks.sliding_window_view(t, 2).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [[0, 1], [1, 2], [2, 3]]
    """
    tensor = as_tensor(_NAME, x)
    lengths = (window_shape,) if isinstance(window_shape, int | np.integer) else tuple(window_shape)
    listed = range(tensor.ndim) if axis is None else (axis,) if isinstance(axis, int | np.integer) else axis
    axes = tuple(normalised_axes(a, tensor.ndim)[0] for a in listed)  # one may be there twice
    beyond = _window_reach(tensor, axes, lengths, writeable)
    wide, firsts = _overlapping(tensor, axes, beyond)
    layout = Layout([*firsts.axes, *((),) * len(axes)], tensor.mesh)
    of = np.lib.stride_tricks.sliding_window_view(abstract_array(tensor), lengths, axes)
    firsts_of = of.shape[: tensor.ndim]
    if wide is not tensor:
        wide = refreshed_by(lambda base: _overlapping(base, axes, beyond)[0], tensor, wide)
    return sharing(lambda block: _windows(block, firsts.block_shape(firsts_of), axes, lengths), wide, layout, of, 0)


def _window_reach(tensor: DTensor, axes: Sequence[int], lengths: Sequence[int], writeable: bool) -> list[int]:
    """Return by how many elements a window reaches beyond its first one, for each axis; NumPy's errors."""
    if writeable:
        raise ValueError(f"{_NAME} of a tensor is a view to read only: writeable must be False")
    if len(lengths) != len(axes):
        raise ValueError(f"{_NAME}: {len(lengths)} lengths of windows for {len(axes)} axes")
    if any(length < 1 for length in lengths):
        raise ValueError(f"{_NAME}: the length of a window is 1 or more, not {lengths}")
    beyond = [0] * tensor.ndim
    for a, length in zip(axes, lengths, strict=True):
        beyond[a] += length - 1
        if beyond[a] >= tensor.shape[a]:
            raise ValueError(f"{_NAME}: windows of {length} elements along axis {a}, which has {tensor.shape[a]}")
    return beyond


def _overlapping(tensor: DTensor, axes: Sequence[int], beyond: Sequence[int]) -> tuple[DTensor, Layout]:
    """Return *tensor* with longer blocks, which overlap, and how the first elements of the windows are cut.

    Each block has the elements that its windows need. Collective over the mesh if an axis with windows is cut.
    """
    tensor = relaid(tensor, tensor.layout.undealt(axes), _NAME)
    firsts = tensor[tuple(slice(0, n - more) for n, more in zip(tensor.shape, beyond, strict=True))]
    for a, more in enumerate(beyond):
        if more and tensor.layout.num_shards(a) > 1:
            tensor = _with_next(tensor, a, more)
    return tensor, firsts.layout


def _with_next(tensor: DTensor, axis: int, more: int) -> DTensor:
    """Return a tensor of longer blocks, which also have so many elements behind them, if there are. Collective."""
    n, layout = tensor.shape[axis], tensor.layout
    ends = pairwise(layout.cut(axis, n).consecutive.all_starts())
    longer = [(start, min(stop + more, n) if start < stop else stop) for start, stop in ends]
    sizes = [stop - start for start, stop in longer]
    layout = layout.replace(axis, Cuts(tuple(layout.axes[axis]), sizes=sizes))
    wanted = tuple(((0, start, stop),) for start, stop in longer)
    shape = (*tensor.shape[:axis], sum(sizes), *tensor.shape[axis + 1 :])
    return assembling(_NAME, [tensor], axis, wanted, layout, shape=shape).run()


def _windows(block: Array, firsts: Shape, axes: Sequence[int], lengths: Sequence[int]) -> Array:
    """Return the windows that begin at the *firsts* elements of a block along each axis, a view."""
    if 0 in firsts:  # the block may be shorter than a window
        return np.empty((*firsts, *lengths), block.dtype)
    steps = (*block.strides, *(block.strides[a] for a in axes))
    return np.lib.stride_tricks.as_strided(block, (*firsts, *lengths), steps, writeable=False)
