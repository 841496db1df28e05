"""What SciPy's filters get in a script of NumPy: arrays for tensors. What they write to ``output=`` goes back."""

from scipy import ndimage

from meshcomm.adapters.whole_arguments import teach
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    teach(ndimage, ndimage.__all__)
