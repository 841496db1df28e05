"""In a script of NumPy, SciPy's filters get arrays in place of tensors; ``output=`` is copied back to the tensor."""

from scipy import ndimage

from meshcomm.adapters.whole_arguments import pass_arrays
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    pass_arrays(ndimage, ndimage.__all__)
