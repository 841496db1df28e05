"""scipy.ndimage's filters for tensors: the public names of :mod:`meshcomm.ndimage.filters` and `separable` beside it.

They take SciPy's arguments and give SciPy's values. Each rank runs SciPy on its block with ghosts. SciPy is needed:
``pip install scipy``.
"""

from typing import TYPE_CHECKING

from meshcomm.core._mistakes import facade
from meshcomm.ndimage.binary import binary_closing as binary_closing
from meshcomm.ndimage.binary import binary_dilation as binary_dilation
from meshcomm.ndimage.binary import binary_erosion as binary_erosion
from meshcomm.ndimage.binary import binary_fill_holes as binary_fill_holes
from meshcomm.ndimage.binary import binary_hit_or_miss as binary_hit_or_miss
from meshcomm.ndimage.binary import binary_opening as binary_opening
from meshcomm.ndimage.binary import binary_propagation as binary_propagation
from meshcomm.ndimage.binary import generate_binary_structure as generate_binary_structure
from meshcomm.ndimage.binary import iterate_structure as iterate_structure
from meshcomm.ndimage.distances import distance_transform_bf as distance_transform_bf
from meshcomm.ndimage.distances import distance_transform_cdt as distance_transform_cdt
from meshcomm.ndimage.distances import distance_transform_edt as distance_transform_edt
from meshcomm.ndimage.filters import convolve as convolve
from meshcomm.ndimage.filters import correlate as correlate
from meshcomm.ndimage.filters import generic_filter as generic_filter
from meshcomm.ndimage.filters import grey_dilation as grey_dilation
from meshcomm.ndimage.filters import grey_erosion as grey_erosion
from meshcomm.ndimage.filters import maximum_filter as maximum_filter
from meshcomm.ndimage.filters import median_filter as median_filter
from meshcomm.ndimage.filters import minimum_filter as minimum_filter
from meshcomm.ndimage.filters import percentile_filter as percentile_filter
from meshcomm.ndimage.filters import rank_filter as rank_filter
from meshcomm.ndimage.generic import generic_filter1d as generic_filter1d
from meshcomm.ndimage.generic import generic_gradient_magnitude as generic_gradient_magnitude
from meshcomm.ndimage.generic import generic_laplace as generic_laplace
from meshcomm.ndimage.generic import vectorized_filter as vectorized_filter
from meshcomm.ndimage.grey import black_tophat as black_tophat
from meshcomm.ndimage.grey import grey_closing as grey_closing
from meshcomm.ndimage.grey import grey_opening as grey_opening
from meshcomm.ndimage.grey import morphological_gradient as morphological_gradient
from meshcomm.ndimage.grey import morphological_laplace as morphological_laplace
from meshcomm.ndimage.grey import white_tophat as white_tophat
from meshcomm.ndimage.interpolation import affine_transform as affine_transform
from meshcomm.ndimage.interpolation import geometric_transform as geometric_transform
from meshcomm.ndimage.interpolation import map_coordinates as map_coordinates
from meshcomm.ndimage.interpolation import rotate as rotate
from meshcomm.ndimage.interpolation import shift as shift
from meshcomm.ndimage.interpolation import spline_filter as spline_filter
from meshcomm.ndimage.interpolation import spline_filter1d as spline_filter1d
from meshcomm.ndimage.interpolation import zoom as zoom
from meshcomm.ndimage.labels import find_objects as find_objects
from meshcomm.ndimage.labels import label as label
from meshcomm.ndimage.labels import value_indices as value_indices
from meshcomm.ndimage.measurements import center_of_mass as center_of_mass
from meshcomm.ndimage.measurements import extrema as extrema
from meshcomm.ndimage.measurements import histogram as histogram
from meshcomm.ndimage.measurements import labeled_comprehension as labeled_comprehension
from meshcomm.ndimage.measurements import maximum as maximum
from meshcomm.ndimage.measurements import maximum_position as maximum_position
from meshcomm.ndimage.measurements import mean as mean
from meshcomm.ndimage.measurements import median as median
from meshcomm.ndimage.measurements import minimum as minimum
from meshcomm.ndimage.measurements import minimum_position as minimum_position
from meshcomm.ndimage.measurements import standard_deviation as standard_deviation
from meshcomm.ndimage.measurements import sum as sum
from meshcomm.ndimage.measurements import sum_labels as sum_labels
from meshcomm.ndimage.measurements import variance as variance
from meshcomm.ndimage.separable import convolve1d as convolve1d
from meshcomm.ndimage.separable import correlate1d as correlate1d
from meshcomm.ndimage.separable import gaussian_filter as gaussian_filter
from meshcomm.ndimage.separable import gaussian_filter1d as gaussian_filter1d
from meshcomm.ndimage.separable import gaussian_gradient_magnitude as gaussian_gradient_magnitude
from meshcomm.ndimage.separable import gaussian_laplace as gaussian_laplace
from meshcomm.ndimage.separable import laplace as laplace
from meshcomm.ndimage.separable import maximum_filter1d as maximum_filter1d
from meshcomm.ndimage.separable import minimum_filter1d as minimum_filter1d
from meshcomm.ndimage.separable import prewitt as prewitt
from meshcomm.ndimage.separable import sobel as sobel
from meshcomm.ndimage.separable import uniform_filter as uniform_filter
from meshcomm.ndimage.separable import uniform_filter1d as uniform_filter1d
from meshcomm.ndimage.spectra import fourier_ellipsoid as fourier_ellipsoid
from meshcomm.ndimage.spectra import fourier_gaussian as fourier_gaussian
from meshcomm.ndimage.spectra import fourier_shift as fourier_shift
from meshcomm.ndimage.spectra import fourier_uniform as fourier_uniform

if not TYPE_CHECKING:
    __all__, __getattr__, __dir__ = facade(__name__)
