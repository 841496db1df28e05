"""All windows of a length along axes: a view, as NumPy's, of the block and of the elements after it.

A window is on the device in whose block it begins. The last windows of a block reach into the blocks after it. So
these few elements are fetched and appended to a copy of the block, and the windows are a view of that. If no axis is
cut, they are a view of the block itself.
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

    Collective over the mesh if an axis is sharded: then it is a view of a copy of the block and of the elements after
    it; only these elements move.

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
    axis_list = range(tensor.ndim) if axis is None else (axis,) if isinstance(axis, int | np.integer) else axis
    axes = tuple(normalised_axes(a, tensor.ndim)[0] for a in axis_list)  # an axis may be listed twice
    reach = _window_reach(tensor, axes, lengths, writeable)
    extended, starts_layout = _overlapping(tensor, axes, reach)
    layout = Layout([*starts_layout.axes, *((),) * len(axes)], tensor.mesh)
    abstract = np.lib.stride_tricks.sliding_window_view(abstract_array(tensor), lengths, axes)
    starts_shape = abstract.shape[: tensor.ndim]
    if extended is not tensor:
        extended = refreshed_by(lambda base: _overlapping(base, axes, reach)[0], tensor, extended)
    return sharing(
        lambda block: _windows(block, starts_layout.block_shape(starts_shape), axes, lengths),
        extended,
        layout,
        abstract,
        0,
    )


def _window_reach(tensor: DTensor, axes: Sequence[int], lengths: Sequence[int], writeable: bool) -> list[int]:
    """Return by how many elements a window reaches beyond its first one, for each axis; NumPy's errors."""
    if writeable:
        raise ValueError(f"{_NAME} of a tensor is a view to read only: writeable must be False")
    if len(lengths) != len(axes):
        raise ValueError(f"{_NAME}: {len(lengths)} lengths of windows for {len(axes)} axes")
    if any(length < 1 for length in lengths):
        raise ValueError(f"{_NAME}: the length of a window is 1 or more, not {lengths}")
    reach = [0] * tensor.ndim
    for a, length in zip(axes, lengths, strict=True):
        reach[a] += length - 1
        if reach[a] >= tensor.shape[a]:
            raise ValueError(f"{_NAME}: windows of {length} elements along axis {a}, which has {tensor.shape[a]}")
    return reach


def _overlapping(tensor: DTensor, axes: Sequence[int], reach: Sequence[int]) -> tuple[DTensor, Layout]:
    """Return *tensor* with longer blocks, which overlap, and the layout of the first elements of the windows.

    Each block has the elements that its windows need. Collective over the mesh if an axis with windows is cut.
    """
    tensor = relaid(tensor, tensor.layout.as_consecutive(axes), _NAME)
    starts = tensor[tuple(slice(0, n - extra) for n, extra in zip(tensor.shape, reach, strict=True))]
    for a, extra in enumerate(reach):
        if extra and tensor.layout.num_shards(a) > 1:
            tensor = _with_following(tensor, a, extra)
    return tensor, starts.layout


def _with_following(tensor: DTensor, axis: int, extra: int) -> DTensor:
    """Return a tensor of longer blocks: each with up to *extra* elements that follow it along *axis*. Collective."""
    n, layout = tensor.shape[axis], tensor.layout
    block_ends = pairwise(layout.cut(axis, n).consecutive.all_starts())
    extended_intervals = [(start, min(stop + extra, n) if start < stop else stop) for start, stop in block_ends]
    sizes = [stop - start for start, stop in extended_intervals]
    layout = layout.replace(axis, Cuts(tuple(layout.axes[axis]), sizes=sizes))
    block_intervals = tuple(((0, start, stop),) for start, stop in extended_intervals)
    shape = (*tensor.shape[:axis], sum(sizes), *tensor.shape[axis + 1 :])
    return assembling(_NAME, [tensor], axis, block_intervals, layout, shape=shape).run()


def _windows(block: Array, window_counts: Shape, axes: Sequence[int], lengths: Sequence[int]) -> Array:
    """Return the windows of a block, a view: *window_counts* is the number of them along each axis."""
    if 0 in window_counts:  # the block may be shorter than a window
        return np.empty((*window_counts, *lengths), block.dtype)
    strides = (*block.strides, *(block.strides[a] for a in axes))
    return np.lib.stride_tricks.as_strided(block, (*window_counts, *lengths), strides, writeable=False)
