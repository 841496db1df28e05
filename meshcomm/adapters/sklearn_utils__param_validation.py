"""In a script of NumPy, scikit-learn's checks of parameters get an array in place of each tensor."""

from collections.abc import Mapping
from functools import wraps

import numpy as np
from sklearn.utils import _param_validation

from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.scripted import is_scripted

_original_check = _param_validation.validate_parameter_constraints


@wraps(_original_check)
def _check_with_arrays(constraints: object, params: Mapping[str, object], caller_name: str) -> None:
    # The checks depend on types and dtypes only, so empty arrays do.
    stand_ins = {name: np.empty((0,) * x.ndim, x.dtype) if type(x) is DTensor else x for name, x in params.items()}
    _original_check(constraints, stand_ins, caller_name)


if is_scripted():
    _param_validation.validate_parameter_constraints = _check_with_arrays
