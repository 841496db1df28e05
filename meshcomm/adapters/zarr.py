"""In a script of NumPy, zarr gets arrays in place of tensors, as it needs all bytes."""

import zarr
from zarr.core import indexing

from meshcomm.adapters.whole_arguments import pass_arrays
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    pass_arrays(zarr, zarr.__all__)
    for _class in (zarr.Array, zarr.Group, indexing.OIndex, indexing.VIndex, indexing.BlockIndex):
        pass_arrays(
            _class,
            [name for name in vars(_class) if name in ("__getitem__", "__setitem__") or not name.startswith("_")],
        )
