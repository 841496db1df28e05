"""SciPy's own tests of scipy.ndimage on tensors: modules of tests whose `ndimage` is meshcomm's.

Arrays of the tests stay arrays. A call of a function takes its arrays of elements as tensors on a mesh of all ranks,
cut along the first axis, and its result becomes an array again; an array as `output` is filled. To see how the tests
fail: ``PYTHONPATH=tests python -m support.ndimage_shim test_filters 3``; with ``--table`` it prints names only.
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
TENSORS = ("input", "arr", "mask", "coordinates", "labels", "output", "distances", "indices")
"""Arguments that become tensors."""
FILLED = ("output", "distances", "indices")
SMALL = ("generate_binary_structure", "iterate_structure")
"""Functions of structures, which are no tensors."""


def _as_tensor(x):
    x = np.asarray(x)
    return x if x.dtype == object else made(x)


def plain(x):
    """Return *x* with arrays for tensors, also in dicts, lists and tuples."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(map(plain, x))
    return x.to_numpy() if is_tensor(x) else x


def _on_tensors(name):
    ours, theirs = getattr(mc.ndimage, name), getattr(scipy_ndimage, name)

    @functools.wraps(theirs)
    def call(*args, **options):
        if args and is_tensor(args[0]):  # within a function that a test passes to another one
            return ours(*args, **options)
        bound = inspect.signature(theirs).bind(*args, **options)
        given, filled = dict(bound.arguments), {}
        for key, value in given.items():
            if key in FILLED and isinstance(value, np.ndarray):
                filled[key] = value
            if key in TENSORS and isinstance(value, np.ndarray | list | np.generic) and key not in filled:
                given[key] = _as_tensor(value)
        # One array for input and output is one tensor.
        same = {id(bound.arguments[key]): value for key, value in given.items() if is_tensor(value)}
        for key, value in filled.items():
            given[key] = same[id(value)] if id(value) in same else _as_tensor(value)
        if isinstance(given.get("extra_keywords"), dict):
            given |= {"extra_keywords": dict(given["extra_keywords"])}
        keywords = given.pop("kwargs", {})
        found = ours(**given, **keywords)
        for key, value in filled.items():
            if is_tensor(given[key]):
                value[...] = given[key].to_numpy()
            if found is given[key]:
                return value
        return plain(found)

    return call


class Ndimage:
    """What `ndimage` is in a module of tests."""

    def __getattr__(self, name):
        if name in SMALL or name not in mc.ndimage.__all__:
            return getattr(scipy_ndimage, name)
        return _on_tensors(name)


_RANDOM = re.compile(r"random\.(rand|seed)|@given")
"""Tests with numbers that differ between ranks: those of a process, or of hypothesis."""


def load(name):
    """Return a module of SciPy's tests whose `ndimage` is meshcomm's."""
    module = ModuleType(f"shim_{name}")
    path = numpy_shim.Path(scipy_ndimage.__file__).parent / f"tests/{name}.py"
    source = path.read_text("utf-8").replace("from . import ", "from scipy.ndimage.tests import ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest.mark, "_config", None)  # SciPy's marks are none of ours
        exec(compile(source, path, "exec"), vars(module))
    for each, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and getattr(scipy_ndimage, each, None) is value:
            setattr(module, each, getattr(Ndimage(), each))
    module.ndimage = Ndimage()
    return module


def cases(name, ranks=1):
    """Return the tests of a module by name: functions that a rank calls."""
    found = {}
    for label, function, marks, call in numpy_shim._tests(load(name)):
        source = inspect.getsource(function)
        has_threads = label.startswith("TestThreading") or "num_parallel_threads" in source
        if has_threads or (ranks > 1 and (numpy_shim._warns(function) or _RANDOM.search(source))):
            continue
        parameters = inspect.signature(function).parameters
        given = {"xp": np} if "xp" in parameters else {}
        if "num_parallel_threads" in parameters:
            given["num_parallel_threads"] = 1
        with_xp = functools.partial(call, **given)
        found |= numpy_shim._with_arguments(label, marks, with_xp)
    return found


outcomes = functools.partial(numpy_shim.outcomes, cases=cases)

if __name__ == "__main__":
    numpy_shim.main(*sys.argv[1:], cases=cases)
