"""xarray's tests of operations on arrays: the data of their variables are tensors, and so are bare arrays."""

import functools
import sys
from importlib import import_module

import numpy as np

import meshcomm as mc
from support.clients import cutting

ENVIRONMENT = {}
FILES = (
    *("duck_array_ops", "array_api", "dataarray", "dataset", "variable", "groupby", "rolling", "weighted"),
    *("computation", "concat", "combine", "merge", "missing", "coarsen", "ufuncs"),
)


def paths(root):
    """Return the files of tests; *root* is the folder of the package."""
    return [str(root / f"tests/test_{name}.py") for name in FILES]


def takes(item):
    """Return whether a test belongs to the suite: tests of Dask's arrays do not."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    is_dask = any(word in item.nodeid.lower() for word in ("dask", "rechunk"))
    return not is_dask and not any("dask" in name and value for name, value in parameters.items())


def install(on_tensors):
    """Let variables of xarray that get an array of numbers from NumPy hold a sharded tensor instead."""
    if not on_tensors:
        return
    variable = import_module("xarray.core.variable")
    original = variable.Variable.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if type(self) is variable.Variable:
            self._data = tensor_of(self._data)

    variable.Variable.__init__ = init
    import_module("xarray.tests").assert_writeable = lambda dataset: None  # asks for `flags`, which tensors have not
    duck_array_tests = import_module("xarray.tests.test_duck_array_ops")
    duck_array_tests.array = lambda *args, **kwargs: tensor_of(np.array(*args, **kwargs))
    array_api_tests = import_module("xarray.tests.test_array_api")
    array_api_tests.xp, array_api_tests.Array = cutting.namespace(), mc.DTensor


def is_a_block():
    """Return whether our adapter has passed the block of one rank to xarray, to reduce its rolling windows."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "move" and frame.f_code.co_filename.endswith("adapters/xarray_reductions.py"):
            return True
        frame = frame.f_back
    return False


def tensor_of(data):
    """Return an array of numbers as a tensor, cut along its first axis; return other arrays as they are.

    Integers of one axis stay arrays, too: they are labels of months or of groups.
    """
    if type(data) is not np.ndarray or data.dtype.kind not in "biufc" or not data.ndim or not data.size:
        return data
    if (data.ndim == 1 and data.dtype.kind in "iu") or is_a_block():
        return data
    return mc.distribute(data, mc.Layout(["x", *[mc.UNSHARDED] * (data.ndim - 1)], cutting.mesh()))
