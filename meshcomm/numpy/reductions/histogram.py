"""Histograms, as NumPy has them: every device counts its block, and the ranks add the counts up."""

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, relaid, replicated
from meshcomm.blocks.make import mapped, on_blocks
from meshcomm.blocks.reduce import reduce_shares
from meshcomm.blocks.rules import Operand, as_number, mesh_of
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, DType
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements
from meshcomm.numpy.reductions.reductions import max, min


@implements(np.histogram)
def histogram(
    a: DTensor,
    bins: ArrayLike = 10,
    range: tuple[float, float] | None = None,
    density: bool | None = None,
    weights: DTensor | ArrayLike | None = None,
) -> tuple[DTensor, DTensor]:
    """Return the counts of elements in bins and the edges of the bins, as numpy.histogram. Collective over the mesh.

    Both are replicated. Without *range* the ranks first reduce the minimum and the maximum.

    Parameters
    ----------
    a: a tensor
    bins: number of bins of equal width, or edges of bins: the same on every rank. The name of an estimator is a
        ``TypeError``: NumPy computes it from all elements
    range: the lowest and the highest edge; by default those of the elements. NumPy's ``ValueError`` unless finite
    density: True to return the density of probability in each bin instead of its count
    weights: a tensor, or a plain array, of the shape of *a*, else ``ShapeError``; the weights in a bin are added up

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 2, 2, 5]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     counts, edges = np.histogram(t, 2)
    ...     return counts.local.tolist(), edges.local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    ([3, 1], [1.0, 3.0, 5.0])
    """
    tensor = _as_numbers(as_tensor("numpy.histogram", a))
    bins, weights_tensor = _agreed_bins_and_weights("numpy.histogram", tensor, bins, weights)
    range = ends(range)
    count_dtype = _count_dtype(tensor, bins, range, weights_tensor)
    uniform = np.ndim(bins) == 0
    options_text = ("" if range is None else f" in {tuple(range)}") + (", as a density" if density else "")
    if uniform and range is None:
        range = _limits(tensor)  # None on a rank outside of the mesh: its edges are those of an array of ones
    edges = np.histogram_bin_edges(np.ones(1, tensor.dtype), bins, range)

    def count_block(block: Array, block_weights: Array | None = None) -> Array:
        with np.errstate(all="ignore"):  # no error may stop one rank alone before the ranks communicate
            return np.histogram(block, bins, range if uniform else None, weights=block_weights)[0].astype(count_dtype)

    block_counts = on_blocks(count_block, tensor, *(() if weights_tensor is None else (weights_tensor,)))
    counts = reduce_shares(f"histogram{options_text}", tensor, block_counts, (len(edges) - 1,), count_dtype)
    return _density(counts, edges) if density else counts, replicated(edges, tensor.mesh)


@implements(np.histogram_bin_edges, partly=True)
def histogram_bin_edges(a: DTensor, bins: ArrayLike = 10, range: tuple[float, float] | None = None) -> DTensor:
    """Return the edges of bins, replicated, as numpy.histogram_bin_edges. Collective over the mesh.

    *bins* and *range* are those of `histogram`; nothing is counted.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 2, 2, 5]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.histogram_bin_edges(t, 2).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[1])
    [1.0, 3.0, 5.0]
    """
    name = "numpy.histogram_bin_edges"
    tensor = _as_numbers(as_tensor(name, a))
    bins, _ = _agreed_bins_and_weights(name, tensor, bins, None)
    range = ends(range)
    _count_dtype(tensor, bins, range, None)
    if np.ndim(bins) == 0 and range is None:
        range = _limits(tensor)
    return replicated(np.histogram_bin_edges(np.ones(1, tensor.dtype), bins, range), tensor.mesh)


def ends(limits: Value) -> Value:
    """Return the range *limits* as numbers; None if it is None, and on ranks outside of the mesh of its tensors."""
    if limits is None or any(isinstance(end, DTensor) and not end._has_block for end in limits):
        return None
    return tuple(map(as_number, limits))


def _as_numbers(tensor: DTensor) -> DTensor:
    """Return a tensor of bool as one of uint8, as NumPy does."""
    if tensor.dtype != np.bool_:
        return tensor
    return mapped(lambda block: block.view(np.uint8), tensor, dtype=np.dtype(np.uint8))


def _agreed_bins_and_weights(
    name: str, tensor: DTensor, bins: ArrayLike, weights: DTensor | ArrayLike | None
) -> tuple[ArrayLike, DTensor | None]:
    """Return the bins, and the weights in the layout of *tensor*.

    Collective if the weights have to move, or if one of both is a plain array.
    """
    if isinstance(bins, str):
        raise TypeError(f"{name}: bins={bins!r} is not supported for DTensors; pass a number, or edges")
    operands = [unwrapped(bins)] if weights is None else [unwrapped(bins), unwrapped(weights)]
    mesh = mesh_of([tensor, *operands])
    agreed_bins, *agreed_weights = agree_on_plain(name, [np.asarray(operands[0]), *operands[1:]], mesh)
    if not agreed_weights:
        return agreed_bins, None
    return agreed_bins, weights_like(name, tensor, agreed_weights[0])


def weights_like(name: str, tensor: DTensor, weights: Operand) -> DTensor:
    """Return *weights*, which the ranks agreed on, in the layout of *tensor*. Collective if a tensor has to move."""
    if np.shape(weights) != tensor.shape:
        raise ShapeError(
            f"{name}: weights have shape {np.shape(weights)}, but a has {tensor.shape}; they must be equal"
        )
    if isinstance(weights, DTensor):
        return relaid(weights, tensor.layout.axes, name.removeprefix("numpy."))
    return distribute(weights, tensor.layout)


def _count_dtype(
    tensor: DTensor, bins: ArrayLike, limits: tuple[float, float] | None, weights: DTensor | None
) -> DType:
    """Return the dtype of the counts; NumPy's errors for dtypes, bins and ranges, on all ranks."""
    sample_weights = None if weights is None else np.ones(1, weights.dtype)
    return np.histogram(np.ones(1, tensor.dtype), bins, limits, weights=sample_weights)[0].dtype


def _limits(tensor: DTensor) -> tuple[float, float] | None:
    """Return the minimum and the maximum of all elements; None on a rank outside of the mesh. Collective."""
    if tensor.size == 0:
        return 0, 1
    return on_blocks(lambda low, high: (low[()], high[()]), min(tensor), max(tensor))


def _density(counts: DTensor, edges: Array) -> DTensor:
    widths, dtype = np.array(np.diff(edges), float), np.result_type(counts.dtype, float)
    return mapped(lambda block: block / widths / block.sum(), counts, dtype=dtype)
