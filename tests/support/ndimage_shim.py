"""SciPy's own tests of scipy.ndimage on tensors: modules of tests in which `ndimage` is meshcomm's.

Arrays of the tests stay arrays. A call of a function turns its arrays of elements into tensors on a mesh of all ranks,
cut along the first axis, and its result into an array again; an array passed as `output` is filled. To see how the
tests fail: ``PYTHONPATH=tests python -m support.ndimage_shim test_filters 3``; with ``--table`` it prints names only.
"""

import functools
import inspect
import re
import sys
from types import FunctionType, ModuleType

import numpy as np
import pytest

import meshcomm as mc
from support import numpy_shim
from support.numpy_shim import is_tensor, made

scipy_ndimage = pytest.importorskip("scipy.ndimage")

NAMES = "filters fourier interpolation measurements morphology splines"
MODULES = [f"test_{name}" for name in NAMES.split()]
TENSOR_ARGUMENTS = ("input", "arr", "mask", "coordinates", "labels", "output", "distances", "indices")
"""Arguments that become tensors."""
OUTPUT_ARGUMENTS = ("output", "distances", "indices")
STRUCTURE_FUNCTIONS = ("generate_binary_structure", "iterate_structure")
"""Functions of structures, which are no tensors."""


def _as_tensor(x):
    x = np.asarray(x)
    return x if x.dtype == object else made(x)


def plain(x):
    """Return *x* with arrays instead of tensors, also in dicts, lists and tuples."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(map(plain, x))
    return x.to_numpy() if is_tensor(x) else x


def _on_tensors(name):
    function, scipy_function = getattr(mc.ndimage, name), getattr(scipy_ndimage, name)

    @functools.wraps(scipy_function)
    def call(*args, **options):
        if args and is_tensor(args[0]):  # within a function that a test passes to another one
            return function(*args, **options)
        bound = inspect.signature(scipy_function).bind(*args, **options)
        arguments, output_arrays = dict(bound.arguments), {}
        for key, value in arguments.items():
            if key in OUTPUT_ARGUMENTS and isinstance(value, np.ndarray):
                output_arrays[key] = value
            if (
                key in TENSOR_ARGUMENTS
                and isinstance(value, np.ndarray | list | np.generic)
                and key not in output_arrays
            ):
                arguments[key] = _as_tensor(value)
        # One array for input and output is one tensor.
        tensors_by_id = {id(bound.arguments[key]): value for key, value in arguments.items() if is_tensor(value)}
        for key, value in output_arrays.items():
            arguments[key] = tensors_by_id[id(value)] if id(value) in tensors_by_id else _as_tensor(value)
        if isinstance(arguments.get("extra_keywords"), dict):
            arguments |= {"extra_keywords": dict(arguments["extra_keywords"])}
        keywords = arguments.pop("kwargs", {})
        result = function(**arguments, **keywords)
        for key, value in output_arrays.items():
            if is_tensor(arguments[key]):
                value[...] = arguments[key].to_numpy()
            if result is arguments[key]:
                return value
        return plain(result)

    return call


class Ndimage:
    """The object that is `ndimage` in a module of tests."""

    def __getattr__(self, name):
        if name in STRUCTURE_FUNCTIONS or name not in mc.ndimage.__all__:
            return getattr(scipy_ndimage, name)
        return _on_tensors(name)


_DIFFERS_BETWEEN_RANKS = re.compile(r"random\.(rand|seed)|@given")
"""Matches tests with random numbers of the process, or of hypothesis: they differ between ranks."""


def load(name):
    """Return a module of SciPy's tests in which `ndimage` is meshcomm's."""
    module = ModuleType(f"shim_{name}")
    path = numpy_shim.Path(scipy_ndimage.__file__).parent / f"tests/{name}.py"
    source = path.read_text("utf-8").replace("from . import ", "from scipy.ndimage.tests import ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.mark, "_config", None)  # SciPy's marks are none of ours
        exec(compile(source, path, "exec"), vars(module))
    for function_name, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and getattr(scipy_ndimage, function_name, None) is value:
            setattr(module, function_name, getattr(Ndimage(), function_name))
    module.ndimage = Ndimage()
    return module


def cases(name, ranks=1):
    """Return the tests of a module by name: functions that a rank calls."""
    functions = {}
    for label, function, marks, call in numpy_shim._tests(load(name)):
        source = inspect.getsource(function)
        has_threads = label.startswith("TestThreading") or "num_parallel_threads" in source
        if has_threads or (ranks > 1 and (numpy_shim._warns(function) or _DIFFERS_BETWEEN_RANKS.search(source))):
            continue
        parameters = inspect.signature(function).parameters
        fixtures = {"xp": np} if "xp" in parameters else {}
        if "num_parallel_threads" in parameters:
            fixtures["num_parallel_threads"] = 1
        test = functools.partial(call, **fixtures)
        functions |= numpy_shim._with_arguments(label, marks, test)
    return functions


outcomes = functools.partial(numpy_shim.outcomes, cases=cases)

if __name__ == "__main__":
    numpy_shim.main(*sys.argv[1:], cases=cases)
