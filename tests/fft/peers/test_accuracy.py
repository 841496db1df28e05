"""How accurate transforms are: the error against long double, relative in the norm, in units of the precision.

Errors of rounding grow with the logarithm of the length. SciPy's are below `limit` here. A convolution makes three
transforms of an axis that is two to four times as long, so its errors may be three times as large.
"""

from itertools import product
from math import prod

import numpy as np
import pytest

pytest.importorskip("scipy.fft")

import scipy.fft

import meshcomm as mc
from support.fft_cases import array_of, gathered_up_to
from support.sampling import sampled
from support.tensors import on

WIDER = {"f4": "g", "f8": "g", "c8": "G", "c16": "G"}
SHAPES = [(64, 48), (31, 37), (16, 15, 14), (7, 11, 13)]
COMPOSITE, PRIME = [4096, 3003, 1001, 2310, 961], [1009, 4099, 37, 2 * 503]


def error_of(found, exact):
    """The error in units of the precision of what was found."""
    difference = np.linalg.norm(np.ravel(found.astype(exact.dtype) - exact))
    return float(difference / np.linalg.norm(np.ravel(exact)) / np.finfo(found.dtype).eps)


def errors(ranks, name, array, specs=None, **arguments):
    """The error of a transform over so many ranks, and that of SciPy."""
    exact = getattr(scipy.fft, name)(array.astype(WIDER[array.dtype.str[1:]]), **arguments)

    def program():
        layout = mc.Layout(specs or ["x", *[mc.UNSHARDED] * (array.ndim - 1)], mc.create_mesh([("x", ranks)]))
        return getattr(mc.fft, name)(mc.distribute(array, layout), **arguments).to_numpy()

    return error_of(on(ranks, program)[-1], exact), error_of(getattr(scipy.fft, name)(array, **arguments), exact)


def limit(n):
    return 0.5 + 0.15 * np.log2(n)


SOME_RANKS = [2, 3, 4]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_transforms_over_several_axes(dtype):
    names = ["fftn", "ifftn", "irfftn", "hfftn", "dctn", "dstn"] + ["rfftn", "ihfftn"] * (dtype[0] == "f")
    for shape, name, ranks in sampled(product(SHAPES, names, SOME_RANKS), 32):
        found, scipys = errors(ranks, name, array_of(shape, dtype))
        assert found <= limit(prod(shape)), (name, shape, ranks, found, scipys)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize(("lengths", "times"), [(COMPOSITE, 1), (PRIME, 3)], ids=["four steps", "convolution"])
def test_an_axis_that_stays_sharded(dtype, lengths, times):
    names = ["fft", "ifft", "irfft", "hfft"] + ["rfft", "ihfft"] * (dtype[0] == "f")
    with gathered_up_to(0):
        for n, name, ranks in sampled(product(lengths, names, SOME_RANKS), 24):
            found, scipys = errors(ranks, name, array_of((n,), dtype), n=n)
            assert found <= times * limit(n), (name, n, ranks, found, scipys)
