"""Statistics, scans, norms and comparisons of tensors against NumPy on the whole arrays, in layouts of all kinds."""

from math import inf, prod
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from meshcomm._arguments import normalised_axes
from support.gradient_cases import on
from support.random_cases import of_kinds, random_layout
from support.reference import block_of, on_ranks
from support.sampling import sampled, with_seeds

U = "unsharded"
SIZES = [(1,), (2,), (3,), (2, 2), (2, 3), (2, 1, 2)]
SEEDS = sampled(range(60), 5)
DTYPES = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", ">i2"]
REDUCTIONS = ["sum", "prod", "mean", "any", "all", "max", "min", "ptp", "count_nonzero", "var", "std"]
WITHOUT_NAN = ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin"]
LOCATING = ["argmax", "argmin"]
SCANS = ["cumsum", "cumprod", "nancumsum", "nancumprod"]
TOLERANCES = {np.dtype("f2"): 2e-2, np.dtype("f4"): 1e-4, np.dtype("c8"): 1e-4}
EMPTY = ["ptp", "max", "min", "argmax", "argmin", "nanmax", "nanmin", "nanargmax", "nanargmin"]


def on_a_mesh(seed, program):
    """Run a program with this seed on a mesh, sometimes with a rank outside of it."""
    sizes = SIZES[seed % len(SIZES)]

    def on_rank():
        with np.errstate(all="ignore"):
            devices = range(prod(sizes))
            program(Random(seed), mc.create_mesh(list(zip("xyz", sizes, strict=False)), devices=list(devices)))

    on(prod(sizes) + seed % 2, on_rank)


def shape_of(random, least=0):
    return tuple(max(least, random.choice([0, 1, 2, 3, 5, 7, 11])) for _ in range(random.randint(0, 3)))


def values(random, shape, dtype):
    """Small numbers with many ties; of floats some are not finite, and some are -0.0."""
    rng = np.random.default_rng(random.randrange(1 << 30))
    whole = rng.integers(-3, 4, shape).astype("f8") / random.choice([1, 4])
    special = random.choice([[], [np.nan], [inf], [-inf, np.nan], [-0.0], [inf, -inf, np.nan]])
    if special and np.dtype(dtype).kind in "fc":
        if np.dtype(dtype).kind == "c":  # products of complex infinities depend on the order
            special = [np.nan, -0.0]
        whole = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), whole)
    if np.dtype(dtype).kind in "u?":
        whole = np.abs(whole)
    if np.dtype(dtype).kind == "c":
        whole = whole + 1j * rng.integers(-1, 2, shape)
    return np.asarray(whole).astype(dtype)


def tensor_of(random, mesh, whole):
    layout = of_kinds(random, random_layout(random, mesh, whole.ndim), whole.shape)
    return mc.distribute(whole, Layout(layout.axes, mesh))


def pairs(random, mesh, seed, count, least=0):
    """Yield so many arrays, of all dtypes in turn, and tensors of the same elements."""
    for number in range(count):
        whole = values(random, shape_of(random, least), DTYPES[(seed + number) % len(DTYPES)])
        yield whole, tensor_of(random, mesh, whole)


def outcome(function, *args, **kwargs):
    """What a call returns, or the class of what it raises."""
    try:
        return function(*args, **kwargs)
    except (ValueError, TypeError) as error:
        return ValueError if isinstance(error, ValueError) else type(error)


def check(tensor, expected, rtol=1e-10):
    """Compare the block of this rank with the definition of its layout."""
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype.newbyteorder("="))
    if tensor.mesh.rank is None:
        assert tensor.local is None
        return
    block = block_of(expected, tensor.layout, tensor.mesh.rank)
    assert type(tensor.local) is np.ndarray
    assert tensor.local.flags.c_contiguous
    rtol = TOLERANCES.get(expected.dtype, rtol)
    np.testing.assert_allclose(tensor.local, block, rtol=rtol, atol=rtol)
    assert tensor.local.shape == block.shape


def compared(name, tensor, whole, **options):
    function = np.linalg.norm if name == "norm" else getattr(np, name)
    expected = outcome(function, whole, **options)
    found = outcome(function, tensor, **options)
    about = f"{name} of {whole.shape} {whole.dtype} in {tensor.layout.sharding_specs}, {options}"
    if isinstance(expected, type):
        outside = tensor.mesh.rank is None and name.startswith("nanarg")
        assert outside or found is expected, f"{about}: {found}, not {expected}\n{whole}"
        return None
    assert not isinstance(found, type), f"{about}: {found}"
    try:
        check(found, expected)
    except AssertionError as error:
        raise AssertionError(f"{about}\n{whole!r}\n{error}") from None
    return found


def axes_of(random, ndim):
    several = tuple(random.sample(range(ndim), random.randint(0, ndim)))
    return [None, several, *([random.randrange(-ndim, ndim)] if ndim else [])]


def axis_of(random, ndim):
    return random.randrange(-ndim, ndim) if ndim else None


def reductions(random, tensor, whole):
    for name in (*REDUCTIONS, *WITHOUT_NAN):
        for axis in axes_of(random, whole.ndim):
            keepdims = random.random() < 0.5
            found = compared(name, tensor, whole, axis=axis, keepdims=keepdims)
            if found is not None:
                gone = normalised_axes(axis, whole.ndim)
                kept = [names for i, names in enumerate(tensor.layout.axes) if i not in gone]
                assert [names for i, names in enumerate(found.layout.axes) if not (keepdims and i in gone)] == kept
    for name in ("var", "std", "nanvar", "nanstd"):
        compared(name, tensor, whole, ddof=random.choice([1, 2, 0.5]))


def locating(random, tensor, whole):
    for name in ("argmax", "argmin", "nanargmax", "nanargmin"):
        for axis in {None, axis_of(random, whole.ndim)}:
            compared(name, tensor, whole, axis=axis, keepdims=random.random() < 0.5)


def scans(random, tensor, whole):
    for name in SCANS:
        axis = axis_of(random, whole.ndim)
        found = compared(name, tensor, whole, axis=axis)
        assert whole.ndim == 0 or found.layout == tensor.layout
        if whole.ndim == 1:
            compared(name, tensor, whole)
        if whole.dtype == "i4" and whole.ndim:
            compared(name, tensor, whole, axis=axis, dtype="f4")


def norms(random, tensor, whole):
    keepdims = random.random() < 0.5
    compared("norm", tensor, whole, keepdims=keepdims)
    if whole.ndim:
        axis = axis_of(random, whole.ndim)
        for ord in (None, 0, 1, 2, 3, 0.5, inf, -inf, -1):
            compared("norm", tensor, whole, ord=ord, axis=axis, keepdims=keepdims)
    if whole.ndim > 1:
        axes = tuple(random.sample(range(whole.ndim), 2))
        for ord in (None, "fro", 1, -1, inf, -inf):
            compared("norm", tensor, whole, ord=ord, axis=axes, keepdims=keepdims)
    if whole.ndim == 2:
        compared("norm", tensor, whole, ord="fro")
        compared("norm", tensor, whole, ord=1)


def differences(random, tensor, whole):
    assert np.diff(tensor, 0) is tensor
    for n in (1, random.randint(2, 8)):
        compared("diff", tensor, whole, n=n, axis=axis_of(random, whole.ndim) if whole.ndim else -1)
    if whole.ndim:
        compared("diff", tensor, whole)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [reductions, locating, scans, norms, differences], ids=lambda kind: kind.__name__)
def test_functions_are_those_of_numpy(kind, seed):
    def program(random, mesh):
        for whole, tensor in pairs(random, mesh, seed, 4 if kind is reductions else 12):
            kind(random, tensor, whole)

    on_a_mesh(seed, program)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@with_seeds(on_a_mesh, SEEDS)
def test_comparisons(random, mesh, seed):
    for number in range(12):
        dtype = DTYPES[(seed + number) % len(DTYPES)]
        x = values(random, shape_of(random), dtype)
        y = x.copy() if random.random() < 0.6 else values(random, shape_of(random), dtype)
        if y.size and random.random() < 0.3:
            y.flat[random.randrange(y.size)] += y.dtype.type(1)
        a, b = tensor_of(random, mesh, x), tensor_of(random, mesh, y)
        outside = mesh.rank is None
        for equal_nan in (False, True):
            for other in (b, y)[: 1 if dtype == "g" else 2]:  # the padding of a long double differs
                expected = np.array_equal(x, y, equal_nan=equal_nan)
                assert np.array_equal(a, other, equal_nan=equal_nan) is (None if outside else expected)
            expected = outcome(np.allclose, x, y, equal_nan=equal_nan)
            found = outcome(np.allclose, a, b, equal_nan=equal_nan)
            assert found == (None if outside and isinstance(expected, bool) else expected)
            if isinstance(expected, bool):
                check(np.isclose(a, b, 0.1, equal_nan=equal_nan), np.isclose(x, y, 0.1, equal_nan=equal_nan))
        assert np.array_equiv(a, b) is (None if outside else np.array_equiv(x, y))


@on_ranks(3)
def test_differences_are_cut_as_the_tensor():
    for spec, cut in [("x", mc.Cuts("x", (0, 2, 5, 7))), (mc.Cyclic("x", 1), mc.Cyclic("x", 1))]:
        assert np.diff(in_rows(np.arange(8), spec)).layout.sharding_specs == [cut]
    with pytest.raises(ValueError, match=r"numpy.diff: n must not be negative, but is -1"):
        np.diff(in_rows(np.arange(7)), -1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@with_seeds(on_a_mesh, SEEDS)
def test_averages(random, mesh, seed):
    for whole, tensor in pairs(random, mesh, seed, 8, least=1):
        weights = np.abs(values(random, whole.shape, "f8")) + 1
        keepdims, rtol = random.random() < 0.5, 2e-2 if whole.dtype == "f2" else 1e-4
        for axis in axes_of(random, whole.ndim):
            expected = np.average(whole, axis, weights, keepdims=keepdims)
            for given in (weights, tensor_of(random, mesh, weights)):
                check(np.average(tensor, axis, given, keepdims=keepdims), expected, rtol)
        if whole.ndim:
            axis = random.randrange(-whole.ndim, whole.ndim)
            line = np.arange(1, whole.shape[axis] + 1)
            expected = np.average(whole, axis, line)
            for given in (line, line.tolist(), tensor_of(random, mesh, line)):
                check(np.average(tensor, axis, given), expected, rtol)
        compared("average", tensor, whole)


@on_ranks(3)
def test_weights_that_are_wrong():
    t = in_rows(np.ones((3, 2)))
    for weights, axis, error, text in [
        ([1, 2], None, TypeError, r"when shapes of a and weights differ. They are \(3, 2\) and \(2,\)"),
        ([1, 2], 0, ShapeError, r"they are \(2,\) and \(3, 2\), and the axis is 0"),
        ([1, -1], 1, ZeroDivisionError, "weights add up to zero"),
        (np.array([[1, 1], [1, -1], [1, 1]]), 1, ZeroDivisionError, "weights add up to zero"),
    ]:
        with pytest.raises(error, match=text):
            np.average(t, axis, weights)


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
def test_variance_of_blocks_in_stretches():
    """Blocks beyond the cache are read once, in stretches."""
    for dtype in ("f4", "f8", "c16", "i4"):
        whole = (np.random.default_rng(0).normal(size=(3, 200_001)) * 100 + 50).astype(dtype)
        tensor = in_rows(whole)
        check(tensor.var(ddof=1), whole.var(ddof=1), 1e-11)
        check(tensor.std(keepdims=True), whole.std(keepdims=True), 1e-11)
        if dtype != "i4":
            whole[1, 1000:190_000] = np.nan  # several stretches have nothing else
            tensor = in_rows(whole)
            check(np.nanvar(tensor), np.nanvar(whole), 1e-11)
            check(np.nanmean(tensor), np.nanmean(whole), 1e-11)


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


@on_ranks(3)
def test_a_number_that_overflows_on_one_rank_stops_none():
    whole = np.array([1e308, 1e308, 1.0, 2.0, 3.0, np.inf])
    tensor = in_rows(whole)
    with np.errstate(all="raise"):
        assert tensor.sum().item() == np.inf
        assert np.isnan(tensor.var().item())
        tensor.cumsum()


# -- errors -----------------------------------------------------------------------------------------------------------


@on_ranks(3)
def test_arguments_that_are_not_supported():
    t = in_rows(np.arange(6.0).reshape(3, 2))
    flags = t > 1
    for call, text in [
        (lambda: np.sum(t, out=np.zeros(())), r"numpy.sum: out= must be a DTensor"),
        (lambda: np.sum(t, where=t), "Cannot cast"),
        (lambda: np.cumsum(t, axis=(0,)), r"numpy.cumsum takes one axis"),
        (lambda: np.argmax(t, axis=(0, 1)), r"numpy.argmax takes one axis, or None for the flattened array"),
        (lambda: np.var(t, dtype=int), r"numpy.var: dtype int64 cannot hold the mean of float64"),
        (lambda: np.var(t, ddof="1"), r"numpy.var: ddof must be a number, not '1'"),
        (lambda: np.allclose(t, t, rtol=t), r"numpy.allclose: rtol must be a number for DTensors"),
        (lambda: np.ptp(flags), "boolean subtract"),
    ]:
        with pytest.raises(TypeError, match=text):
            call()
    for call, text in [
        (lambda: np.linalg.norm(t, 3), r"norms of matrices are 'fro', 'nuc', 1, -1, 2, -2, inf and -inf, not 3"),
        (lambda: np.linalg.norm(t, "fro", axis=0), r"the order of a norm of vectors is a number, not 'fro'"),
    ]:
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(ValueError, match="ddof and correction can't be provided"):
        np.var(t, ddof=1, correction=1)
    # NumPy's defaults may be passed.
    check(np.sum(t, where=True, out=None), 15.0)
    check(np.var(t, correction=1), np.var(np.arange(6.0), ddof=1))


@on_ranks(3)
def test_axes_and_elements_that_are_not_there():
    t, none = in_rows(np.zeros((3, 2))), in_rows(np.zeros((0, 2)))
    for name in (*REDUCTIONS, *WITHOUT_NAN, *LOCATING, *SCANS, "nanargmax"):
        with pytest.raises(ShapeError, match="axis 2 is out of range for a tensor with 2 axes"):
            getattr(np, name)(t, axis=2)
    for name in EMPTY:
        for axis in (None, 0):
            with pytest.raises(ShapeError, match=r"of shape \(0, 2\) has no elements"):
                getattr(np, name)(none, axis=axis)
        assert getattr(np, name)(none, axis=1).shape == (0,)
    nothing = in_rows(np.zeros((0, 0)))
    for name in EMPTY:  # NumPy refuses these too, although the result has no elements
        with pytest.raises(ShapeError, match=r"of shape \(0, 0\) has no elements"):
            getattr(np, name)(nothing, axis=1)
    for ord in (-inf,):
        with pytest.raises(ShapeError, match="has no elements"):
            np.linalg.norm(none, ord, axis=0)
    with pytest.raises(ShapeError, match="needs 1 or 2 axes to take norms over, not 3"):
        np.linalg.norm(in_rows(np.zeros((3, 2, 2))), 1, axis=(0, 1, 2))
    assert (none.prod().item(), none.any().item(), none.all().item()) == (1.0, False, True)
    assert none.cumsum(axis=0).shape == (0, 2)
