"""xarray's datasets: files are read and written in parallel, and functions that do not support tensors run on blocks.

It needs xarray, which nothing else of meshcomm imports.
"""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.xarray.blocks import map_blocks as map_blocks
from meshcomm.xarray.opening import Backend as Backend
from meshcomm.xarray.opening import open as open
from meshcomm.xarray.saving import save as save

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
