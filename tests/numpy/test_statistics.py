"""Statistics of tensors: what devices agree on, bits, warnings, errors; `test_numpy` compares them with NumPy."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from support.numpy_law import check
from support.reference import on_ranks
from support.tensors import on

U = "unsharded"


@on_ranks(3)
def test_differences_are_cut_as_the_tensor():
    for spec, cut in [("x", mc.Cuts("x", (0, 2, 5, 7))), (mc.Cyclic("x", 1), mc.Cyclic("x", 1))]:
        assert np.diff(in_rows(np.arange(8), spec)).layout.sharding_specs == [cut]


# -- what devices agree on --------------------------------------------------------------------------------------------


def in_rows(whole, spec="x", size=3):
    return mc.distribute(whole, Layout([spec] + [U] * (np.ndim(whole) - 1), mc.create_mesh([("x", size)])))


def test_variance_where_the_mean_is_large():
    def program():
        whole = 1e9 + np.random.default_rng(0).normal(size=3000)
        found = in_rows(whole).var().item()
        assert abs(found - np.var(whole)) < 1e-9, "a sum of squares has no digit of this"
        return found

    assert len(set(on(3, program))) == 1


@on_ranks(3)
def test_variance_of_blocks_by_intervals():
    """Blocks beyond the cache are read once, in intervals."""
    for dtype in ("f4", "f8", "c16", "i4"):
        whole = (np.random.default_rng(0).normal(size=(3, 200_001)) * 100 + 50).astype(dtype)
        tensor = in_rows(whole)
        check(tensor.var(ddof=1), whole.var(ddof=1))
        check(tensor.std(keepdims=True), whole.std(keepdims=True))
        if dtype != "i4":
            whole[1, 1000:190_000] = np.nan  # several intervals have nothing else
            tensor = in_rows(whole)
            check(np.nanvar(tensor), np.nanvar(whole))
            check(np.nanmean(tensor), np.nanmean(whole))


@on_ranks(2)
def test_one_device_has_the_bits_of_numpy():
    rng = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8", "i4"):
        whole = (rng.normal(size=(5, 77)) * 10).astype(dtype)
        for size in (1, 2):
            tensor = mc.distribute(whole, Layout(["x", U], mc.create_mesh([("x", size)], devices=range(size))))
            if tensor.local is None:
                continue
            for name in ("sum", "mean", "var", "std", "cumsum", "norm", "nanmean", "nanstd"):
                function = np.linalg.norm if name == "norm" else getattr(np, name)
                for axis in (1, *([0] if size == 1 else [])):
                    found = function(tensor, axis=axis).local
                    expected = function(whole, axis=axis)
                    if size == 2:
                        expected = np.array_split(expected, 2)[tensor.mesh.rank]
                    assert found.tobytes() == expected.tobytes(), (name, dtype, size, axis)


def test_bits_are_the_same_on_all_devices():
    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 3)])
        whole = np.random.default_rng(1).normal(size=(11, 7)).astype("f4")
        tensor = mc.distribute(whole, Layout(["x", "y"], mesh))
        found = [np.sum(tensor), np.std(tensor), np.nanvar(tensor)]
        found += [mc.distribute(whole, Layout(specs, mesh)).sum() for specs in (["x", U], [U, ("y", "x")])]
        found.append(mc.einsum("ij,ij", mc.distribute(whole, Layout([U, "y"], mesh)), tensor))
        return [each.local.tobytes() for each in found]

    results = on(6, program)
    assert all(result == results[0] for result in results)


@on_ranks(3)
def test_ties_are_found_first_in_the_global_array():
    for spec in ("x", mc.Cyclic("x", 1), mc.Cyclic("x", 2, 1), mc.Cuts("x", (0, 0, 7, 7))):
        for whole, index in [
            ([1, 5, 2, 5, 5, 0, 5], 1),
            ([np.nan, 5, np.nan, 9, 9, 0, 5], 0),
            ([1, np.inf, 2, 5, np.nan, 0, np.nan], 4),
            ([0.0, -0.0, 0.0, -0.0, 0.0, 0.0, 0.0], 0),
        ]:
            tensor = in_rows(np.array(whole), spec)
            assert tensor.argmax().item() == index == np.argmax(whole)
            assert tensor.argmin().item() == np.argmin(whole)


@on_ranks(3)
def test_nan_alone_is_an_error_on_all_ranks():
    """Only the rank that holds the second row can see it; ranks of the mesh raise alike."""
    whole = np.array([[1.0, 2], [np.nan, np.nan], [3, np.nan]])
    for spec in ("x", U):
        tensor = in_rows(whole, spec)
        for function in (np.nanargmax, np.nanargmin):
            for _ in range(2):
                with pytest.raises(ValueError, match="All-NaN slice"):
                    function(tensor, axis=1)
            assert function(tensor, axis=0).to_numpy().tolist() == function(whole, axis=0).tolist()
    with pytest.raises(ValueError, match="All-NaN slice"):
        np.nanargmax(in_rows(np.full(5, np.nan)))


@on_ranks(3)
def test_warnings_are_those_of_numpy():
    whole = np.array([[1.0, np.nan], [2, np.nan], [3, np.nan]])
    tensor = in_rows(whole)
    # Simulated ranks are threads, and what catches warnings is of the whole process: they are errors here.
    for call, text in [
        (lambda: np.nanmean(tensor, axis=0), "Mean of empty slice"),
        (lambda: np.nanmax(tensor, axis=0), "All-NaN"),
        (lambda: np.nanmin(tensor, axis=0), "All-NaN"),
        (lambda: np.nanstd(tensor, axis=0), "Degrees of freedom"),
        (lambda: np.var(tensor, ddof=6), "Degrees of freedom"),
    ]:
        with pytest.raises(RuntimeWarning, match=text):
            call()
    assert tensor.sum(axis=1).shape == (3,), "ranks go on alike"


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


@on_ranks(3)
def test_a_number_that_overflows_on_one_rank_stops_none():
    whole = np.array([1e308, 1e308, 1.0, 2.0, 3.0, np.inf])
    tensor = in_rows(whole)
    with np.errstate(all="raise"):
        assert tensor.sum().item() == np.inf
        assert np.isnan(tensor.var().item())
        tensor.cumsum()


# -- memory and arguments ---------------------------------------------------------------------------------------------


@on_ranks(3)
def test_memory_of_blocks_that_overlap():
    t = in_rows(np.arange(6.0).reshape(3, 2))
    for function in (np.may_share_memory, np.shares_memory):
        assert function(t, t[1:]) is function(t.T, t) is True
        assert function(t, t + 1) is function(np.arange(3), t) is False
        assert function(t, t.local) is True
    assert not np.shares_memory(t[:, 0], t[:, 1])
    copy = np.asarray(t)  # a read-only copy: libraries ask whether to copy it before they write
    assert np.may_share_memory(copy, t) is np.may_share_memory(t, copy) is True
    assert np.shares_memory(copy, t) is np.may_share_memory(np.array(t), t) is False


@on_ranks(3)
def test_tensors_as_tolerances_weights_and_fill_values():
    t = in_rows(np.arange(6.0).reshape(3, 2))
    array = t.to_numpy()
    one = t.sum() / 15
    check(np.isclose(t, t + 0.5, atol=one), np.isclose(array, array + 0.5, atol=1.0))
    check(np.isclose(t, t + 1, rtol=t / 4), np.isclose(array, array + 1, rtol=array / 4))
    assert np.allclose(t, t + 0.5, rtol=0, atol=one) is True
    assert float(np.average(array, weights=t)) == np.average(array, weights=array)
    assert mc.full((2,), one, layout=mc.Layout([mc.UNSHARDED], t.mesh)).to_numpy().tolist() == [1.0, 1.0]
    assert np.full_like(t, one).to_numpy().tolist() == np.ones((3, 2)).tolist()


@on_ranks(3)
def test_numpys_defaults_may_be_passed():
    t = in_rows(np.arange(6.0).reshape(3, 2))
    check(np.sum(t, where=True, out=None), 15.0)
    check(np.var(t, correction=1), np.var(np.arange(6.0), ddof=1))
