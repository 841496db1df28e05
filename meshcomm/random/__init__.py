"""Random numbers: the methods of numpy.random.Generator for tensors, with the same numbers in every layout.

`default_rng` makes a `Generator` from a seed. The numbers do not depend on how many ranks there are.
"""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.random.generator import Generator as Generator
from meshcomm.random.generator import default_rng as default_rng

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
