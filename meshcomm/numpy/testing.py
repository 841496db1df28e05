"""numpy.testing, whose functions take tensors."""

from numpy.testing import *  # noqa: F403
from numpy.testing import __all__ as __all__
