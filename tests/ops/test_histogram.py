"""Histograms of tensors are replicated, and what they refuse; `test_numpy` compares them with NumPy."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.errors import CollectiveMismatch, ShapeError
from support.gradient_cases import on
from support.orders import check
from support.reference import on_ranks

U = "unsharded"


def same(found, expected):
    for tensor, array in zip(found, expected, strict=True):
        check(tensor, array)
        assert tensor.layout.is_fully_replicated()


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
