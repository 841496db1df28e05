"""The order of the ranks of a target mesh that would save the most bytes: advice, which no relayout follows by itself.

Source: M. Kabić, S. Pintarelli, A. Kozhevnikov, J. VandeVondele, "COSTA: Communication-Optimal Shuffle and Transpose
Algorithm with Process Relabeling", ISC 2021.
"""

import numpy as np

from meshcomm.core._types import Indices, Shape
from meshcomm.core.layouts.coordinates import numbers_of
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.overlaps import shared_counts
from meshcomm.core.layouts.refinement import devices_of, ranks_of
from meshcomm.errors import MeshcommError


def kept_elements(shape: Shape, source: Layout, target: Layout) -> Indices:
    """Return the number of elements of each target block that each rank of the target mesh holds: a row per rank.

    Row r is the rank that is now device r of the target mesh; column d is the block of device d.
    """
    devices = np.arange(target.mesh.size, dtype=np.intp)
    source_devices = devices_of(source.mesh, ranks_of(target.mesh, devices))
    source_numbers, target_numbers = numbers_of(source, np.maximum(source_devices, 0)), numbers_of(target, devices)
    counts = np.ones((target.mesh.size, target.mesh.size), dtype=np.intp)
    for axis, n in enumerate(shape):
        (row_numbers, rows), (column_numbers, columns) = (
            np.unique(numbers[:, axis], return_inverse=True) for numbers in (source_numbers, target_numbers)
        )
        pairs = row_numbers.repeat(len(column_numbers)), np.tile(column_numbers, len(row_numbers))
        counts_along = shared_counts(source.cut(axis, n), pairs[0], target.cut(axis, n), pairs[1]).reshape(
            len(row_numbers), len(column_numbers)
        )
        counts *= counts_along[rows.reshape(-1)][:, columns.reshape(-1)]
    counts[source_devices < 0] = 0
    return counts


def best_order(counts: Indices) -> tuple[int, ...]:
    """Return the row for each column, so that the sum of ``counts[row, column]`` is the largest.

    It is the present order if no other one has a larger sum. ``MeshcommError`` without SciPy.

    >>> best_order(np.array([[0, 5], [3, 1]]))
    (1, 0)
    """
    if np.trace(counts) == counts.max(axis=0, initial=0).sum():
        return tuple(range(len(counts)))
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise MeshcommError("relabel=True solves an assignment problem with SciPy: pip install scipy") from None
    rows, columns = linear_sum_assignment(counts, maximize=True)
    if counts[rows, columns].sum() == np.trace(counts):
        return tuple(range(len(counts)))
    return tuple(rows[np.argsort(columns)].tolist())
