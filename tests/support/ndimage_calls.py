"""The law of mc.ndimage: calls of scipy.ndimage give on tensors what they give on arrays.

tests/data/ndimage_calls.txt has the calls.
"""

import warnings
from random import Random

import numpy as np
import scipy.ndimage

import meshcomm as mc
from meshcomm.ndimage import filters
from support.halo_cases import with_cuts
from support.numpy_law import evaluated, table
from support.numpy_operands import names_in
from support.random_cases import random_layout
from support.reference import block_of

CALLS = table("ndimage_calls.txt")
MODES = ("reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap", "grid-mirror", "grid-constant")
OFTEN = ("COORDINATES", "MASK", "LABELS")
"""Arrays that often are tensors; the first operand always is."""


def origins(random, sizes):
    """An origin that SciPy allows for windows of these sizes, in all kinds of filters."""
    return [random.randint(-((n - 1) // 2), (n - 1) // 2) for n in sizes]


def structure_of(random, rng, ndim):
    """A window of bools whose middle belongs to it."""
    found = rng.random([random.randint(1, 4) for _ in range(ndim)]) < 0.6
    found[tuple(n // 2 for n in found.shape)] = found[tuple((n - 1) // 2 for n in found.shape)] = True
    return found


def windows(random, rng, ndim):
    """The windows of filters, as keywords."""
    sizes = [random.randint(1, 4 if ndim < 3 else 3) for _ in range(ndim)]
    footprint, weights = rng.random(sizes) < 0.7, rng.integers(-4, 5, sizes)
    footprint.flat[0] = True
    ordered, origin, n = [{"size": sizes}, {"footprint": footprint}], {"origin": origins(random, sizes)}, sizes[0]
    grey, along = structure_of(random, rng, ndim), {"axis": random.randrange(-ndim, ndim)}
    along["origin"] = origins(random, [n])[0]
    return {
        "DENSE": {"weights": weights / 4, **origin},
        "ORDERED": random.choice(ordered) | origin,
        "STRUCTURED": random.choice([*ordered, {"structure": weights}]) | origin,
        "UNIFORM": {"size": sizes, **origin},
        "LINE": {"weights": [random.randint(-4, 4) / 4 for _ in range(n)], **along},
        "LENGTH": {"size": n, **along},
        "WINDOW": random.choice([{"footprint": grey}, {"size": grey.shape}, {"structure": grey * 3}])
        | {"mode": random.choice(MODES), "cval": 2},
        "GAUSS": {
            "sigma": random.choice([0.7, [random.choice([0, 0.5, 1.5]) for _ in range(ndim)]]),
            "order": random.choice([0, 1, 2]),
            "mode": random.choice([random.choice(MODES), [random.choice(MODES) for _ in range(ndim)]]),
            **random.choice([{}, {"truncate": 2.0}, {"radius": 2}]),
        },
    }


def maps(random, rng, ndim):
    """The arguments of maps of coordinates."""

    def rates(least, most):
        return [random.uniform(least, most) for _ in range(ndim)]

    shape = tuple(random.randint(1, 9) for _ in range(ndim))
    square = {"matrix": rng.uniform(-1, 1, (ndim, ndim)), "offset": random.uniform(-2, 4), "output_shape": shape}
    diagonal, homogeneous = {"matrix": rates(-1.5, 1.5), "offset": rates(-3, 3)}, rng.uniform(-1, 1, (ndim, ndim + 1))
    where = tuple(random.randint(1, 7) for _ in range(random.choice([1, 2, 3])))
    return {
        "SHIFTS": rates(-9, 9),
        "RATES": rates(0.3, 2.5),
        "POSITIVE": rates(0.5, 5),
        "AFFINE": random.choice([diagonal, square, {"matrix": homogeneous}]),
        "COORDINATES": rng.uniform(-4, 10, (ndim, *where)),
        "RULE": {
            "order": random.choice([0, 1, 2, 3, 5]),
            "mode": random.choice(MODES),
            "cval": random.choice([0.0, -2.5]),
            "prefilter": random.random() < 0.7,
        },
    }


def eroded(random, rng, shape):
    """The arguments of binary erosions."""
    structure = structure_of(random, rng, len(shape))
    given = random.choice([{}, {"structure": structure}])
    if given and random.random() < 0.5:
        more = {"origin": origins(random, structure.shape), "brute_force": True}
        return given | more | {"iterations": random.choice([1, 2, 3])}
    return (
        given | random.choice([{}, {"mask": rng.random(shape) < 0.7}]) | {"iterations": random.choice([1, 2, 3, -1])}
    )


def drawn(call, seed):
    """Return the operands and arguments that a call names in capitals.

    A are numbers of any dtype, N of any but bytes, C also complex, F floats, B bools, P numbers of which each differs.
    """
    random = Random(f"{seed} {call}")
    rng, names = np.random.default_rng(random.randrange(1 << 30)), names_in(call)
    ndim = random.choice([2, 3] if "TWO" in names else [1, 2, 2, 3])
    shape = tuple(random.randint(1, 9) for _ in range(ndim))
    whole, axis = rng.integers(-50, 50, shape), random.randrange(ndim)
    kind = random.choice(["f8", "f4", "i4"])
    numbers = (whole / (8 if kind[0] == "f" else 1)).astype(kind)
    labels = random.choice([rng.integers(0, 4, shape), rng.integers(-1, 4, shape) * 2.5])
    labels[(0,) * ndim] = 1
    edges = {"mode": random.choice(MODES), "cval": random.choice([0.0, 1, -2.5])}
    found = {
        "A": random.choice([numbers, numbers, whole.astype("u1")]),
        "N": numbers,
        "C": random.choice([numbers, numbers, numbers + 1j * numbers[::-1]]),
        "F": rng.normal(size=shape),
        "B": rng.random(shape) < random.choice([0.2, 0.5, 0.9]),
        "P": rng.permutation(np.arange(whole.size) - 40).reshape(shape).astype(random.choice("dfi")),
        "MASK": rng.random(shape) < 0.7,
        "LABELS": labels,
        "INDEX": random.choice([None, 1, [1, 1], [1, 2, 9]]),
        "AXIS": axis,
        "TWO": tuple(random.sample(range(ndim), min(2, ndim))),
        "KEEP": random.random() < 0.5,
        "MODE": random.choice(MODES),
        "USUAL": random.choice(MODES[:5]),
        "EDGES": edges,
        "SHORT": [random.randint(1, min(n, 4)) for n in shape],
        "ALONG": random.choice([{}, {"axis": axis, "n": 2 * shape[axis]}]),
        "SAMPLING": random.choice([None, [random.choice([1, 0.5, 2, 0.7]) for _ in shape]]),
        "STRUCTURE": structure_of(random, rng, ndim),
        "OTHER": rng.random([random.randint(1, 4) for _ in range(ndim)]) < 0.3,
        "ERODED": eroded(random, rng, shape),
        **windows(random, rng, ndim),
        **maps(random, rng, ndim),
    }
    if call[3:].partition("(")[0] in filters.RANK_ORDER_FILTERS and found["A"].dtype.kind in "iu":
        edges["cval"] = abs(int(edges["cval"]))
    return {name: found[name] for name in names if name.isupper()}


def law(title, seed, mesh, times=3):
    """Compare the calls of this title on a mesh with those of SciPy on arrays, so many times each."""
    limit = 0 if "last bit" in title else 1e-6 if title == "measurements" else None
    for call in CALLS[title]:
        for number in range(times):
            given = drawn(call, seed + 1000 * number)
            random, (first, *_) = Random(f"layouts {call} {seed}"), given
            ours = dict(given)
            ours[first] = mc.distribute(given[first], _layout(random, mesh, given[first].shape))
            for name in {*OFTEN} & {*given}:
                if random.random() < 0.6:
                    ours[name] = mc.distribute(given[name], random_layout(random, mesh, given[name].ndim))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = evaluated(call, {"np": np, "nd": scipy.ndimage, **given})
                found = evaluated(call, {"np": np, "nd": mc.ndimage, **ours})
            assert title[:7] != "filters" or found.layout == ours[first].layout
            assert same(found, expected, mesh, limit), (call, given, ours[first], found, expected)


def _layout(random, mesh, shape):
    return with_cuts(random, random_layout(random, mesh, len(shape)), shape, mesh)


def same(found, expected, mesh, limit):
    """Return whether a rank has what SciPy has, up to a *limit*; None is that of the dtype."""
    if isinstance(found, mc.DTensor):
        alike = (found.shape, found.dtype) == (expected.shape, expected.dtype)
        if mesh.rank is None:
            return alike and found.local is None
        return alike and close(found.local, block_of(expected, found.layout, mesh.rank), limit)
    if expected is None or (mesh.rank is None and not isinstance(found, tuple)):
        return found is None
    if isinstance(expected, tuple | list):
        pairs = zip(found, expected, strict=True)
        return type(found) is type(expected) and all(same(*pair, mesh, limit) for pair in pairs)
    found, expected = np.asarray(found), np.asarray(expected)
    if expected.dtype == object:
        return found.shape == expected.shape and same(found.tolist(), expected.tolist(), mesh, limit)
    return (found.dtype, found.shape) == (expected.dtype, expected.shape) and close(found, expected, limit)


def close(found, expected, limit):
    if limit == 0:
        return np.array_equal(found, expected, equal_nan=found.dtype.kind in "fc")
    if limit is None and found.dtype.kind in "iu":  # a value between two integers may be rounded either way
        return np.abs(found.astype("i8") - expected.astype("i8")).max(initial=0) <= 1
    limit = limit or (1e-9 if expected.dtype.char in "dD" else 1e-4)
    return np.allclose(found, expected, limit, limit, equal_nan=True)
