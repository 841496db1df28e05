"""The rest of mc.ndimage against scipy.ndimage on the whole array: maps, morphology, labels, measurements, spectra."""

import warnings

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, LayoutError
from meshcomm.ndimage.interpolation import output_layout
from support.halo_cases import with_cuts
from support.random_cases import random_layout
from support.reference import block_of, on_ranks
from support.sampling import sampled
from support.tensors import on, on_some_ranks

scipy_ndimage = pytest.importorskip("scipy.ndimage")

MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")
SEEDS = sampled(range(40), 3)


def rng_of(random):
    return np.random.default_rng(random.randrange(10**6))


def numbers(random, shape, kinds="d f i"):
    return rng_of(random).integers(-50, 50, shape).astype(random.choice(kinds.split()))


def bits(random, shape):
    return rng_of(random).random(shape) < random.choice([0.2, 0.5, 0.9])


# -- maps of coordinates ----------------------------------------------------------------------------------------------


def rule(random):
    given = {"order": random.choice([0, 1, 2, 3, 5]), "mode": random.choice(MODES), "cval": random.choice([0.0, -2.5])}
    return given | {"prefilter": random.random() < 0.7}


def rates(random, ndim, least, most):
    return [random.uniform(least, most) for _ in range(ndim)]


def affine(random, ndim):
    kind, rng = random.choice(["diagonal", "matrix", "homogeneous"]), rng_of(random)
    if kind == "diagonal":
        given = {"matrix": rates(random, ndim, -1.5, 1.5), "offset": rates(random, ndim, -3, 3)}
    elif kind == "matrix":
        shape = tuple(random.randint(1, 9) for _ in range(ndim))
        given = {"matrix": rng.uniform(-1, 1, (ndim, ndim)), "offset": random.uniform(-2, 4), "output_shape": shape}
    else:
        given = {"matrix": rng.uniform(-1, 1, (ndim, ndim + 1))}
    return given | rule(random)


def turned(random, ndim):
    given = {"angle": random.choice([90, 30, -77.3]), "axes": tuple(random.sample(range(ndim), 2))}
    return given | {"reshape": random.random() < 0.5} | rule(random)


def points(random, ndim):
    shape = tuple(random.randint(1, 7) for _ in range(random.choice([1, 2, 3])))
    return {"coordinates": rng_of(random).uniform(-4, 10, (ndim, *shape))} | rule(random)


def mapped(at, factor):
    return tuple(factor * i - 0.3 for i in at)


MAPS = {
    "shift": lambda random, ndim: {"shift": random.choice([2, rates(random, ndim, -9, 9)])} | rule(random),
    "zoom": lambda random, ndim: {
        "zoom": random.choice([1, 2, rates(random, ndim, 0.3, 2.5)]),
        "grid_mode": random.random() < 0.5,
        **rule(random),
    },
    "affine_transform": affine,
    "rotate": turned,
    "map_coordinates": points,
    "geometric_transform": lambda random, ndim: {"mapping": mapped, "extra_arguments": (0.9,)} | rule(random),
    "spline_filter": lambda random, ndim: {"order": random.choice([2, 3, 4, 5]), "mode": random.choice(MODES)},
    "spline_filter1d": lambda random, ndim: {"order": random.choice([1, 3, 5]), "axis": random.randrange(ndim)},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MAPS)
def test_maps_of_coordinates(name, seed):
    def program(random, mesh):
        for _ in range(5):
            ndim = random.choice([2, 3] if name == "rotate" else [1, 2, 2, 3])
            whole = numbers(random, tuple(random.randint(1, 9) for _ in range(ndim)), "d f i D")
            given = MAPS[name](random, ndim)
            if whole.dtype.kind == "c":
                whole = whole + 1j * whole[::-1]
                given.pop("grid_mode", None)  # SciPy forgets it for complex numbers
            compare(random, mesh, name, whole, given, tensors=("coordinates",))

    on_some_ranks(seed, program)


def compare(random, mesh, name, whole, given, *, tensors=(), exact=False):
    """Compare a function on a tensor with SciPy's: to the last bit, or nearly."""
    layout = with_cuts(random, random_layout(random, mesh, whole.ndim), whole.shape, mesh)
    ours = dict(given)
    for key in tensors:
        if key in given and random.random() < 0.6:
            ours[key] = mc.distribute(given[key], random_layout(random, mesh, given[key].ndim))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = getattr(scipy_ndimage, name)(whole, **given)
        found = getattr(mc.ndimage, name)(mc.distribute(whole, layout), **ours)
    several = isinstance(expected, tuple)
    for one, other in zip(expected if several else [expected], found if several else [found], strict=True):
        assert (other.dtype, other.shape) == (one.dtype, one.shape)
        if other.local is None:
            continue
        block = block_of(one, other.layout, mesh.rank)
        if exact:
            assert np.array_equal(other.local, block), (name, whole, given, other.local, block)
        elif one.dtype.kind in "iu":  # a value between two integers may be rounded either way
            assert np.abs(other.local.astype("i8") - block).max(initial=0) <= 1
        else:
            limit = 1e-9 if one.dtype.char in "dD" else 1e-4
            assert np.allclose(other.local, block, limit, limit), (name, whole, given, other.local, block)


def test_each_rank_reads_only_what_its_block_needs(monkeypatch):
    read, boxes = mc.ndimage.interpolation.read, []

    def noted(tensor, find, call):
        array = read(tensor, find, call)
        boxes.append(array.shape)
        return array

    monkeypatch.setattr("meshcomm.ndimage.interpolation.read", noted)

    def program():
        t = mc.zeros((64, 4), "f8", Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 4)])))
        mc.ndimage.zoom(t, 2, order=1)
        mc.ndimage.shift(t, (0.5, 0), order=3, prefilter=False)

    on(4, program)
    assert len(boxes) == 8
    assert max(shape[0] for shape in boxes) <= 64 / 4 + 4


# -- morphology and distances -----------------------------------------------------------------------------------------


def structured(random, ndim):
    structure = rng_of(random).random([random.randint(1, 4) for _ in range(ndim)]) < 0.6
    structure[tuple(n // 2 for n in structure.shape)] = structure[tuple((n - 1) // 2 for n in structure.shape)] = True
    return structure


def eroded(random, shape):
    structure = structured(random, len(shape))
    given = random.choice([{}, {"structure": structure}]) | {"border_value": random.choice([0, 1])}
    if "structure" in given and random.random() < 0.5:
        origin = [random.randint(-((n - 1) // 2), (n - 1) // 2) for n in structure.shape]
        return given | {"origin": origin, "iterations": random.choice([1, 2, 3]), "brute_force": True}
    given["iterations"] = random.choice([1, 2, 3, -1])
    return given | random.choice([{}, {"mask": rng_of(random).random(shape) < 0.7}])


def propagated(random, shape):
    given = random.choice([{}, {"structure": structured(random, len(shape))}])
    return given | {"mask": rng_of(random).random(shape) < 0.7}


def filled(random, shape):
    return random.choice([{}, {"structure": structured(random, len(shape))}])


def hit(random, shape):
    structures = {"structure1": structured(random, len(shape)), "structure2": structured(random, len(shape))}
    return random.choice([{}, structures])


def scaled(random, shape):
    sampling = [random.choice([1, 0.5, 2, 0.7]) for _ in shape]
    return random.choice([{}, {"sampling": sampling}]) | {"return_indices": True}


def metric(random, shape):
    return {"metric": random.choice(["chessboard", "taxicab"])}


BINARY = {
    **dict.fromkeys(("binary_erosion", "binary_dilation", "binary_opening", "binary_closing"), eroded),
    "binary_propagation": propagated,
    "binary_fill_holes": filled,
    "binary_hit_or_miss": hit,
    "distance_transform_edt": scaled,
    "distance_transform_cdt": metric,
    "distance_transform_bf": lambda random, shape: random.choice([scaled, metric])(random, shape),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_morphology_and_distances(name, seed):
    def program(random, mesh):
        for _ in range(5):
            shape = tuple(random.randint(1, 9) for _ in range(random.choice([1, 2, 2, 3])))
            compare(
                random, mesh, name, bits(random, shape), BINARY[name](random, shape), tensors=("mask",), exact=True
            )

    on_some_ranks(seed, program)


GREY = (
    *("grey_opening", "grey_closing", "morphological_gradient", "morphological_laplace"),
    *("white_tophat", "black_tophat"),
)


def window(random, ndim):
    structure = structured(random, ndim)
    shapes = {"footprint": structure}, {"size": structure.shape}, {"structure": structure * 3}
    return random.choice(shapes) | {"mode": random.choice(MODES), "cval": 2}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GREY)
def test_grey_morphology(name, seed):
    def program(random, mesh):
        for _ in range(4):
            ndim = random.choice([1, 2, 3])
            whole = numbers(random, tuple(random.randint(1, 9) for _ in range(ndim)))
            compare(random, mesh, name, whole, window(random, ndim), exact=True)

    on_some_ranks(seed, program)


# -- spectra and functions --------------------------------------------------------------------------------------------


def line(given, output):
    output[...] = given[:-2] - given[2:] + given.sum()


def second(of):
    return lambda t, axis, output, mode, cval, k: of.correlate1d(t, [k, -2, 1], axis, output, mode, cval)


FOURIER = {
    "fourier_gaussian": "sigma",
    "fourier_uniform": "size",
    "fourier_ellipsoid": "size",
    "fourier_shift": "shift",
}
DERIVED = {"generic_laplace": "derivative2", "generic_gradient_magnitude": "derivative"}


@pytest.mark.parametrize("seed", SEEDS)
def test_filters_of_spectra_and_by_functions(seed):
    def program(random, mesh):
        for name in [*FOURIER, *DERIVED, "generic_filter1d", "vectorized_filter"]:
            shape = tuple(random.randint(1, 9) for _ in range(random.choice([1, 2, 3])))
            whole, axis = rng_of(random).normal(size=shape), random.randrange(len(shape))
            if name in FOURIER:
                given = {FOURIER[name]: rates(random, len(shape), 0.5, 5)}
                given |= random.choice([{}, {"axis": axis, "n": 2 * shape[axis]}])
            elif name == "generic_filter1d":
                given = {"function": line, "filter_size": 3, "axis": axis, "mode": random.choice(MODES[:5])}
            elif name == "vectorized_filter":
                size = [random.randint(1, min(n, 4)) for n in shape]
                given = {"function": np.mean, "size": size, "mode": random.choice(["reflect", "nearest", "valid"])}
            else:
                given = {"mode": random.choice(MODES[:5]), "extra_keywords": {"k": 2}}
                with_function(random, mesh, name, whole, given)
                continue
            compare(random, mesh, name, whole, given)

    on_some_ranks(seed, program)


def with_function(random, mesh, name, whole, given):
    tensor = mc.distribute(whole, random_layout(random, mesh, whole.ndim))
    expected = getattr(scipy_ndimage, name)(whole, **given, **{DERIVED[name]: second(scipy_ndimage)})
    found = getattr(mc.ndimage, name)(tensor, **given, **{DERIVED[name]: second(mc.ndimage)})
    if found.local is not None:
        assert np.array_equal(found.local, block_of(expected, found.layout, mesh.rank))


# -- labels and measurements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", sampled(range(60), 8))
def test_labels_are_those_of_scipy(seed):
    def program(random, mesh):
        for _ in range(4):
            shape = tuple(random.randint(1, 12) for _ in range(random.choice([1, 2, 2, 3])))
            whole = rng_of(random).random(shape) < random.choice([0.3, 0.5, 0.7])
            given = random.choice([{}, {"structure": np.ones((3,) * len(shape))}, {"output": "i8"}])
            layout = with_cuts(random, random_layout(random, mesh, len(shape)), shape, mesh)
            expected, count = scipy_ndimage.label(whole, **given)
            found, ours = mc.ndimage.label(mc.distribute(whole, layout), **given)
            most = random.choice([0, count + 2])
            objects, values = mc.ndimage.find_objects(found, most), mc.ndimage.value_indices(found, ignore_value=0)
            if found.local is None:
                assert (ours, objects, values) == (None, None, None)
                continue
            assert (ours, found.dtype) == (count, expected.dtype)
            assert np.array_equal(found.local, block_of(expected, layout, mesh.rank)), (whole, layout)
            assert objects == scipy_ndimage.find_objects(expected, most)
            theirs = scipy_ndimage.value_indices(expected, ignore_value=0)
            assert {k: [each.to_numpy().tolist() for each in v] for k, v in values.items()} == {
                k: [each.tolist() for each in v] for k, v in theirs.items()
            }

    on_some_ranks(seed, program)


MEASURES = (
    *("sum", "sum_labels", "mean", "variance", "standard_deviation", "minimum", "maximum", "median", "extrema"),
    *("minimum_position", "maximum_position", "center_of_mass", "histogram", "labeled_comprehension"),
)


def same(a, b):
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if a is None or b is None:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype == object:
        return a.shape == b.shape and all(map(same, a.tolist(), b.tolist()))
    return (a.dtype, a.shape) == (b.dtype, b.shape) and np.allclose(a, b, 1e-6, 1e-6, equal_nan=True)


def positioned(values, positions):
    return float((values * (positions + 1)).sum())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", MEASURES)
def test_measurements(name, seed):
    def program(random, mesh):
        for _ in range(5):
            shape = tuple(random.randint(1, 9) for _ in range(random.choice([1, 2, 3])))
            rng = rng_of(random)
            # Of equal elements, SciPy's position is that of any.
            whole = rng.permutation(np.arange(np.prod(shape)) - 40).reshape(shape).astype(random.choice("dfi"))
            labels = random.choice([rng.integers(0, 4, shape), rng.integers(-1, 4, shape) * 2.5])
            labels[(0,) * len(shape)] = 1
            index = random.choice([None, 1, [1, 1], [1, 2, 9]])
            index = [1] if name == "median" and index == [1, 2, 9] else index  # SciPy's of no elements is anything
            extra = {"histogram": (-5, 6, 7)}.get(name, ())
            more = (positioned, "f8", -1, True) if name == "labeled_comprehension" else ()
            theirs = labels
            if random.random() < 0.6:
                labels = mc.distribute(labels, random_layout(random, mesh, len(shape)))
            tensor = mc.distribute(whole, random_layout(random, mesh, len(shape)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = getattr(scipy_ndimage, name)(whole, *extra, theirs, index, *more)
                found = getattr(mc.ndimage, name)(tensor, *extra, labels, index, *more)
            if mesh.rank is None:
                assert found is None
            else:
                assert same(found, expected), (name, whole, theirs, index, found, expected)

    on_some_ranks(seed, program)


# -- what is refused, and where results go ----------------------------------------------------------------------------


def test_structures_are_those_of_scipy():
    found = mc.ndimage.generate_binary_structure(3, 2)
    assert np.array_equal(found, scipy_ndimage.generate_binary_structure(3, 2))
    assert np.array_equal(mc.ndimage.iterate_structure(found, 2), scipy_ndimage.iterate_structure(found, 2))


@on_ranks(2)
def test_outputs_and_errors():
    mesh = mc.create_mesh([("x", 2)])
    rows, columns = Layout(["x", mc.UNSHARDED], mesh), Layout([mc.UNSHARDED, "x"], mesh)
    whole = np.random.default_rng(0).random((6, 5)) < 0.6
    t = mc.distribute(whole, rows)
    into = mc.zeros((6, 5), "i4", columns)
    assert mc.ndimage.label(t, output=into) == scipy_ndimage.label(whole)[1]
    assert np.array_equal(into.to_numpy(), scipy_ndimage.label(whole)[0])
    far = mc.zeros((6, 5), "f8", columns)
    assert mc.ndimage.distance_transform_edt(t, distances=far) is None
    assert np.array_equal(far.to_numpy(), scipy_ndimage.distance_transform_edt(whole))
    out = mc.zeros((12, 10), "f4", columns)
    assert mc.ndimage.zoom(t, 2, out, order=1) is out
    with pytest.raises(RuntimeError, match="output shape"):
        mc.ndimage.zoom(t, 3, out)
    with pytest.raises(RuntimeError, match="bit-depth"):
        mc.ndimage.label(mc.distribute(np.arange(600).reshape(2, 300) % 2, rows), output="i1")
    with pytest.raises(NotImplementedError, match="way along the whole array"):
        mc.ndimage.distance_transform_cdt(t, return_indices=True)
    with pytest.raises(RuntimeError, match="equal sizes"):
        mc.ndimage.binary_erosion(t, mask=np.ones((5, 6), bool))
    cyclic = mc.zeros((8, 2), "f8", Layout([mc.Cyclic("x", 1), mc.UNSHARDED], mesh))
    for function in (mc.ndimage.label, mc.ndimage.binary_erosion, mc.ndimage.distance_transform_edt):
        with pytest.raises(LayoutError, match="Cyclic"):
            function(cyclic)
    assert mc.ndimage.sum_labels(cyclic + 1) == 16
    with pytest.raises(LayoutError, match="call distribute first"):
        mc.ndimage.zoom(whole, 2)
    assert output_layout(t, (3,)).sharding_specs == ["x"]


def test_what_a_function_raises_on_one_rank_all_raise():
    def program():
        t = mc.zeros(8, "f8", Layout(["x"], mc.create_mesh([("x", 2)])))
        with pytest.raises(ZeroDivisionError):
            mc.ndimage.geometric_transform(t, lambda at: (1 / (at[0] - 6),))
        with pytest.raises(ZeroDivisionError):
            mc.ndimage.labeled_comprehension(t, np.arange(8), [1, 2], lambda x, at: 1 / int(at[0] - 2), float, 0, True)

    on(2, program)
