"""Medians, quantiles and percentiles: errors and warnings on all ranks; `test_numpy` compares them with NumPy."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.errors import CollectiveMismatch, ShapeError
from support.gradient_cases import on
from support.orders import check
from support.reference import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN

U = "unsharded"


@on_ranks(2)
def test_what_they_refuse():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(np.arange(6.0).reshape(2, 3), Layout([U, "x"], mesh))
    for function, args in ((np.median, ()), (np.nanmedian, ()), (np.quantile, (0.5,)), (np.nanpercentile, (5,))):
        name = function.__name__
        with pytest.raises(ShapeError, match="axis 2 is out of range for a tensor with 2 axes"):
            function(t, *args, axis=2)
        with pytest.raises(ShapeError, match=rf"numpy.{name}: out has shape \(2, 3\), but the result has \(\)"):
            function(t, *args, out=t)
    with pytest.raises(ValueError, match="Only method 'inverted_cdf' supports weights"):
        np.quantile(t, 0.5, weights=t)
    with pytest.raises(ValueError, match="Quantiles must be in the range"):
        np.quantile(t, 1.5)
    with pytest.raises(ValueError, match="Percentiles must be in the range"):
        np.percentile(t, -1)
    with pytest.raises(ValueError, match="median_unbiased"):  # NumPy names its methods
        np.quantile(t, 0.5, method="any")
    with pytest.raises(TypeError):
        np.quantile(t + 1j, 0.5)
    with pytest.raises(TypeError):
        np.median(mc.distribute(np.array(["a", "b"]), Layout(["x"], mesh)))


@on_ranks(2)
def test_weights_may_be_zero_but_not_negative():
    layout = Layout(["x"], mc.create_mesh([("x", 2)]))
    a, weights = np.array([3.0, 1, 4, 1, 5]), np.array([0.0, 2, 0, 1, 1])
    t, how = mc.distribute(a, layout), {"method": "inverted_cdf"}
    found = np.quantile(t, [0.5, 0.9], weights=mc.distribute(weights, layout), **how)
    check(found, np.quantile(a, [0.5, 0.9], weights=weights, **how))
    with pytest.raises(ValueError, match="non-negative"):
        np.quantile(t, 0.5, weights=mc.distribute(-weights, layout), **how)


def test_levels_that_differ_between_ranks():
    def program():
        t = mc.distribute(np.arange(6.0), Layout(["x"], mc.create_mesh([("x", 2)])))
        np.quantile(t, [0.1, 0.2 + 0.1 * t.mesh.rank])

    with pytest.raises(CollectiveMismatch, match="a plain array must be the same on every rank"):
        on(2, program)


def test_a_warning_that_is_an_error_is_one_on_all_ranks():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        a = np.arange(24.0).reshape(4, 6)
        a[3] = np.nan  # one rank has this row whole
        t = mc.distribute(a, Layout([U, "x"], mesh))
        with pytest.raises(RuntimeWarning, match="All-NaN slice"):
            np.nanmedian(t, axis=1)
        check(np.nanmedian(t, axis=0), np.nanmedian(a, axis=0))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on(2, program)
