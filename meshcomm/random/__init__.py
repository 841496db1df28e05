"""Random numbers: the methods of numpy.random.Generator for tensors, with the same numbers in every layout.

`default_rng` makes a `Generator` from a seed. The numbers do not depend on how many ranks there are.
"""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import only_public
from meshcomm.random.generator import Generator, default_rng

__all__ = ["Generator", "default_rng"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
