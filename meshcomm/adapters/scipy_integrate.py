"""In a script, SciPy's solvers of differential equations get arrays, also from functions of the script."""

from types import FunctionType

from scipy import integrate

from meshcomm.adapters.whole_arguments import returning_arrays
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    for _name, _function in list(vars(integrate).items()):
        if isinstance(_function, FunctionType) and _name in integrate.__all__:
            setattr(integrate, _name, returning_arrays(_function))
