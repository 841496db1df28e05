"""scipy.ndimage's filters for tensors: the public names of :mod:`meshcomm.halos.filters` and `separable` beside it.

They take SciPy's arguments and give SciPy's values. Each rank runs SciPy on its block with ghosts. SciPy is needed:
``pip install scipy``.
"""

from typing import TYPE_CHECKING

from meshcomm._mistakes import only_public
from meshcomm.halos.binary import (
    binary_closing,
    binary_dilation,
    binary_erosion,
    binary_fill_holes,
    binary_hit_or_miss,
    binary_opening,
    binary_propagation,
    generate_binary_structure,
    iterate_structure,
)
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
from meshcomm.halos.grey import (
    black_tophat,
    grey_closing,
    grey_opening,
    morphological_gradient,
    morphological_laplace,
    white_tophat,
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
from meshcomm.halos.spectra import fourier_ellipsoid, fourier_gaussian, fourier_shift, fourier_uniform

__all__ = [
    "affine_transform",
    "binary_closing",
    "binary_dilation",
    "binary_erosion",
    "binary_fill_holes",
    "binary_hit_or_miss",
    "binary_opening",
    "binary_propagation",
    "black_tophat",
    "convolve",
    "convolve1d",
    "correlate",
    "correlate1d",
    "fourier_ellipsoid",
    "fourier_gaussian",
    "fourier_shift",
    "fourier_uniform",
    "gaussian_filter",
    "gaussian_filter1d",
    "gaussian_gradient_magnitude",
    "gaussian_laplace",
    "generate_binary_structure",
    "generic_filter",
    "geometric_transform",
    "grey_closing",
    "grey_dilation",
    "grey_erosion",
    "grey_opening",
    "iterate_structure",
    "laplace",
    "map_coordinates",
    "maximum_filter",
    "maximum_filter1d",
    "median_filter",
    "minimum_filter",
    "minimum_filter1d",
    "morphological_gradient",
    "morphological_laplace",
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
    "white_tophat",
    "zoom",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = only_public(__name__, __all__)
