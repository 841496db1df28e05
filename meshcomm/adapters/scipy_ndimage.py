"""In a script of NumPy, SciPy's filters get arrays in place of tensors; ``output=`` is copied back to the tensor."""

from scipy import ndimage

from meshcomm.adapters.whole_arguments import teach
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    teach(ndimage, ndimage.__all__)
