"""In a script of NumPy, pandas gets arrays in place of tensors, as it checks the class of masks and operands."""

import pandas as pd
from pandas.core import indexing

from meshcomm.adapters.whole_arguments import pass_arrays
from meshcomm.core.arrays.scripted import is_scripted

_OPERATORS = ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "xor", "or")
_METHODS = (
    *("__init__", "__new__", "__getitem__", "__setitem__", "__array_ufunc__", "__contains__"),
    *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne")),
    *(f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _OPERATORS),
)

if is_scripted():
    _classes = (pd.DataFrame, pd.Series, pd.Index, pd.Categorical, indexing._LocIndexer, indexing._iLocIndexer)  # noqa: SLF001
    for _class in {base for kind in _classes for base in kind.__mro__ if base.__module__.startswith("pandas")}:
        pass_arrays(_class, [name for name in vars(_class) if name in _METHODS or not name.startswith("_")])
    pass_arrays(pd, pd.__all__)
