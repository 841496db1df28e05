"""Random transforms, each made from its number alone: any mesh, layout, kind, axes and lengths, against SciPy."""

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

    *gathered* are the bytes up to which an axis that no other can take over is gathered. Layouts are drawn by `check`.
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
    longest = {1: 70, 2: 17, 3: 9, 4: 5}[ndim]
    least = 2 if name in TRIGONOMETRIC or name.lstrip("i").startswith(("rfft", "hfft")) else 1
    shape = tuple(random.randint(least, longest) for _ in range(ndim))
    if name.endswith("2") and ndim == 1:
        shape = (*shape, random.randint(least, 9))
    dtype = random.choice(REAL if name.startswith(("rfft", "ihfft")) else REAL + ANY)
    return Case(number, sizes, name, shape, dtype, _arguments(random, name, shape), random.choice([0, 0, 2**20]))


def _arguments(random, name, shape):
    ndim, found = len(shape), {}
    one_axis = not name.endswith(("2", "n"))
    if one_axis:
        axes = [random.randrange(ndim)]
        if random.random() < 0.8:
            found["axis"] = _signed(random, axes[0], ndim)
        else:
            axes = [ndim - 1]
        if random.random() < 0.4:
            found["n"] = random.randint(2, 2 * shape[axes[0]] + 1)
    else:
        count = random.randint(2 if name.endswith("2") else 1, 2 if name.endswith("2") else ndim)
        axes = random.sample(range(ndim), min(count, ndim))
        if random.random() < 0.7:
            found["axes"] = tuple(_signed(random, axis, ndim) for axis in axes)
        else:
            axes = list(range(ndim))[-2 if name.endswith("2") else 0 :]
        if random.random() < 0.4:
            found["s"] = tuple(random.choice([-1, random.randint(2, 2 * shape[axis] + 1)]) for axis in axes)
            last = 2 if name.startswith(("irfft", "hfft")) else 1
            if found["s"][-1] == -1 and last == 2:
                found["s"] = (*found["s"][:-1], random.randint(2, 2 * shape[axes[-1]]))
    if random.random() < 0.6:
        found["norm"] = random.choice([None, "backward", "ortho", "forward"])
    if name in TRIGONOMETRIC:
        found["type"] = random.choice([1, 2, 3, 4])
        if random.random() < 0.3:
            found["orthogonalize"] = random.choice([None, True, False])
    return found


def _signed(random, axis, ndim):
    return axis - ndim if random.random() < 0.4 else axis


@contextmanager
def gathered_up_to(nbytes):
    """Gather a sharded axis that no other can take over only if the array has so many *nbytes*."""
    before = search.GATHERED_FFT
    search.GATHERED_FFT = nbytes
    search._cheapest_steps.cache_clear()
    try:
        yield
    finally:
        search.GATHERED_FFT = before
        search._cheapest_steps.cache_clear()


def array_of(shape, dtype, seed=0):
    """Random numbers of any dtype; small integers for those."""
    values, kind = np.random.default_rng([seed, *shape]), np.dtype(dtype)
    if kind.kind in "iub":
        return values.integers(0, 5, shape).astype(kind)
    array = values.normal(size=shape)
    return (array + 1j * values.normal(size=shape) if kind.kind == "c" else array).astype(kind)


def check(case):
    """Compare the result of each rank, by the function and by a plan, with that of SciPy for the global array."""
    array = array_of(case.shape, case.dtype, case.number)
    wanted = getattr(scipy.fft, case.name)(array, **case.arguments)
    with gathered_up_to(case.gathered), mc.simulate(prod(case.sizes)) as world:
        for found in world.run(_on_rank, case, array, wanted):
            for what, result, against in found:
                if prod(case.sizes) == 1:
                    assert same_bits(result, against), (what, case)
                assert close_to(result, against, 2), (what, case)


def _on_rank(case, array, wanted):
    random = Random(f"layouts of {case.number}")
    mesh = mc.create_mesh(list(zip("xyz", case.sizes, strict=False)))
    other = mc.create_mesh(list(zip("uvw", case.sizes[::-1], strict=False)))
    t = mc.distribute(array, layout_of(random, mesh, case.shape))
    before = t.local.copy()
    target = random.choice([None, None, "same", mesh, mesh, other])
    if isinstance(target, mc.Mesh):
        target = layout_of(random, target, wanted.shape)
    made = getattr(mc.fft, case.name)(t, **case.arguments, layout=target)
    assert same_bits(t.local, before), ("the input was overwritten", case)
    if isinstance(target, mc.Layout):
        assert made.layout == target, case
    found = [("function", _whole(made), wanted)]
    if case.number % 3 == 1:
        overwritten = getattr(mc.fft, case.name)(t.copy(), **case.arguments, layout=target, overwrite_x=True)
        assert same_bits(overwritten.local, made.local), ("overwrite_x", case)
    if case.number % 3 == 2 and "orthogonalize" not in case.arguments:
        found += _by_a_plan(case, t, target, wanted)
    assert same_bits(t.local, before), ("the input was overwritten", case)
    return found


def _by_a_plan(case, t, target, wanted):
    given = dict(case.arguments)
    axes, s = given.pop("axis", given.pop("axes", None)), given.pop("n", given.pop("s", None))
    if axes is None and not case.name.endswith("n"):
        axes = (-2, -1) if case.name.endswith("2") else -1
    plan = mc.fft.plan(t.shape, t.dtype, t.layout, target, case.name, axes=axes, s=s, **given)
    str(plan)
    assert (plan.spectrum_shape, plan.spectrum_dtype) == (wanted.shape, wanted.dtype), case
    both = plan.forward([t, t])
    out = mc.empty(plan.spectrum_shape, plan.spectrum_dtype, plan.target)
    assert plan.forward(t, out=out) is out
    before = out.local.copy()
    back = plan.backward(out)
    assert same_bits(out.local, before), ("the spectrum was overwritten", case)
    inverse = getattr(scipy.fft, case.name[1:] if case.name.startswith("i") else f"i{case.name}")
    named = {"axes": axes, "s": plan.transform.lengths} if inverse.__name__.endswith(("2", "n")) else None
    named = named or {"axis": axes, "n": plan.transform.lengths[0]}
    returned = inverse(wanted, **named, **given)
    results = [("plan", _whole(both[0]), wanted), ("plan, second", _whole(both[1]), wanted)]
    return [*results, ("plan, out", _whole(out), wanted), ("backward", _whole(back), returned)]


def _whole(t):
    return mc.relayout(t, mc.Layout.replicated(t.layout.mesh, t.ndim)).local
