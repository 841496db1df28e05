"""Locations of the bytes of a box of a dataset that is in the file already."""

from itertools import product
from math import prod

from meshcomm.storage.formats.hdf5 import has_type_of
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, h5py_library
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Segment, Stored, in_one_file


def located(dataset: Hdf5Dataset, name: str, selection: Selection) -> Stored | None:
    """Return the locations of a *selection* of a dataset; None if ranks cannot write it without the library.

    They can for contiguous datasets, and for existing chunks without filters that consist of whole rows, or of parts
    of one row.
    """
    properties, shape = dataset.id.get_create_plist(), dataset.shape
    if shape != selection.shape or not has_type_of(dataset, dataset.dtype) or properties.get_external_count():
        return None
    if properties.get_layout() == h5py_library().h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        return None if offset is None else in_one_file(name, shape, dataset.dtype, offset)
    chunk, ndim = dataset.chunks, len(shape)
    if chunk is None or properties.get_nfilters():
        return None
    run_axis = 1 if chunk[0] == 1 and ndim > 1 else 0  # the axis along which runs follow one another
    if chunk[run_axis + 1 :] != shape[run_axis + 1 :]:
        return None
    chunk_ranges = [
        range(selection.start[axis] // chunk[axis], -(-(selection.start[axis] + selection.box[axis]) // chunk[axis]))
        for axis in range(run_axis + 1)
    ]
    row_bytes = prod(shape[run_axis + 1 :]) * dataset.dtype.itemsize
    segments = []
    for chunk_index in product(*chunk_ranges):
        start = tuple(k * n for k, n in zip(chunk_index, chunk, strict=False)) + (0,) * (ndim - run_axis - 1)
        offset = dataset.id.get_chunk_info_by_coord(start).byte_offset
        if offset is None:
            return None
        first_row = start[0] * shape[1] if run_axis else 0
        stop = min(start[run_axis] + chunk[run_axis], shape[run_axis])
        segments.append(Segment("", (first_row + start[run_axis]) * row_bytes, (first_row + stop) * row_bytes, offset))
    return Stored(name, shape, dataset.dtype, tuple(segments))
