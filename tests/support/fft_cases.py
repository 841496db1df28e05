"""Random transforms, each determined by its number: any mesh, layout, kind, axes and lengths, compared with SciPy."""

from contextlib import contextmanager
from math import prod
from random import Random
from typing import NamedTuple

import numpy as np
import scipy.fft

import meshcomm as mc
from meshcomm.fft import search
from support.scipy_fft import FOURIER, TRIGONOMETRIC, close_to, same_bits
from support.tensors import layout_of

SIZES = [(1,), (1, 1), (2,), (2,), (3,), (4,), (2, 2), (2, 2), (2, 3), (3, 2), (2, 1, 2), (2, 2, 2)]
REAL, ANY = ["f2", "f4", "f8", "f8", "g", "i4", "u1", "?", ">f8", ">f4"], ["c8", "c16", "c16", "G", ">c16"]


class Case(NamedTuple):
    """A call of a function of scipy.fft on an array of *shape* and *dtype*, over a mesh of these *sizes*.

    *gathered* is the number of bytes up to which an axis is gathered if no other axis can be sharded instead. `check`
    draws the layouts.
    """

    number: int
    sizes: tuple
    name: str
    shape: tuple
    dtype: str
    arguments: dict
    gathered: int


def case_of(number):
    random = Random(f"transform {number}")
    sizes = random.choice(SIZES)
    name = random.choice(FOURIER + TRIGONOMETRIC)
    ndim = random.choice([1, 1, 2, 2, 3, 3, 4])
    max_length = {1: 70, 2: 17, 3: 9, 4: 5}[ndim]
    min_length = 2 if name in TRIGONOMETRIC or name.lstrip("i").startswith(("rfft", "hfft")) else 1
    shape = tuple(random.randint(min_length, max_length) for _ in range(ndim))
    if name.endswith("2") and ndim == 1:
        shape = (*shape, random.randint(min_length, 9))
    dtype = random.choice(REAL if name.startswith(("rfft", "ihfft")) else REAL + ANY)
    return Case(number, sizes, name, shape, dtype, _arguments(random, name, shape), random.choice([0, 0, 2**20]))


def _arguments(random, name, shape):
    ndim, arguments = len(shape), {}
    one_axis = not name.endswith(("2", "n"))
    if one_axis:
        axes = [random.randrange(ndim)]
        if random.random() < 0.8:
            arguments["axis"] = _signed(random, axes[0], ndim)
        else:
            axes = [ndim - 1]
        if random.random() < 0.4:
            arguments["n"] = random.randint(2, 2 * shape[axes[0]] + 1)
    else:
        count = random.randint(2 if name.endswith("2") else 1, 2 if name.endswith("2") else ndim)
        axes = random.sample(range(ndim), min(count, ndim))
        if random.random() < 0.7:
            arguments["axes"] = tuple(_signed(random, axis, ndim) for axis in axes)
        else:
            axes = list(range(ndim))[-2 if name.endswith("2") else 0 :]
        if random.random() < 0.4:
            arguments["s"] = tuple(random.choice([-1, random.randint(2, 2 * shape[axis] + 1)]) for axis in axes)
            min_last_length = 2 if name.startswith(("irfft", "hfft")) else 1
            if arguments["s"][-1] == -1 and min_last_length == 2:
                arguments["s"] = (*arguments["s"][:-1], random.randint(2, 2 * shape[axes[-1]]))
    if random.random() < 0.6:
        arguments["norm"] = random.choice([None, "backward", "ortho", "forward"])
    if name in TRIGONOMETRIC:
        arguments["type"] = random.choice([1, 2, 3, 4])
        if random.random() < 0.3:
            arguments["orthogonalize"] = random.choice([None, True, False])
    return arguments


def _signed(random, axis, ndim):
    return axis - ndim if random.random() < 0.4 else axis


@contextmanager
def gathered_up_to(nbytes):
    """Return a context in which an axis is gathered for arrays up to *nbytes* if no other axis can be sharded."""
    previous = search.GATHERED_FFT
    search.GATHERED_FFT = nbytes
    search._cheapest_steps.cache_clear()
    try:
        yield
    finally:
        search.GATHERED_FFT = previous
        search._cheapest_steps.cache_clear()


def array_of(shape, dtype, seed=0):
    """Random numbers of any dtype; small ones for integers."""
    rng, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype)
    if kind.kind in "iub":
        return rng.integers(0, 5, shape).astype(kind)
    array = rng.normal(size=shape)
    return (array + 1j * rng.normal(size=shape) if kind.kind == "c" else array).astype(kind)


def check(case):
    """Compare the result of each rank, by the function and by a plan, with that of SciPy for the global array."""
    array = array_of(case.shape, case.dtype, case.number)
    expected = getattr(scipy.fft, case.name)(array, **case.arguments)
    with gathered_up_to(case.gathered), mc.simulate(prod(case.sizes)) as world:
        for results in world.run(_on_rank, case, array, expected):
            for label, result, reference in results:
                if prod(case.sizes) == 1:
                    assert same_bits(result, reference), (label, case)
                assert close_to(result, reference, 2), (label, case)


def _on_rank(case, array, expected):
    random = Random(f"layouts of {case.number}")
    mesh = mc.create_mesh(list(zip("xyz", case.sizes, strict=False)))
    other_mesh = mc.create_mesh(list(zip("uvw", case.sizes[::-1], strict=False)))
    t = mc.distribute(array, layout_of(random, mesh, case.shape))
    block_before = t.local.copy()
    target = random.choice([None, None, "same", mesh, mesh, other_mesh])
    if isinstance(target, mc.Mesh):
        target = layout_of(random, target, expected.shape)
    result = getattr(mc.fft, case.name)(t, **case.arguments, layout=target)
    assert same_bits(t.local, block_before), ("the input was overwritten", case)
    if isinstance(target, mc.Layout):
        assert result.layout == target, case
    results = [("function", _whole(result), expected)]
    if case.number % 3 == 1:
        overwritten = getattr(mc.fft, case.name)(t.copy(), **case.arguments, layout=target, overwrite_x=True)
        assert same_bits(overwritten.local, result.local), ("overwrite_x", case)
    if case.number % 3 == 2 and "orthogonalize" not in case.arguments:
        results += _by_a_plan(case, t, target, expected)
    assert same_bits(t.local, block_before), ("the input was overwritten", case)
    return results


def _by_a_plan(case, t, target, expected):
    options = dict(case.arguments)
    axes, s = options.pop("axis", options.pop("axes", None)), options.pop("n", options.pop("s", None))
    if axes is None and not case.name.endswith("n"):
        axes = (-2, -1) if case.name.endswith("2") else -1
    plan = mc.fft.plan(t.shape, t.dtype, t.layout, target, case.name, axes=axes, s=s, **options)
    str(plan)
    assert (plan.spectrum_shape, plan.spectrum_dtype) == (expected.shape, expected.dtype), case
    spectra = plan.forward([t, t])
    out = mc.empty(plan.spectrum_shape, plan.spectrum_dtype, plan.target)
    assert plan.forward(t, out=out) is out
    spectrum_before = out.local.copy()
    tensor_back = plan.backward(out)
    assert same_bits(out.local, spectrum_before), ("the spectrum was overwritten", case)
    inverse = getattr(scipy.fft, case.name[1:] if case.name.startswith("i") else f"i{case.name}")
    keywords = {"axes": axes, "s": plan.transform.lengths} if inverse.__name__.endswith(("2", "n")) else None
    keywords = keywords or {"axis": axes, "n": plan.transform.lengths[0]}
    expected_back = inverse(expected, **keywords, **options)
    results = [("plan", _whole(spectra[0]), expected), ("plan, second", _whole(spectra[1]), expected)]
    return [*results, ("plan, out", _whole(out), expected), ("backward", _whole(tensor_back), expected_back)]


def _whole(t):
    return mc.relayout(t, mc.Layout.replicated(t.layout.mesh, t.ndim)).local
