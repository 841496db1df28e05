"""Tensors of other lengths: cropped, or padded with zeros at the end."""

from meshcomm.core.arrays.create import zeros
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.numpy.indexing.indexing import getitem
from meshcomm.numpy.joining.pieces import put


def pad_or_crop(tensor: DTensor, axis: int, n: int) -> DTensor:
    """Return *tensor* cropped to *n* elements along *axis*, or padded with zeros. Collective if elements move."""
    length = tensor.shape[axis]
    if length >= n:
        return tensor if length == n else getitem(tensor, leading(tensor.ndim, axis, n))
    longer = longer_zeros(tensor, axis, n)
    put("fft", longer, leading(tensor.ndim, axis, length), tensor)
    return longer


def longer_zeros(tensor: DTensor, axis: int, n: int) -> DTensor:
    """Return zeros like *tensor*, with *n* elements along *axis*, which gets the usual cut."""
    shape = tuple(n if a == axis else length for a, length in enumerate(tensor.shape))
    return zeros(shape, tensor.dtype, tensor.layout.default_cut(axis))


def leading(ndim: int, axis: int, n: int) -> tuple[slice, ...]:
    """Return the index of the first *n* elements along *axis*."""
    return span(ndim, axis, 0, n)


def span(ndim: int, axis: int, start: int, stop: int) -> tuple[slice, ...]:
    """Return the index of the elements from *start* to *stop* along *axis*."""
    return tuple(slice(start, stop) if a == axis else slice(None) for a in range(ndim))
