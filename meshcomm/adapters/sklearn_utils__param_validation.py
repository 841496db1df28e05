"""What scikit-learn's checks of parameters see in a script of NumPy: an array, where a function gets a tensor."""

from collections.abc import Mapping
from functools import wraps

import numpy as np
from sklearn.utils import _param_validation

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted

_numpys = _param_validation.validate_parameter_constraints


@wraps(_numpys)
def _checked(constraints: object, params: Mapping[str, object], caller_name: str) -> None:
    # The checks ask for types and dtypes, and look at no elements.
    seen = {name: np.empty((0,) * x.ndim, x.dtype) if type(x) is DTensor else x for name, x in params.items()}
    _numpys(constraints, seen, caller_name)


if is_scripted():
    _param_validation.validate_parameter_constraints = _checked
