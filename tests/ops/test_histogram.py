"""Histograms of tensors in layouts of all kinds against NumPy's of the whole arrays."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.errors import CollectiveMismatch, ShapeError
from support.gradient_cases import on
from support.orders import any_layout, any_shape, check, on_a_mesh
from support.reference import on_ranks
from support.sampling import sampled, with_seeds

U = "unsharded"
BINS = [1, 10, 7, np.int64(3), [0, 1, 5, 20], np.array([-3.5, 0, 0, 2.25])]


def numbers(shape, dtype, seed):
    """Numbers whose sums are exact in any order."""
    return (np.random.default_rng(seed).integers(0, 40, shape) - 20 * (dtype[0] not in "u?")).astype(dtype)


def same(found, expected):
    for tensor, array in zip(found, expected, strict=True):
        check(tensor, array)
        assert tensor.layout.is_fully_replicated()


@pytest.mark.filterwarnings("ignore:Converting input from bool")
@pytest.mark.filterwarnings("ignore:invalid value")
@with_seeds(on_a_mesh, sampled(range(60), 7))
def test_histograms(random, mesh, seed):
    for number in range(12):
        shape, dtype = any_shape(random), random.choice(["f8", "f4", "f2", "i8", "i2", "u1", "?"])
        a = numbers(shape, dtype, (seed, number))
        t = mc.distribute(a, any_layout(random, mesh, shape))
        bins, limits = random.choice(BINS), random.choice([None, (-5, 12.5), (3, 3)])
        if mesh.rank is None and limits is None and np.ndim(bins) == 0:
            counts, edges = np.histogram(t, bins)
            assert (counts.shape, edges.shape) == ((bins,), (bins + 1,))
        else:
            same(np.histogram(t, bins, limits), np.histogram(a, bins, limits))
        kind = random.choice(["f8", "i4", "c16"])
        w = numbers(shape, kind, number)
        layout = any_layout(random, mesh, shape)
        for weights in (mc.distribute(w, layout), w):
            if mesh.rank is None:
                np.histogram(t, bins, limits, weights=weights)
            else:
                same(np.histogram(t, bins, limits, None, weights), np.histogram(a, bins, limits, None, w))
        if mesh.rank is not None and a.size:
            same(np.histogram(t, bins, density=True), np.histogram(a, bins, density=True))


@on_ranks(3)
def test_elements_that_are_nowhere():
    layout = Layout(["x"], mc.create_mesh([("x", 3)]))
    a = np.array([np.nan, 1, np.inf, 2, -np.inf, 3, 3])
    t = mc.distribute(a, layout)
    same(np.histogram(t, 3, (0, 3)), np.histogram(a, 3, (0, 3)))
    same(np.histogram(t, [0, 2, np.inf]), np.histogram(a, [0, 2, np.inf]))
    with pytest.raises(ValueError, match="is not finite"):
        np.histogram(t)
    empty = mc.distribute(np.zeros(0), layout)
    same(np.histogram(empty), np.histogram(np.zeros(0)))


@on_ranks(2)
def test_what_histogram_refuses():
    layout = Layout(["x"], mc.create_mesh([("x", 2)]))
    t = mc.distribute(np.arange(5.0), layout)
    with pytest.raises(TypeError, match=r"numpy.histogram: bins='auto' is not supported for DTensors; pass"):
        np.histogram(t, "auto")
    with pytest.raises(ShapeError, match=r"weights have shape \(4,\), but a has \(5,\); they must be equal"):
        np.histogram(t, weights=np.ones(4))
    with pytest.raises(ValueError, match="`bins` must be positive"):
        np.histogram(t, 0)
    with pytest.raises(ValueError, match="must increase monotonically"):
        np.histogram(t, [3, 2, 1])
    with pytest.raises(ValueError, match="max must be larger than min"):
        np.histogram(t, 3, (2, 1))
    with pytest.raises(TypeError):
        np.histogram(t, 2.5)


def test_edges_that_differ_between_ranks():
    def program():
        t = mc.distribute(np.arange(6.0), Layout(["x"], mc.create_mesh([("x", 2)])))
        np.histogram(t, [0, 2 + t.mesh.rank])

    with pytest.raises(CollectiveMismatch, match="a plain array must be the same on every rank"):
        on(2, program)
