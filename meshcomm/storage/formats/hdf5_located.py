"""Where bytes of a dataset are that is in the file already: those of a box of it."""

from itertools import product
from math import prod

from meshcomm.storage.formats.hdf5 import has_type_of
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, h5py_library
from meshcomm.storage.selection import Selection
from meshcomm.storage.stored import Segment, Stored, in_one_file


def located(dataset: Hdf5Dataset, name: str, chosen: Selection) -> Stored | None:
    """Return where what is *chosen* of a dataset is; None if it is not in runs that anybody may write.

    So are contiguous datasets, and chunks of whole rows, or of parts of one, without filters, that are there.
    """
    how, shape = dataset.id.get_create_plist(), dataset.shape
    if shape != chosen.shape or not has_type_of(dataset, dataset.dtype) or how.get_external_count():
        return None
    if how.get_layout() == h5py_library().h5d.CONTIGUOUS:
        offset = dataset.id.get_offset()
        return None if offset is None else in_one_file(name, shape, dataset.dtype, offset)
    chunk, ndim = dataset.chunks, len(shape)
    if chunk is None or how.get_nfilters():
        return None
    inner = 1 if chunk[0] == 1 and ndim > 1 else 0  # the axis along which runs follow one another
    if chunk[inner + 1 :] != shape[inner + 1 :]:
        return None
    touched = [
        range(chosen.start[axis] // chunk[axis], -(-(chosen.start[axis] + chosen.box[axis]) // chunk[axis]))
        for axis in range(inner + 1)
    ]
    size = prod(shape[inner + 1 :]) * dataset.dtype.itemsize
    segments = []
    for numbers in product(*touched):
        at = tuple(k * n for k, n in zip(numbers, chunk, strict=False)) + (0,) * (ndim - inner - 1)
        offset = dataset.id.get_chunk_info_by_coord(at).byte_offset
        if offset is None:
            return None
        row = at[0] * shape[1] if inner else 0
        stop = min(at[inner] + chunk[inner], shape[inner])
        segments.append(Segment("", (row + at[inner]) * size, (row + stop) * size, offset))
    return Stored(name, shape, dataset.dtype, tuple(segments))
