"""Frequencies, shorter and longer spectra, and axes that come twice, against NumPy and SciPy on whole arrays."""

from itertools import product

import numpy as np
import pytest

pytest.importorskip("scipy.fft")

import scipy.fft

import meshcomm as mc
from support.fft_cases import array_of
from support.reference import on_ranks
from support.tensors import on


@on_ranks(2)
def test_frequencies_are_those_of_scipy():
    layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    for n, d in product(range(1, 12), (1.0, 0.3)):
        for name in ("fftfreq", "rfftfreq"):
            found = getattr(mc.fft, name)(n, d, layout=layout).to_numpy()
            assert np.array_equal(found, getattr(scipy.fft, name)(n, d)), (name, n)
        half = mc.zeros((n // 2 + 1,), "c16", layout)
        (found,) = mc.fft.frequencies(half, d=d, s=n, kind="rfftn")
        assert np.array_equal(found.to_numpy(), scipy.fft.rfftfreq(n, d)), n


GRIDS = [((6, 8), (4, 6)), ((7, 9), (5, 6)), ((6, 8), (5, 5)), ((6, 8), (3, 4)), ((6, 8), (6, 4)), ((7, 8), (7, 2))]


@pytest.mark.parametrize(("before", "after"), GRIDS)
@on_ranks(2)
def test_a_shorter_half_of_a_spectrum_is_the_half_of_the_shorter_spectrum(before, after):
    """The half has one sign of the highest frequency of an even grid: the other one belongs to it, too."""
    layout = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    t = mc.distribute(array_of(before, "f8"), layout)
    half = mc.fft.crop_spectrum(mc.fft.rfftn(t), after, kind="rfftn", was=before)
    whole = mc.fft.crop_spectrum(mc.fft.fftn(t), after).to_numpy()
    assert np.allclose(half.to_numpy(), whole[:, : after[1] // 2 + 1], rtol=0, atol=1e-13)
    field = mc.fft.irfftn(half, s=after)
    assert np.allclose(field.to_numpy(), np.fft.ifftn(whole), rtol=0, atol=1e-13)
    longer = mc.fft.pad_spectrum(half, before, kind="rfftn", was=after)
    again = mc.fft.crop_spectrum(longer, after, kind="rfftn", was=before)
    assert np.allclose(again.to_numpy(), half.to_numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (1, 0, 1), (0, 1, 0), (-1, 1)])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_an_axis_that_comes_twice_is_transformed_twice_as_by_numpy(name, axes):
    function = getattr(np.fft, name)
    array = array_of((6, 8), "f8" if name == "rfftn" else "c16")

    def program():
        t = mc.distribute(array, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 3)])))
        return function(t, axes=axes).to_numpy()

    wanted = function(array, axes=axes)
    for found in on(3, program):
        assert found.shape == wanted.shape
        assert np.allclose(found, wanted, rtol=0, atol=1e-12)
