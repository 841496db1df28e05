"""What is true of every Fourier transform: for random tensors, layouts, axes and norms, on simulated ranks."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from support.fft_cases import array_of, gathered_up_to
from support.sampling import sampled
from support.tensors import layout_of, on_a_mesh

ATOL = 1e-11


def tensor(random, mesh, shape, dtype="c16", seed=0):
    return mc.distribute(array_of(shape, dtype, seed), layout_of(random, mesh, shape))


def drawn(random):
    """A shape and some of its axes."""
    ndim = random.choice([1, 1, 2, 3])
    shape = tuple(random.randint(1, {1: 60, 2: 13, 3: 7}[ndim]) for _ in range(ndim))
    return shape, tuple(random.sample(range(ndim), random.randint(1, ndim)))


def linear(random, mesh):
    """The transform of a sum is the sum of the transforms."""
    shape, axes = drawn(random)
    a, b = tensor(random, mesh, shape), tensor(random, mesh, shape, seed=1)
    together = mc.fft.fftn(2 * a - 3j * b, axes=axes)
    apart = 2 * mc.fft.fftn(a, axes=axes) - 3j * mc.fft.fftn(b, axes=axes)
    assert np.allclose(together.to_numpy(), apart.to_numpy(), rtol=0, atol=ATOL)


def parseval(random, mesh):
    """With norm="ortho" the transform keeps the sum of the squares."""
    shape, axes = drawn(random)
    a = tensor(random, mesh, shape)
    spectrum = mc.fft.fftn(a, axes=axes, norm="ortho").to_numpy()
    assert np.isclose(np.linalg.norm(spectrum), np.linalg.norm(a.to_numpy()), rtol=1e-13)


def parseval_of_a_half(random, mesh):
    """Elements of the half of a spectrum count twice, but for the first one, and the middle one of an even length."""
    shape, axes = drawn(random)
    a = tensor(random, mesh, shape, "f8")
    squares = np.abs(np.moveaxis(mc.fft.rfftn(a, axes=axes, norm="ortho").to_numpy(), axes[-1], -1)) ** 2
    n = shape[axes[-1]]
    weights = np.where((np.arange(n // 2 + 1) == 0) | (2 * np.arange(n // 2 + 1) == n), 1, 2)
    assert np.isclose((squares * weights).sum(), (a.to_numpy() ** 2).sum(), rtol=1e-12)


def shift(random, mesh):
    """A shift of the array turns the phases of the spectrum."""
    shape, axes = drawn(random)
    axis, by = axes[0], random.randint(-5, 5)
    a = tensor(random, mesh, shape)
    spectrum = mc.fft.fft(a, axis=axis, layout="same")
    (k,) = mc.fft.frequencies(spectrum, axis)
    turned = spectrum * np.exp(-2j * np.pi * by * k)
    moved = mc.fft.fft(np.roll(a, by, axis), axis=axis)
    assert np.allclose(moved.to_numpy(), turned.to_numpy(), rtol=0, atol=ATOL)


def convolution(random, mesh):
    """The product of spectra is the spectrum of the circular convolution."""
    n, m = random.randint(1, 30), random.randint(1, 4)
    a, b = tensor(random, mesh, (n, m)), tensor(random, mesh, (n, m), seed=1)
    product = mc.fft.fft(a, axis=0) * mc.fft.fft(b, axis=0)
    x, y = a.to_numpy(), b.to_numpy()
    by_definition = [sum(x[j] * y[(i - j) % n] for j in range(n)) for i in range(n)]
    assert np.allclose(mc.fft.ifft(product, axis=0).to_numpy(), by_definition, rtol=0, atol=ATOL)


def reversal(random, mesh):
    """Two transforms reverse the array in time."""
    shape, axes = drawn(random)
    a = tensor(random, mesh, shape)
    twice = mc.fft.fftn(mc.fft.fftn(a, axes=axes, norm="ortho"), axes=axes, norm="ortho").to_numpy()
    reversed_ = np.roll(np.flip(a.to_numpy(), axes), [1] * len(axes), axes)
    assert np.allclose(twice, reversed_, rtol=0, atol=ATOL)


def derivative(random, mesh):
    """The derivative of waves, by wave numbers that are sharded as the spectrum is."""
    n, m = random.randint(8, 20), random.randint(8, 20)
    x, y = np.meshgrid(2 * np.pi * np.arange(n) / n, 2 * np.pi * np.arange(m) / m, indexing="ij")
    field = np.sin(2 * x) * np.cos(3 * y)
    t_hat = mc.fft.rfftn(mc.distribute(field, layout_of(random, mesh, (n, m))))
    kx, ky = mc.fft.frequencies(t_hat, d=(1 / n, 1 / m), s=(n, m), kind="rfftn")
    for k, wanted in ((kx, 2 * np.cos(2 * x) * np.cos(3 * y)), (ky, -3 * np.sin(2 * x) * np.sin(3 * y))):
        found = mc.fft.irfftn(1j * k * t_hat, s=(n, m)).to_numpy()
        assert np.allclose(found, wanted, rtol=0, atol=ATOL)


LAWS = [linear, parseval, parseval_of_a_half, shift, convolution, reversal, derivative]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_laws_of_fourier_transforms(law):
    for seed in sampled(range(60), 12):
        with gathered_up_to(Random(seed).choice([0, 2**20])):
            on_a_mesh(seed, law)
