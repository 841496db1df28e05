"""NumPy's own tests on tensors: modules of tests in which `np` makes tensors instead of arrays.

In the namespace of such a module, functions that make arrays make tensors on a mesh of all ranks, cut along the first
axis. All other names are those of NumPy, and reach tensors by NumPy's protocols. Assertions compare the arrays of
tensors. To see how the tests fail: ``PYTHONPATH=tests python -m support.numpy_shim test_indexing 3``; it prints the
reason of each failure, or with ``--table`` only the tests that belong in tests/data/numpy_tests.txt. With ``--script``
they run as a script of ``run --numpy`` does: `np` is `meshcomm.numpy`, whose small tensors are whole on each rank.
"""

import inspect
import itertools
import re
import sys
import warnings
from collections import Counter
from copy import deepcopy
from pathlib import Path
from threading import local
from types import FunctionType, ModuleType

import numpy as np
import numpy.testing
import pytest

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.scripted import is_scripted, set_scripted

FOLDERS = {
    "_core": ("indexing", "einsum", "multiarray", "numeric", "umath"),
    "lib": ("index_tricks", "arraysetops", "function_base", "shape_base", "twodim_base", "nanfunctions"),
    "linalg": ("linalg",),
}
MODULES = {
    f"test_{name}": Path(np.__file__).parent / folder / f"tests/test_{name}.py"
    for folder, names in FOLDERS.items()
    for name in names
}
INCLUDED = {
    "test_multiarray": "TestVdot|TestDot|TestMatmul|test_matmul|TestInner",
    "test_numeric": "TestCross|TestTensordot|test_outer",
    "test_shape_base": "(?!.*greater_max_int32)",  # 64 GB
    "test_function_base": "(?!.*_hypo)",  # hypothesis has a thread of its own in mind
    "test_umath": "(?!test_memoverlap)",  # 495 tests of a second each: blocks overlap as NumPy's arrays do
    "test_linalg": "(?!test_blas64|test_xerbla)",  # they ask LAPACK itself
}
"""For modules of which not all tests run: a pattern of the names of tests that run."""
EDITS = {
    "test_linalg": {
        ".view(ArraySubclass)": "",
        "ArraySubclass)": "np.ndarray)",
        ".view(type(x))": "",
        "sv.__array_wrap__(s)": "s",
        "expect_resids.shape = (1,)": "expect_resids = expect_resids.reshape(1)",
    },
    "test_shape_base": {
        "from numpy.random import randint": "randint = np.random.randint",
        "from numpy.random import rand\n": "rand = np.random.rand\n",
    },
    "test_umath": {".flatten('f')": ".T.flatten()"},
    "test_nanfunctions": {
        "_ndat, ": "np.array(_ndat), ",
        "= _ndat.copy()": "= np.array(_ndat)",
    },  # made before `np` is a shim
}
"""By module, texts of its source to replace, so that a test is not lost for a line about something else."""
MAKERS = "array asarray asanyarray ascontiguousarray zeros ones empty full arange linspace eye identity copy"
LIKE_MAKERS = "zeros_like ones_like empty_like full_like"

rank_state = local()  # of each rank while a test runs: its mesh, the number of tensors made, a random generator


# -- values -----------------------------------------------------------------------------------------------------------


def is_tensor(x):
    return isinstance(x, mc.DTensor)


def plain(x):
    """Return *x* with arrays instead of tensors, also in lists and tuples."""
    if is_tensor(x):
        return x.to_numpy()[()]  # of one without axes a scalar, as NumPy's functions return
    if type(x) is list:
        return list(map(plain, x))
    return tuple(map(plain, x)) if isinstance(x, tuple) else x


def made(x):
    """Return an array as a tensor that is cut along its first axis; an array of objects as it is."""
    x = np.asanyarray(x)
    if x.dtype == object:
        return x
    rank_state.tensor_count += 1
    if is_scripted():
        return namespace.array(x)
    return mc.distribute(x, mc.Layout(["x"][: x.ndim] + [mc.UNSHARDED] * (x.ndim - 1), rank_state.mesh))


def tensors(x):
    """Return *x* with tensors instead of arrays, also in dicts, lists and tuples."""
    if type(x) is dict:
        return {key: tensors(value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(tensors, x))
    return made(x) if type(x) is np.ndarray else x


# -- names ------------------------------------------------------------------------------------------------------------


class _AnyArray(type):
    def __instancecheck__(cls, x):
        return isinstance(x, np.ndarray | mc.DTensor)


class AnyArray(metaclass=_AnyArray):
    """The class of arrays and tensors; a call makes a tensor."""

    def __new__(cls, *args, **options):
        return made(np.ndarray(*args, **options))


class Random:
    """numpy.random, or a generator of it, with the same numbers on all ranks."""

    def __init__(self, generator=None):
        self.generator = generator

    def RandomState(self, seed):  # noqa: N802 - NumPy's name
        return Random(np.random.RandomState(seed))

    def default_rng(self, seed):
        return Random(np.random.default_rng(seed))

    def shuffle(self, x):
        order = self.permutation(len(x))
        x[...] = x[order]

    def __getattr__(self, name):
        function = getattr(self.generator or rank_state.random, name)

        def call(*args, **options):
            result = function(*args, **options)
            return made(result) if isinstance(result, np.ndarray) else result

        return call


def _tensor_maker(function):
    return lambda *args, **options: made(function(*map(plain, args), **{k: plain(v) for k, v in options.items()}))


def _tensor_like_maker(function):
    def call(like, *args, **options):
        return function(like, *args, **options) if is_tensor(like) else made(function(like, *args, **options))

    return call


def may_share_memory(a, b):
    """Return whether blocks on any rank may share memory."""
    if not is_tensor(a) or not is_tensor(b):
        return is_scripted() and np.may_share_memory(a, b)
    return bool(mc.all_reduce(np.may_share_memory(a.local, b.local), op="max"))


class Testing:
    """numpy.testing, with assertions that compare the arrays of tensors."""

    def __getattr__(self, name):
        return _on_arrays(getattr(numpy.testing, name))


class Shim:
    """The object that is `np` in a module of tests."""

    ndarray = AnyArray
    random = Random()
    testing = Testing()
    may_share_memory = staticmethod(may_share_memory)

    def __getattr__(self, name):
        return getattr(np, name)


class Script:
    """The object that is `np` in a module of tests that runs as a script of ``run --numpy``."""

    random, testing, may_share_memory = Random(), Testing(), staticmethod(may_share_memory)

    def __getattr__(self, name):
        rank_state.tensor_count = getattr(rank_state, "made", 0) + (name in MAKERS.split())
        return getattr(namespace, name)


for _name in MAKERS.split():
    setattr(Shim, _name, staticmethod(_tensor_maker(getattr(np, _name))))
for _name in LIKE_MAKERS.split():
    setattr(Shim, _name, staticmethod(_tensor_like_maker(getattr(np, _name))))


def _on_arrays(function):
    return lambda *args, **options: function(*map(plain, args), **options)


def _module(name):
    module = ModuleType(f"shim_{name}")
    source = MODULES[name].read_text("utf-8")
    for text, replacement in EDITS.get(name, {}).items():
        assert text in source
        source = source.replace(text, replacement)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some modules make a matrix
        patch.setattr(pytest.mark, "_config", None)  # NumPy's marks are none of ours
        exec(compile(source, MODULES[name], "exec"), vars(module))
    return module


def _compare_index_result(test, tensor, index, expected, is_view):
    """Check what NumPy's method of this name checks, without `flat`; a slice that moved is no view."""
    tensor = tensor.copy()
    result = tensor[index]
    np.testing.assert_array_equal(plain(result), expected)
    array, modified = plain(tensor), tensor.copy()
    modified[index] = expected + 1000
    if not tensor.size:
        return
    array.flat[np.ravel(expected)] += 1000  # an arange at first
    np.testing.assert_array_equal(plain(modified), array)
    if is_view and result.ndim and type(result) is mc.DTensor:
        result += 1000
        np.testing.assert_array_equal(plain(tensor), array)


def load(name):
    """Return a module of NumPy's tests in which `np` is a shim."""
    module = _module(name)
    if name == "test_indexing":  # what should come is computed by NumPy, from arrays
        mimic = _module(name).TestMultiIndexingAutomated._get_multi_index
        automated = module.TestMultiIndexingAutomated
        automated._get_multi_index = lambda test, tensor, index: mimic(test, plain(tensor), plain(index))
        automated._compare_index_result = _compare_index_result
    module.np = Script() if is_scripted() else Shim()
    module.HAS_REFCOUNT = False
    if name == "test_einsum":
        module.np.asarray = np.asarray  # makes subscripts only
    if name == "test_linalg":  # blocks are contiguous: there are no cases of other strides
        module.LinalgTestCase.TEST_CASES = [case for case in module.CASES if "strided" not in case.tags]
        module.LinalgCase.check = lambda case, do: do(tensors(case.a), tensors(case.b), tags=case.tags)
        module.TestQR.array = staticmethod(module.np.array)
        module.consistent_subclass = lambda out, operand: isinstance(out, AnyArray) or isinstance(operand, list)
    if name == "test_multiarray":
        module.MatmulCommon.types = module.MatmulCommon.types.replace("O", "")  # each test goes through all
    for attribute_name in MAKERS.split():
        if getattr(module, attribute_name, None) is getattr(np, attribute_name):
            setattr(module, attribute_name, getattr(module.np, attribute_name))
    for attribute_name in ("rand", "randint", "randn"):
        if attribute_name in vars(module):
            setattr(
                module,
                attribute_name,
                lambda *args, attribute_name=attribute_name, **options: getattr(Shim.random, attribute_name)(
                    *args, **options
                ),
            )
    assertion_names = {
        value: attribute_name
        for attribute_name, value in vars(numpy.testing).items()
        if re.match("assert_(?!.*raises|.*warn)", attribute_name)
    }
    for attribute_name, value in list(vars(module).items()):
        if isinstance(value, FunctionType) and value in assertion_names:
            setattr(module, attribute_name, _on_arrays(value))
    return module


# -- tests ------------------------------------------------------------------------------------------------------------


def cases(module, ranks=1):
    """Return the tests of a module by name: functions that a rank calls."""
    functions = {}
    for name, function, marks, call in _tests(load(module)):
        if re.match(INCLUDED.get(module, ""), name) and (ranks == 1 or not _warns(function)):
            functions |= _with_arguments(name, marks, call)
    return functions


def _tests(module):
    """Yield for each test of a module: its name, its function, its marks, and a function that calls it."""
    for name, value in vars(module).items():
        marks = getattr(value, "pytestmark", [])
        if name.startswith("test") and callable(value):
            yield name, value, marks, value
        elif name.startswith("Test") and isinstance(value, type):
            for method_name in dir(value):
                if method_name.startswith("test"):
                    function = getattr(value, method_name)
                    yield (
                        f"{name}::{method_name}",
                        function,
                        [*getattr(function, "pytestmark", []), *marks],
                        _method(value, method_name),
                    )


def _method(test_class, name):
    def call(**arguments):
        test = test_class()
        for attribute_name, value in vars(test_class).items():
            if type(value) in (np.ndarray, list):
                setattr(test, attribute_name, tensors(value))
        getattr(test, "setup_method", lambda: None)()
        try:
            getattr(test, name)(**arguments)
        finally:
            getattr(test, "teardown_method", lambda: None)()

    return call


def _warns(function):
    """Return whether a test records or ignores warnings: these belong to a process, and the ranks are its threads."""
    pattern = r"record=True|\.warns|assert_\w*warn|filter\w*\(.ignore"
    return re.search(pattern, inspect.getsource(function)) is not None


def _is_left_out(name, mark):
    """Return whether *mark* skips a test: NumPy skips it, or marks it slow. Slow tests of stacks are fast here."""
    if mark.name in ("skipif", "xfail"):
        return not mark.args or mark.args[0]
    return mark.name == "skip" or (mark.name == "slow" and "test_generalized_" not in name)


def _with_arguments(name, marks, call):
    """Return a case, by label, for each set of arguments in the marks of pytest."""
    if any(_is_left_out(name, mark) for mark in marks):
        return {}
    choices = []
    for mark in marks:
        if mark.name == "parametrize":
            names, values = [*mark.args, *map(mark.kwargs.get, ("argnames", "argvalues"))][:2]
            names = [item.strip() for item in names.split(",")] if isinstance(names, str) else list(names)
            sets = [getattr(item, "values", item if len(names) > 1 else (item,)) for item in values]
            sets = [item if isinstance(item, tuple | list) else (item,) for item in sets]
            choices.append([dict(zip(names, item, strict=True)) for item in sets])
    functions = {}
    for number, argument_sets in enumerate(itertools.product(*choices)):
        arguments = {key: value for item in argument_sets for key, value in item.items()}
        label = f"{name}[{number}]" if choices else name
        functions[label] = lambda arguments=arguments: call(**tensors(deepcopy(arguments)))
    return functions


def failure(case, ranks):
    """Run a test on simulated ranks. Return the error of a rank, or None, and whether the test made tensors."""
    with mc.simulate(ranks) as world, warnings.catch_warnings():
        for category in (DeprecationWarning, PendingDeprecationWarning):  # marks of these tests say so
            warnings.simplefilter("ignore", category)
        mesh = mc.create_mesh([("x", ranks)])

        def on_rank():
            rank_state.mesh, rank_state.tensor_count, rank_state.random = mesh, 0, np.random.RandomState(0)
            try:
                with mc.default_mesh(mesh):
                    case()
            finally:
                counts.append(rank_state.tensor_count)

        counts = []
        try:
            world.run(on_rank)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            if isinstance(error, pytest.skip.Exception):
                return None, False
            return error, sum(counts) > 0
    return None, sum(counts) > 0


def outcomes(name, ranks, only=None, cases=cases):
    """Return the error of each test of a module, or None, by name. Leave out tests that make no tensor.

    *only* has the names of the tests to run; None runs all.
    """
    errors = {}
    for label, case in cases(name, ranks).items():
        if only is None or label in only:
            error, makes_tensors = failure(case, ranks)
            if makes_tensors:
                errors[f"{name}.py::{label}"] = error
    return errors


def main(name, ranks, *options, cases=cases):
    """Print the failures, and the number of tests that pass. An option without dashes is a pattern for their names."""
    table = "--table" in options
    set_scripted("--script" in options)
    pattern = next((option for option in options if not option.startswith("-")), "")
    labels = [label for label in cases(name, int(ranks)) if re.search(pattern, label)]
    errors = outcomes(name, int(ranks), labels, cases)
    for label, error in errors.items():
        if error is not None:
            text = " ".join(str(error).split())[:230]
            print(label if table else f"{label}\n    {type(error).__name__}: {text}")
    if not table:
        print(Counter("passed" if error is None else "failed" for error in errors.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
