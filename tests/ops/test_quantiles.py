"""Medians, quantiles and percentiles of tensors in layouts of all kinds against NumPy's of the whole arrays."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.errors import CollectiveMismatch, ShapeError
from support.gradient_cases import on
from support.orders import any_layout, any_shape, check, on_a_mesh, values
from support.reference import on_ranks
from support.sampling import sampled, with_seeds

pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy has to say about NaN

U = "unsharded"
SEEDS = sampled(range(60), 7)
DTYPES = ["f8", "f8", "f4", "f2", "i8", "i4", "u1", "g"]
LEVELS = [0, 1, 0.5, 0.25, 0.99, 1 / 3, np.float64(0.7), np.float32(0.3), [0.1, 0.5], np.array([[1.0, 0.0, 0.7]])]


def attempt(function, *args, **options):
    """What a function returns or raises."""
    try:
        return function(*args, **options)
    except Exception as error:
        return error


def compare(found, expected):
    if isinstance(expected, Exception):
        if getattr(found, "size", 1) == 0:  # NumPy fails for some empty arrays
            return
        assert isinstance(found, Exception), f"{expected!r} was expected"
        assert isinstance(found, ValueError | type(expected)), repr(found)
        return
    if isinstance(found, Exception):
        raise found
    if np.isnan(expected).all():  # then NumPy's dtype is that of the array; that of a tensor must not depend on values
        expected = np.asarray(expected, found.dtype)
    check(found, expected)


def expected_of(function, a, level, **options):
    """What NumPy returns or raises; of nothing, its nanquantile forgets that there are several levels."""
    found = attempt(function, a, level, **options)
    if a.size or isinstance(found, Exception) or "nan" not in function.__name__:
        return found
    return np.broadcast_to(found, (*np.shape(level), *np.shape(found))).copy()


def random_axis(random, ndim):
    return random.choice([None, -1, *range(ndim), tuple(random.sample(range(ndim), random.randint(1, ndim)))])


@with_seeds(on_a_mesh, SEEDS)
def test_medians(random, mesh, seed):
    for number in range(12):
        shape, dtype = any_shape(random), random.choice([*DTYPES, "c16", "?"])
        a = values(shape, dtype, seed=(seed, number))
        t = mc.distribute(a, any_layout(random, mesh, shape))
        axis, keepdims = random_axis(random, len(shape)), random.random() < 0.5
        for function in (np.median, np.nanmedian):
            found = attempt(function, t, axis=axis, keepdims=keepdims)
            compare(found, attempt(function, a, axis=axis, keepdims=keepdims))
        if not keepdims and isinstance(axis, int):
            kept = [names for number, names in enumerate(t.layout.axes) if number != axis % len(shape)]
            assert list(found.layout.axes) == kept


@with_seeds(on_a_mesh, SEEDS)
def test_quantiles(random, mesh, seed):
    for number in range(12):
        shape, dtype = any_shape(random), random.choice(DTYPES)
        a = values(shape, dtype, seed=(seed, number))
        t = mc.distribute(a, any_layout(random, mesh, shape))
        axis, keepdims = random_axis(random, len(shape)), random.random() < 0.5
        level, method = random.choice(LEVELS), random.choice(["linear"] * 3 + ["nearest", "hazen", "lower"])
        percent = level * 100 if np.isscalar(level) else np.multiply(level, 100)
        options = {"axis": axis, "keepdims": keepdims, "method": method}
        for function in (np.quantile, np.nanquantile):
            compare(attempt(function, t, level, **options), expected_of(function, a, level, **options))
        for function in (np.percentile, np.nanpercentile):
            compare(attempt(function, t, percent, **options), expected_of(function, a, percent, **options))


@pytest.mark.parametrize(("ranks", "size"), sampled([(2, 1), (3, 2), (2, 3), (3, 10), (4, 2001)]))
def test_statistics_of_a_sharded_line(ranks, size):
    def program():
        mesh = mc.create_mesh([("x", ranks)])
        for dtype in ("f8", "f4", "i4"):
            for a in (values(size, dtype, seed=size), values(size, dtype, seed=1, few=True)):
                t = mc.distribute(a, Layout([mc.Cyclic("x", 2)], mesh))
                compare(attempt(np.median, t), attempt(np.median, a))
                compare(attempt(np.nanmedian, t), attempt(np.nanmedian, a))
                for level in LEVELS:
                    compare(attempt(np.quantile, t, level), attempt(np.quantile, a, level))
                    compare(attempt(np.nanquantile, t, level), attempt(np.nanquantile, a, level))
        nothing = mc.distribute(np.full(size, np.nan), Layout(["x"], mesh))
        assert np.isnan(attempt(np.median, nothing).item())
        assert np.isnan(attempt(np.nanmedian, nothing).item())
        assert np.isnan(attempt(np.nanquantile, nothing, [0.2, 0.5]).local).all()

    on(ranks, program)


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
