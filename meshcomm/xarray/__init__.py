"""xarray's datasets: files are read and written in parallel, and functions that know no tensors work on blocks.

It needs xarray, which nothing else of meshcomm imports.
"""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public
from meshcomm.xarray.blocks import map_blocks
from meshcomm.xarray.opening import Backend, open
from meshcomm.xarray.saving import save

__all__ = ["Backend", "map_blocks", "open", "save"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
