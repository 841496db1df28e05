"""numpy.linalg, whose functions take tensors."""

from numpy.linalg import *  # noqa: F403
from numpy.linalg import __all__ as __all__
