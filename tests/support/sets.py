"""Random cases of sets, searches and counts of tensors against NumPy, for worlds of all kinds."""

import numpy as np

import meshcomm as mc
from support.orders import any_layout, any_shape, check, values

KINDS = ["f8", "f8", "f4", "f2", "c16", "i8", "i4", "u1", "?", ">f8", "M8[s]", "U2"]


def case(random, mesh, number, shape=None, dtype=None):
    """A tensor, and the array that it is."""
    shape = any_shape(random) if shape is None else shape
    a = values(shape, dtype or random.choice(KINDS), seed=(random.randint(0, 999), number), few=random.random() < 0.6)
    return mc.distribute(a, any_layout(random, mesh, shape)), a


def operand(random, mesh, number, shape=None, dtype=None):
    """A tensor or plain array, and the array."""
    t, a = case(random, mesh, number, shape, dtype)
    return (t if random.random() < 0.6 else a), a


def alike(found, expected):
    """Compare one result or several."""
    if isinstance(expected, np.ndarray | np.generic):
        check(found, np.asarray(expected))
        return
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        check(one, np.asarray(other))


def uniques(random, mesh):
    """The distinct elements, and all that can be asked about them."""
    for number in range(8):
        t, a = case(random, mesh, number)
        options = {name: random.random() < 0.5 for name in ("return_index", "return_inverse", "return_counts")}
        options["equal_nan"] = random.random() < 0.7
        nan = a.dtype.kind in "fc" and bool(np.isnan(a).any())
        if nan and not options["equal_nan"]:  # NumPy numbers them in their order only if it sorts stably
            options["return_index"] = True
        alike(np.unique(t, **options), np.unique(a, **options))
        if a.dtype.kind not in "fc":  # NumPy compares rows by their bytes, or finds NaN in fields unequal
            axis = random.randrange(-a.ndim, a.ndim)
            alike(np.unique(t, axis=axis, **options), np.unique(a, axis=axis, **options))
        for name in ("unique_all", "unique_counts", "unique_inverse", "unique_values"):
            if hasattr(np, name) and not (nan and name == "unique_inverse"):
                found, expected = getattr(np, name)(t), getattr(np, name)(a)
                assert type(found) is type(expected) or name == "unique_values"
                if name == "unique_values":  # in any order in NumPy
                    found, expected = np.sort(found), np.sort(expected)
                alike(found, expected)


def pairs(random, mesh):
    """Operations of two sets, of which one at least is a tensor."""
    for number in range(8):
        dtype = random.choice(["f8", "i4", "u1", "?", "U2", "M8[s]"])
        t, a = case(random, mesh, number, dtype=dtype)
        u, b = operand(random, mesh, number + 1, dtype=dtype)
        sides, arrays = ((t, u), (a, b)) if random.random() < 0.5 else ((u, t), (b, a))
        for function in (np.union1d, np.intersect1d, np.setdiff1d, np.setxor1d):
            alike(function(*sides), function(*arrays))
        alike(np.intersect1d(*sides, return_indices=True), np.intersect1d(*arrays, return_indices=True))
        distinct = [np.random.default_rng(number + n).permutation(40)[: random.randint(0, 40)] for n in range(2)]
        ours = [mc.distribute(each, any_layout(random, mesh, each.shape)) for each in distinct]
        for function in (np.intersect1d, np.setdiff1d, np.setxor1d):
            alike(function(*ours, assume_unique=True), function(*distinct, assume_unique=True))
        alike(np.intersect1d(*ours, True, True), np.intersect1d(*distinct, True, True))
        if dtype in ("f8", "i4"):
            ends = {"to_begin": b} if random.random() < 0.5 else {"to_end": b, "to_begin": 3}
            given = {"to_begin": u} if len(ends) == 1 else {"to_end": u, "to_begin": 3}
            alike(np.ediff1d(t, **given), np.ediff1d(a, **ends))
            alike(np.ediff1d(t), np.ediff1d(a))


def searches(random, mesh):
    """Where values belong in sorted tensors, whether they are in others, and in which bins."""
    for number in range(10):
        dtype = random.choice([each for each in KINDS if each != "f2"])
        n = random.choice([0, 1, random.randint(2, 60)])
        _, a = case(random, mesh, number, (n,), dtype)
        order = np.argsort(a, kind="stable")
        a, given = a[order], a
        t = mc.distribute(a, any_layout(random, mesh, (n,)))
        v, values_ = operand(random, mesh, number + 1, dtype=dtype)
        side = random.choice(["left", "right"])
        alike(np.searchsorted(t, v, side), np.searchsorted(a, values_, side))
        alike(t.searchsorted(values_), np.searchsorted(a, values_))
        sorter = mc.distribute(order, any_layout(random, mesh, (n,))) if random.random() < 0.5 else order
        unsorted = mc.distribute(given, any_layout(random, mesh, (n,)))
        alike(np.searchsorted(unsorted, v, side, sorter), np.searchsorted(given, values_, side, order))
        if isinstance(v, mc.DTensor):
            alike(np.searchsorted(a, v, side), np.searchsorted(a, values_, side))
        if n:
            alike(np.searchsorted(t, a[0]), np.searchsorted(a, a[0]))
            alike(np.isin(a[0], t), np.isin(a[0], a))
        u, b = case(random, mesh, number + 2, dtype=dtype)
        invert = random.random() < 0.5
        for one, other in [((u, v), (b, values_)), ((v, u), (values_, b))]:
            alike(np.isin(*one, invert=invert), np.isin(*other, invert=invert))
        if np.dtype(dtype).kind in "fiu":
            edges = a[~np.isnan(a)][:: random.choice([1, -1])]
            right = random.random() < 0.5
            expected = np.digitize(values_, edges, right)
            bins = mc.distribute(edges, any_layout(random, mesh, edges.shape))
            alike(np.digitize(v, bins, right), expected)
            if isinstance(v, mc.DTensor):
                alike(np.digitize(v, edges, right), expected)


def counts(random, mesh):
    """Counts of integers, and of points in boxes."""
    for number in range(8):
        n = random.choice([0, 1, random.randint(2, 60)])
        generator = np.random.default_rng((random.randint(0, 999), number))
        x = generator.integers(0, 9, n).astype(random.choice(["i8", "i4", "u1", "?"]))
        t = mc.distribute(x, any_layout(random, mesh, (n,)))
        w = generator.integers(-3, 9, n).astype(random.choice(["f8", "i4"]))
        ours = w if random.random() < 0.5 else mc.distribute(w, any_layout(random, mesh, (n,)))
        least = random.choice([0, 4, 20])
        alike(np.bincount(t, minlength=least), np.bincount(x, minlength=least))
        alike(np.bincount(t, ours, least), np.bincount(x, w, least))
        points = generator.integers(-9, 9, (n, random.randint(1, 3))).astype(random.choice(["f8", "i4"]))
        p = mc.distribute(points, any_layout(random, mesh, points.shape))
        bins = random.choice([3, [random.randint(1, 4) for _ in points.T], [np.array([-9, 0, 4])] * points.shape[1]])
        limits = random.choice([None, [(-3, 5)] * points.shape[1]])
        density = bool(n) and limits is None
        found, edges = np.histogramdd(p, bins, limits, density, ours)
        expected, ends = np.histogramdd(points, bins, limits, density, w)
        alike([found, *edges], [expected, *ends])
        columns = [mc.distribute(c, any_layout(random, mesh, (n,))) for c in points.T]
        found, edges = np.histogramdd(columns, bins, limits)
        expected, ends = np.histogramdd(list(points.T), bins, limits)
        alike([found, *edges], [expected, *ends])
        for edges_of in (4, [2, 3], [-3, 0, 4], [[-3, 0], 3]):
            alike(np.histogram2d(t, w, edges_of, weights=ours), np.histogram2d(x, w, edges_of, weights=w))


def keys(random, mesh):
    """Sorts by several keys, and partitions."""
    for number in range(8):
        shape = any_shape(random)
        axis = random.randrange(-len(shape), len(shape))
        pairs_ = [operand(random, mesh, number + n, shape, random.choice(["f8", "i4", "u1"])) for n in range(2)]
        pairs_ += [case(random, mesh, number + 7, shape, "i4")]
        random.shuffle(pairs_)
        alike(np.lexsort(tuple(t for t, _ in pairs_), axis), np.lexsort([a for _, a in pairs_], axis))
        t, a = case(random, mesh, number, dtype="i4")
        if a.ndim > 1 and len(a):
            alike(np.lexsort(t), np.lexsort(a))
        n = a.shape[-1]
        if n:
            kth = [random.randrange(-n, n) for _ in range(2)]
            alike(np.partition(t, kth), np.sort(a))
            where = t.argpartition(kth).to_numpy()
            np.testing.assert_array_equal(np.take_along_axis(a, where, -1), np.sort(a))
            alike(np.sort_complex(t), np.sort_complex(a))
            t.partition(kth)
            alike(t, np.sort(a))


PROGRAMS = [uniques, pairs, searches, counts, keys]
