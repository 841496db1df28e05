"""The block of one device, cut out of a global array."""

from meshcomm.core._types import Array
from meshcomm.core.layouts.boxes import Box
from meshcomm.core.layouts.partition import Runs, indices_of
from meshcomm.core.memory.copies import opaque


def cut_out(array: Array, box: Box) -> Array:
    """Return the elements of *array* in *box*: a view, unless an axis is cyclic.

    >>> import numpy as np
    >>> cut_out(np.arange(8), ((2, 4),)), cut_out(np.arange(8), (Runs(2, 4, 2, 4),))
    (array([2, 3]), array([2, 3, 6, 7]))
    """
    block: Array = array[(..., *(slice(None) if isinstance(span, Runs) else slice(*span) for span in box))]
    for axis, span in enumerate(box):
        if isinstance(span, Runs):
            block = opaque(block).take(indices_of(span), axis=axis).view(array.dtype)
    return block  # with ... it is an array even if there are no axes
