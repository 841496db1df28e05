"""What tests of single calls do not see: earlier calls, memory that is shared, byte orders, and ranks that differ."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core._tuning import WHOLE_ARRAY
from support.reference import on_ranks

U = "unsharded"


on_two = on_ranks(2, mesh=lambda: mc.create_mesh([("x", 2)]))


def sharded(array, mesh):
    array = np.asarray(array)
    return mc.distribute(array, Layout(["x", *[U] * (array.ndim - 1)], mesh))


@on_two
def test_a_mean_does_not_depend_on_the_mean_before(mesh):
    t = sharded(np.full(2000, 100, "f2"), mesh)
    assert float(np.mean(t, dtype="f2")) == np.inf  # 200,000 is no float16
    assert float(np.mean(t)) == 100
    assert float(np.mean(t, dtype="f2")) == np.inf


DIFFERENT = [
    lambda t, r: np.sum(t, dtype=["f8", "i8"][r]),
    lambda t, r: np.take(t, r),
    lambda t, r: t[r],
    lambda t, r: t.__setitem__(slice(r, r + 2), t[4:6]),
    lambda t, r: np.histogram(t, 2, (0, 5 + r)),
    lambda t, r: np.histogram(t, 2, density=bool(r)),
    lambda t, r: np.quantile(t, 0.5 + r / 4),
    lambda t, r: np.quantile(t.reshape(4, 2), 0.5 + r / 4, axis=0),
    lambda t, r: np.linalg.norm(t.reshape(4, 2), [1, -1][r]),
    lambda t, r: np.roll(t, r + 1),
    lambda t, r: np.std(t, ddof=r),
]


@pytest.mark.parametrize("call", DIFFERENT, ids=range(len(DIFFERENT)))
@on_two
def test_ranks_that_differ_in_an_argument(call, mesh):
    t = sharded(np.arange(8.0), mesh)
    with pytest.raises(mc.CollectiveMismatch):
        call(t, mesh.rank)


@on_two
def test_byte_orders(mesh):
    x = np.array([[1.0, 2], [3, 4]], ">f8")
    for function in (np.tril, np.triu):
        found = function(sharded(x, mesh))
        assert found.dtype == found.local.dtype == function(x).dtype
        np.testing.assert_array_equal(found.to_numpy(), function(x))
    point = mc.distribute(np.array(5, ">i2"), Layout([], mesh))
    assert int(np.flip(point).to_numpy()) == 5
    assert np.flip(point).local.dtype == np.dtype(">i2")


@on_two
def test_real_and_imaginary_numbers_are_views(mesh):
    t = sharded(np.arange(3) + 1j, mesh)
    np.real(t)[...] = 7
    t.imag[...] += 1
    np.testing.assert_array_equal(t.to_numpy(), np.full(3, 7 + 2j))
    for zeros in (np.imag(sharded(np.arange(3), mesh)), np.arange(3).imag):
        with pytest.raises(ValueError, match="assignment destination is read-only"):
            zeros[...] = 7
    real = sharded(np.arange(3), mesh)
    assert real.real is real


@on_two
def test_an_overflow_stops_no_rank_before_an_exchange(mesh):
    a = np.array([[1e308, 1e10]])
    with np.errstate(all="raise"):
        assert np.isinf((a @ sharded([[1e308, 1], [1, 1]], mesh)).to_numpy()).any()
        t = sharded([np.inf, 1e308, 1, 1], mesh)
        assert not np.allclose(t, [np.inf, -1e308, 1, 1])
        assert np.isinf(np.average(t, weights=[1.0, 10, 1, 1]).to_numpy())


@on_two
def test_means_of_durations(mesh):
    x = np.arange(6).astype("m8[s]")
    found = np.mean(sharded(x, mesh))
    assert found.dtype == x.dtype
    assert found.to_numpy() == np.mean(x)


@on_two
def test_an_axis_that_is_not_there_is_numpys_error(mesh):
    t = sharded(np.arange(8.0), mesh)
    for error in (np.exceptions.AxisError, IndexError, ValueError, mc.ShapeError, mc.AxisError):
        with pytest.raises(error, match="axis 1 is out of range for a tensor with 1 axis"):
            t.sum(1)


@on_two
def test_the_nearest_function_is_named(mesh):
    t = sharded(np.eye(4), mesh)
    for call, text in [
        (lambda: np.savetxt("x", t), r"numpy.savetxt is not defined for DTensors: mc.save\(path, t\) writes it"),
        (lambda: np.lib.scimath.sqrt(t), r"sqrt is not defined for DTensors: use t.local"),
    ]:
        with pytest.raises(TypeError, match=text):
            call()


@on_two
def test_functions_that_make_arrays_name_the_module_that_takes_tensors(mesh):
    scipy_fft = pytest.importorskip("scipy.fft")
    with pytest.raises(TypeError, match=r"meshcomm\.fft has the functions of scipy\.fft; or use t\.local"):
        scipy_fft.fft(mc.empty(WHOLE_ARRAY + 1, "i1", mc.Layout(["x"], mesh)))
    assert np.array_equal(scipy_fft.fft(sharded(np.eye(4), mesh)), scipy_fft.fft(np.eye(4)))  # it is gathered


@on_two
def test_a_reshape_without_a_copy_fails_on_all_ranks_or_on_none(mesh):
    t = sharded(np.arange(12.0).reshape(3, 4), mesh)
    assert np.shares_memory(np.reshape(t, 12, copy=False).local, t.local)
    with pytest.raises(ValueError, match="copy=False, but the elements are not next to each other"):
        np.reshape(t[:, 1:3], 6, copy=False)  # the block of one rank is one row, without gaps
