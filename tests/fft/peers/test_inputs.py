"""Transforms leave their input as it is."""

from itertools import product

import pytest

pytest.importorskip("scipy.fft")

import meshcomm as mc
from support.fft_cases import array_of, gathered_up_to
from support.sampling import sampled
from support.scipy_fft import same_bits
from support.tensors import on

SPECS = ["x", mc.Cyclic("x", 1), mc.Cyclic("x", 2), mc.Cyclic("x", 4), mc.Cuts("x", (0, 3, 16))]


@pytest.mark.parametrize(("spec", "n"), sampled(product(SPECS, [16, 15, 13, 8, 32])), ids=str)
def test_an_axis_that_stays_sharded_is_not_overwritten(spec, n):
    """Its cyclic blocks are those of a matrix without any copy."""

    def program():
        t = mc.distribute(array_of((16,), "c16"), mc.Layout([spec], mc.create_mesh([("x", 2)])))
        before = t.local.copy()
        for layout in (None, "same"):
            for name in ("fft", "ifft", "irfft"):
                getattr(mc.fft, name)(t, n, layout=layout)
                assert same_bits(t.local, before), (name, layout)

    with gathered_up_to(0):
        on(2, program)
