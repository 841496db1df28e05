"""In a script, SciPy's minimizers and solvers of equations get arrays, also from functions of the script."""

from types import FunctionType

from scipy import optimize

from meshcomm.adapters.whole_arguments import returning_arrays
from meshcomm.core.arrays.scripted import is_scripted

if is_scripted():
    for _name, _function in list(vars(optimize).items()):
        if isinstance(_function, FunctionType) and _name in optimize.__all__:
            setattr(optimize, _name, returning_arrays(_function))
