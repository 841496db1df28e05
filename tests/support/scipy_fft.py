"""scipy.fft on tensors: a module with the names of scipy.fft, for SciPy's own tests.

Each function distributes its input over the ranks of a simulated world, calls meshcomm.fft, and returns the gathered
result. The result is also compared with SciPy's: one rank has to return the same bits, and if SciPy raises an error,
ranks have to raise an error of the same class.
"""

import functools
import importlib.util
import sys
import threading
import types
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.fft
from scipy._lib._array_api import xp_capabilities_table

import meshcomm as mc
from meshcomm import UNSHARDED, Cuts, Cyclic

FOURIER = [
    f"{inverse}{letter}fft{axes}" for letter in ("", "r", "h") for inverse in ("", "i") for axes in ("", "2", "n")
]
TRIGONOMETRIC = [
    f"{inverse}{letter}{axes}" for letter in ("dct", "dst") for inverse in ("", "i") for axes in ("", "n")
]
SHIFTS = ["fftshift", "ifftshift"]
NAMES = FOURIER + TRIGONOMETRIC + SHIFTS


class World(NamedTuple):
    """Simulated ranks: the sizes of their mesh, the sharding of arrays, and the argument *layout* of calls."""

    sizes: tuple
    specs: object  # a function from the shape of an array to sharding specs
    layout: object = None

    @property
    def ranks(self):
        return int(np.prod(self.sizes))


def _on_axis(axis, spec):
    """Return a function from a shape to specs that shard one axis by *spec*, or by ``spec(length)``."""

    def specs(shape):
        axis_specs = [UNSHARDED] * len(shape)
        if shape:
            axis_specs[axis] = spec(shape[axis]) if callable(spec) else spec
        return axis_specs

    return specs


def _pencils(shape):
    return ["x", *[UNSHARDED] * (len(shape) - 2), "y"] if len(shape) > 1 else [("x", "y")]


def _rows(shape):
    return ["x", "y", *[UNSHARDED] * (len(shape) - 2)] if len(shape) > 1 else [("y", "x")]


def _uneven(n):
    return Cuts("x", (0, n // 4, n // 4, n))  # the second block is empty


WORLDS = {
    "one rank": World((1,), _on_axis(0, "x")),
    "two ranks, last axis": World((2,), _on_axis(-1, "x")),
    "three ranks, chosen boundaries": World((3,), _on_axis(0, _uneven), "same"),
    "four ranks, pencils": World((2, 2), _pencils),
    "two ranks, first axis": World((2,), _on_axis(0, "x"), "same"),
    "three ranks, cyclic": World((3,), _on_axis(-1, Cyclic("x", 2))),
    "four ranks, first axes": World((2, 2), _rows, "same"),
    "four ranks, replicas": World((2, 2), _on_axis(-1, "y")),
}
_current_world = World((1,), _on_axis(0, "x"))
_worlds = threading.local()  # SciPy's tests call from many threads


@contextmanager
def used(world):
    """Distribute the inputs of all calls over the ranks of this *world*."""
    global _current_world
    previous, _current_world = _current_world, world
    try:
        yield
    finally:
        _current_world = previous


def _mesh(world):
    """Return the simulated world of this thread for *world*, and its mesh."""
    worlds = _worlds.__dict__.setdefault("known", {})
    if world.sizes not in worlds:
        simulated = mc.simulate(world.ranks)
        with simulated:
            worlds[world.sizes] = simulated, mc.Mesh(range(world.ranks), list(zip("xy", world.sizes, strict=False)))
    return worlds[world.sizes]


def close_to(result, expected, times=1.0):
    """Return whether the relative error of an array, in the norm, is at most *times* that of rounding."""
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        return False
    eps = np.finfo(expected.dtype).eps
    size = np.linalg.norm(np.ravel(expected).astype(np.clongdouble))
    error = np.linalg.norm(np.ravel(result).astype(np.clongdouble) - np.ravel(expected))
    return bool(
        error <= times * 4 * eps * max(1.0, np.log2(max(2, expected.size))) * size + np.finfo(expected.dtype).tiny
    )


def same_bits(result, expected):
    """Return whether arrays have the same shape, dtype and elements, with equal signs of zeros."""
    if (result.shape, result.dtype) != (expected.shape, expected.dtype) or not np.array_equal(result, expected):
        return False
    signs = [np.signbit(component) for array in (result, expected) for component in (array.real, array.imag)]
    return np.array_equal(signs[0], signs[2]) and np.array_equal(signs[1], signs[3])


def _called(name, x, *args, **kwargs):
    world, array = _current_world, np.asarray(x)
    scipy_function = getattr(scipy.fft, name)
    try:
        expected = scipy_function(array.copy(), *args, **kwargs)
    except Exception as error:
        expected = error
    may_overwrite = kwargs.get("overwrite_x", False)
    simulated, mesh = _mesh(world)
    source = mc.Layout(world.specs(array.shape), mesh)

    def program():
        t = mc.distribute(array, source)
        block_before = t.local.copy()
        layout_option = {} if world.layout is None or name in SHIFTS else {"layout": world.layout}
        tensor = getattr(mc.fft, name)(t, *args, **kwargs, **layout_option)
        assert may_overwrite or same_bits(t.local, block_before), "the input was overwritten"
        return mc.relayout(tensor, mc.Layout.replicated(mesh, tensor.ndim)).local

    with simulated:
        if isinstance(expected, Exception):
            try:
                simulated.run(program)
            except type(expected):
                raise
            except Exception as error:
                raise AssertionError(f"{error!r}, but SciPy raises {expected!r}") from error
            raise AssertionError(f"SciPy raises {expected!r}")
        results = simulated.run(program)
    result = results[0]
    assert all(same_bits(rank_result, result) for rank_result in results)
    if world.ranks == 1:
        assert same_bits(result, expected), f"{result.dtype} is not {expected.dtype}, or other bits"
    assert close_to(result, expected), (result.dtype, expected.dtype, np.abs(result - expected).max())
    return result


def _module():
    module = types.ModuleType("scipy_fft_on_tensors")
    module.__dict__.update({name: value for name, value in vars(scipy.fft).items() if not name.startswith("__")})
    for name in NAMES:
        function = functools.wraps(getattr(scipy.fft, name))(functools.partial(_called, name))
        setattr(module, name, function)
        if getattr(scipy.fft, name) in xp_capabilities_table:
            xp_capabilities_table[function] = xp_capabilities_table[getattr(scipy.fft, name)]
    return module


ON_TENSORS = _module()


def tests_of(name):
    """Return SciPy's module of tests ``scipy.fft.tests.name`` with the functions of this module instead of SciPy's."""
    spec = importlib.util.find_spec(f"scipy.fft.tests.{name}")
    module = types.ModuleType(f"on_tensors_{name}")
    module.__file__ = spec.origin
    real_module = scipy.fft
    try:
        sys.modules["scipy.fft"] = scipy.fft = ON_TENSORS
        exec(compile(Path(spec.origin).read_text(encoding="utf-8"), spec.origin, "exec"), module.__dict__)
    finally:
        sys.modules["scipy.fft"] = scipy.fft = real_module
    return module
