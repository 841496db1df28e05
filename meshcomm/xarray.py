"""xarray's datasets in files, read and written in parallel: the public names of :mod:`meshcomm.storage.datasets` and
:mod:`meshcomm.storage.dataset_saving`.

It needs xarray, which nothing else of meshcomm imports.
"""

from typing import TYPE_CHECKING

from meshcomm._mistakes import only_public
from meshcomm.storage.dataset_saving import save
from meshcomm.storage.datasets import Backend, open

__all__ = ["Backend", "open", "save"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
