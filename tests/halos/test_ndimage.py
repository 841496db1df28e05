"""mc.ndimage against scipy.ndimage on the whole array, at the borders of blocks too."""

import builtins
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError, MeshcommError, ShapeError
from meshcomm.ndimage import filters
from support.halo_cases import with_cuts
from support.random_cases import random_layout
from support.reference import block_of, on_ranks
from support.sampling import sampled
from support.tensors import on, on_some_ranks

scipy_ndimage = pytest.importorskip("scipy.ndimage")

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")
SEEDS = sampled(range(60), 5)


def some(random, dtype, ndim):
    shape = tuple(random.randint(1, 9) for _ in range(ndim))
    values = np.random.default_rng(random.randrange(10**6)).integers(-50, 50, shape)
    scale = 8 if np.dtype(dtype).kind in "fc" else 1
    whole = (values / scale).astype(dtype)
    return whole + 1j * whole[::-1] if np.dtype(dtype).kind == "c" else whole


def origins(random, sizes):
    """An origin that SciPy allows for windows of these sizes, in all kinds of filters."""
    return [random.randint(-((n - 1) // 2), (n - 1) // 2) for n in sizes]


def window(random, ndim):
    sizes = [random.randint(1, 4 if ndim < 3 else 3) for _ in range(ndim)]
    footprint = np.random.default_rng(random.randrange(99)).random(sizes) < 0.7
    footprint.flat[0] = True
    return sizes, footprint


def edges(random):
    return {"mode": random.choice(MODES), "cval": random.choice([0.0, 1, -2.5])}


def dense(random, ndim):
    sizes, _ = window(random, ndim)
    weights = np.random.default_rng(random.randrange(99)).integers(-4, 5, sizes) / 4
    return {"weights": weights, "origin": origins(random, sizes), **edges(random)}


def ordered(random, ndim):
    sizes, footprint = window(random, ndim)
    shape = {"size": sizes} if random.random() < 0.5 else {"footprint": footprint}
    return {**shape, "origin": origins(random, sizes), **edges(random)}


def structured(random, ndim):
    sizes, footprint = window(random, ndim)
    structure = np.random.default_rng(random.randrange(99)).integers(-4, 5, sizes)
    shape = random.choice([{"size": sizes}, {"footprint": footprint}, {"structure": structure}])
    return {**shape, "origin": origins(random, sizes), **edges(random)}


def line(random, ndim):
    n = random.randint(1, 5)
    return {"axis": random.randrange(-ndim, ndim), "origin": origins(random, [n])[0], **edges(random)}, n


def weights_of_line(random, ndim):
    given, n = line(random, ndim)
    return {"weights": [random.randint(-4, 4) / 4 for _ in range(n)], **given}


def size_of_line(random, ndim):
    given, n = line(random, ndim)
    return {"size": n, **given}


def gauss(random, ndim):
    each = random.choice([{"mode": [random.choice(MODES) for _ in range(ndim)]}, {}])
    sigma = random.choice([0.7, [random.choice([0, 0.5, 1.5]) for _ in range(ndim)]])
    more = random.choice([{}, {"truncate": 2.0}, {"radius": 2}])
    return {"sigma": sigma, "order": random.choice([0, 1, 2]), **edges(random), **each, **more}


def derived(random, ndim):
    return {"sigma": random.choice([0.7, 1.0]), **edges(random)}


def uniform(random, ndim):
    sizes, _ = window(random, ndim)
    return {"size": sizes, "origin": origins(random, sizes), **edges(random)}


CASES = {
    "convolve": dense,
    "correlate": dense,
    "median_filter": ordered,
    "minimum_filter": ordered,
    "maximum_filter": ordered,
    "rank_filter": lambda random, ndim: {"rank": random.choice([0, -1]), **ordered(random, ndim)},
    "percentile_filter": lambda random, ndim: {"percentile": random.choice([0, 20, 50, -10]), **ordered(random, ndim)},
    "generic_filter": lambda random, ndim: {"function": lambda x: float(np.ptp(x)), **ordered(random, ndim)},
    "grey_erosion": structured,
    "grey_dilation": structured,
    "convolve1d": weights_of_line,
    "correlate1d": weights_of_line,
    "uniform_filter1d": size_of_line,
    "minimum_filter1d": size_of_line,
    "maximum_filter1d": size_of_line,
    "gaussian_filter1d": lambda random, ndim: {
        "sigma": random.choice([0.5, 1.2]),
        "axis": random.randrange(ndim),
        "order": random.choice([0, 1]),
        **edges(random),
    },
    "gaussian_filter": gauss,
    "uniform_filter": uniform,
    "laplace": lambda random, ndim: edges(random),
    "gaussian_laplace": derived,
    "gaussian_gradient_magnitude": derived,
    "sobel": lambda random, ndim: {"axis": random.randrange(ndim), **edges(random)},
    "prewitt": lambda random, ndim: {"axis": random.randrange(ndim), **edges(random)},
}
COMPLEX = ("convolve", "correlate", "convolve1d", "correlate1d", "gaussian_filter", "uniform_filter")


def test_all_public_functions_are_tested():
    more = Path(__file__).with_name("test_ndimage_more.py").read_text("utf-8")
    assert [name for name in mc.ndimage.__all__ if name not in CASES and not re.search(rf"\b{name}\b", more)] == []
    assert sorted({*CASES} - {*mc.ndimage.__all__}) == []
    missing = {*scipy_ndimage.__all__} - {*mc.ndimage.__all__}
    assert [name for name in missing if callable(getattr(scipy_ndimage, name))] == ["watershed_ift"]


def rounds_differently(name, dtype):
    """Running sums begin where a block begins."""
    return name.startswith("uniform") and np.dtype(dtype).kind in "fc"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_equals_scipy(name, seed):
    def program(random, mesh):
        for _ in range(4):
            ndim = random.choice([1, 2, 2, 3])
            kinds = ("f8", "f4", "i4", "u1", *(("c16",) if name in COMPLEX else ()))
            whole = some(random, random.choice(kinds), ndim)
            given = CASES[name](random, ndim)
            if name in filters.ORDERS and whole.dtype.kind in "iu":
                given["cval"] = abs(int(given["cval"]))
            if random.random() < 0.3:
                given["output"] = random.choice(["f8", "f4", "i4"]) if whole.dtype.kind != "c" else "c8"
            layout = with_cuts(random, random_layout(random, mesh, ndim), whole.shape, mesh)
            compare(name, mc.distribute(whole, layout), whole, given)

    on_some_ranks(seed, program)


def compare(name, tensor, whole, given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(scipy_ndimage, name)(whole, **given)
        found = getattr(mc.ndimage, name)(tensor, **given)
    assert (found.dtype, found.shape, found.layout) == (expected.dtype, whole.shape, tensor.layout)
    if found.local is None:
        return
    block = block_of(expected, tensor.layout, tensor.mesh.rank)
    assert found.local.flags.c_contiguous
    if rounds_differently(name, expected.dtype) or rounds_differently(name, whole.dtype):
        scale = np.abs(whole).max(initial=1) + abs(given.get("cval", 0))
        most = 1 if expected.dtype.kind in "iu" else 1e-6 * scale
        assert np.abs(found.local.astype("c16") - block.astype("c16")).max(initial=0) <= most
    else:
        assert np.array_equal(found.local, block, equal_nan=True), (name, whole, given, found.local, block)


@on_ranks(3)
def test_only_some_axes_and_outputs_that_are_tensors():
    mesh = mc.create_mesh([("x", 3)])
    rows, columns = Layout(["x", mc.UNSHARDED], mesh), Layout([mc.UNSHARDED, "x"], mesh)
    whole = np.random.default_rng(0).normal(size=(7, 8))
    t = mc.distribute(whole, rows)
    given = {"sigma": 1.0, "axes": (1,)}
    compare("gaussian_filter", t, whole, given)
    compare("minimum_filter", t, whole, {"size": 3, "axes": (0,)})
    for layout in (rows, columns):
        output = mc.zeros((7, 8), "f4", layout)
        assert mc.ndimage.sobel(t, output=output) is output
        assert np.array_equal(output.to_numpy(), scipy_ndimage.sobel(whole, output="f4"))
    with pytest.raises(ShapeError, match="output has shape"):
        mc.ndimage.sobel(t, output=mc.zeros((8, 7), "f4", rows))


def test_an_unsharded_axis_moves_nothing(monkeypatch):
    monkeypatch.setattr("meshcomm.ndimage.windows.halo", None)

    def program():
        layout = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        whole = np.random.default_rng(0).normal(size=(4, 9))
        compare("gaussian_filter1d", mc.distribute(whole, layout), whole, {"sigma": 2.0, "axis": 1})
        compare("median_filter", mc.distribute(whole, layout), whole, {"size": (1, 5)})

    on(2, program)


@on_ranks(2)
def test_an_empty_array():
    layout = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    for name in ("gaussian_filter", "laplace", "median_filter"):
        given = {"gaussian_filter": {"sigma": 1}, "median_filter": {"size": 3}}.get(name, {})
        found = getattr(mc.ndimage, name)(mc.zeros((0, 3), "f4", layout), **given)
        assert (found.shape, found.local.shape, found.dtype) == ((0, 3), (0, 3), np.float32)


@on_ranks(2)
def test_errors_are_those_of_scipy_or_say_what_to_do():
    layout = Layout(["x"], mc.create_mesh([("x", 2)]))
    t = mc.zeros(8, "f8", layout)
    with pytest.raises(LayoutError, match="call distribute first"):
        mc.ndimage.sobel(np.zeros(3))
    with pytest.raises(LayoutError, match="Cyclic"):
        mc.ndimage.sobel(mc.zeros(8, "f8", Layout([mc.Cyclic("x", 1)], layout.mesh)))
    with pytest.raises(RuntimeError, match="mode"):
        mc.ndimage.sobel(t, mode="around")
    with pytest.raises(ValueError, match="origin"):
        mc.ndimage.correlate1d(t, [1, 2, 3], origin=2)
    with pytest.raises(RuntimeError):
        mc.ndimage.median_filter(t)
    with pytest.raises(mc.DTypeError, match="SciPy rounds it"):
        mc.ndimage.median_filter(mc.zeros(8, "i4", layout), 3, mode="constant", cval=0.5)
    with pytest.raises(mc.AxisError):
        mc.ndimage.sobel(t, axis=1)


def test_without_scipy(monkeypatch):
    original = builtins.__import__

    def missing(name, *args):
        if name.startswith("scipy"):
            raise ImportError(name)
        return original(name, *args)

    monkeypatch.setattr("importlib.import_module", missing)

    def program():
        mc.ndimage.sobel(mc.zeros(4, "f8", Layout(["x"], mc.create_mesh([("x", 1)]))))

    with pytest.raises(MeshcommError, match="pip install scipy"):
        on(1, program)
