"""scipy.ndimage's filters for tensors: the public names of :mod:`meshcomm.halos.filters` and `separable` beside it.

They take SciPy's arguments and give SciPy's values. Each rank runs SciPy on its block with ghosts. SciPy is needed:
``pip install scipy``.
"""

from typing import TYPE_CHECKING

from meshcomm._mistakes import only_public
from meshcomm.halos.filters import (
    convolve,
    correlate,
    generic_filter,
    grey_dilation,
    grey_erosion,
    maximum_filter,
    median_filter,
    minimum_filter,
    percentile_filter,
    rank_filter,
)
from meshcomm.halos.interpolation import (
    affine_transform,
    geometric_transform,
    map_coordinates,
    rotate,
    shift,
    spline_filter,
    spline_filter1d,
    zoom,
)
from meshcomm.halos.separable import (
    convolve1d,
    correlate1d,
    gaussian_filter,
    gaussian_filter1d,
    gaussian_gradient_magnitude,
    gaussian_laplace,
    laplace,
    maximum_filter1d,
    minimum_filter1d,
    prewitt,
    sobel,
    uniform_filter,
    uniform_filter1d,
)

__all__ = [
    "affine_transform",
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_gradient_magnitude",
    "gaussian_laplace",
    "generic_filter",
    "geometric_transform",
    "grey_dilation",
    "grey_erosion",
    "laplace",
    "map_coordinates",
    "maximum_filter",
    "maximum_filter1d",
    "median_filter",
    "minimum_filter",
    "minimum_filter1d",
    "percentile_filter",
    "prewitt",
    "rank_filter",
    "rotate",
    "shift",
    "sobel",
    "spline_filter",
    "spline_filter1d",
    "uniform_filter",
    "uniform_filter1d",
    "zoom",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
