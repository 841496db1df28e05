"""The law of mc.ndimage: calls of scipy.ndimage return the same values on tensors as on arrays.

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
    """A random window of bools; its middle is True."""
    structure = rng.random([random.randint(1, 4) for _ in range(ndim)]) < 0.6
    structure[tuple(n // 2 for n in structure.shape)] = structure[tuple((n - 1) // 2 for n in structure.shape)] = True
    return structure


def windows(random, rng, ndim):
    """The windows of filters, as keywords."""
    sizes = [random.randint(1, 4 if ndim < 3 else 3) for _ in range(ndim)]
    footprint, weights = rng.random(sizes) < 0.7, rng.integers(-4, 5, sizes)
    footprint.flat[0] = True
    ordered, origin, n = [{"size": sizes}, {"footprint": footprint}], {"origin": origins(random, sizes)}, sizes[0]
    grey, axis_options = structure_of(random, rng, ndim), {"axis": random.randrange(-ndim, ndim)}
    axis_options["origin"] = origins(random, [n])[0]
    return {
        "DENSE": {"weights": weights / 4, **origin},
        "ORDERED": random.choice(ordered) | origin,
        "STRUCTURED": random.choice([*ordered, {"structure": weights}]) | origin,
        "UNIFORM": {"size": sizes, **origin},
        "LINE": {"weights": [random.randint(-4, 4) / 4 for _ in range(n)], **axis_options},
        "LENGTH": {"size": n, **axis_options},
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

    def rates(low, high):
        return [random.uniform(low, high) for _ in range(ndim)]

    shape = tuple(random.randint(1, 9) for _ in range(ndim))
    square = {"matrix": rng.uniform(-1, 1, (ndim, ndim)), "offset": random.uniform(-2, 4), "output_shape": shape}
    diagonal, homogeneous = {"matrix": rates(-1.5, 1.5), "offset": rates(-3, 3)}, rng.uniform(-1, 1, (ndim, ndim + 1))
    points_shape = tuple(random.randint(1, 7) for _ in range(random.choice([1, 2, 3])))
    return {
        "SHIFTS": rates(-9, 9),
        "RATES": rates(0.3, 2.5),
        "POSITIVE": rates(0.5, 5),
        "AFFINE": random.choice([diagonal, square, {"matrix": homogeneous}]),
        "COORDINATES": rng.uniform(-4, 10, (ndim, *points_shape)),
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
    options = random.choice([{}, {"structure": structure}])
    if options and random.random() < 0.5:
        options_of_origin = {"origin": origins(random, structure.shape), "brute_force": True}
        return options | options_of_origin | {"iterations": random.choice([1, 2, 3])}
    return (
        options | random.choice([{}, {"mask": rng.random(shape) < 0.7}]) | {"iterations": random.choice([1, 2, 3, -1])}
    )


def drawn(call, seed):
    """Return the operands and arguments that a call names in capitals.

    A are numbers of any dtype, N of any but bytes, C also complex, F floats, B bools, P numbers that all differ.
    """
    random = Random(f"{seed} {call}")
    rng, names = np.random.default_rng(random.randrange(1 << 30)), names_in(call)
    ndim = random.choice([2, 3] if "TWO" in names else [1, 2, 2, 3])
    shape = tuple(random.randint(1, 9) for _ in range(ndim))
    integers, axis = rng.integers(-50, 50, shape), random.randrange(ndim)
    dtype = random.choice(["f8", "f4", "i4"])
    numbers = (integers / (8 if dtype[0] == "f" else 1)).astype(dtype)
    labels = random.choice([rng.integers(0, 4, shape), rng.integers(-1, 4, shape) * 2.5])
    labels[(0,) * ndim] = 1
    edges = {"mode": random.choice(MODES), "cval": random.choice([0.0, 1, -2.5])}
    arguments = {
        "A": random.choice([numbers, numbers, integers.astype("u1")]),
        "N": numbers,
        "C": random.choice([numbers, numbers, numbers + 1j * numbers[::-1]]),
        "F": rng.normal(size=shape),
        "B": rng.random(shape) < random.choice([0.2, 0.5, 0.9]),
        "P": rng.permutation(np.arange(integers.size) - 40).reshape(shape).astype(random.choice("dfi")),
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
    if call[3:].partition("(")[0] in filters.RANK_ORDER_FILTERS and arguments["A"].dtype.kind in "iu":
        edges["cval"] = abs(int(edges["cval"]))
    return {name: arguments[name] for name in names if name.isupper()}


def law(title, seed, mesh, times=3):
    """Compare the calls of group *title* on a mesh with those of SciPy on arrays, *times* times each."""
    limit = 0 if "last bit" in title else 1e-6 if title == "measurements" else None
    for call in CALLS[title]:
        for number in range(times):
            operands = drawn(call, seed + 1000 * number)
            random, (first_name, *_) = Random(f"layouts {call} {seed}"), operands
            tensor_operands = dict(operands)
            tensor_operands[first_name] = mc.distribute(
                operands[first_name], _layout(random, mesh, operands[first_name].shape)
            )
            for name in {*OFTEN} & {*operands}:
                if random.random() < 0.6:
                    tensor_operands[name] = mc.distribute(
                        operands[name], random_layout(random, mesh, operands[name].ndim)
                    )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = evaluated(call, {"np": np, "nd": scipy.ndimage, **operands})
                result = evaluated(call, {"np": np, "nd": mc.ndimage, **tensor_operands})
            assert title[:7] != "filters" or result.layout == tensor_operands[first_name].layout
            assert same(result, expected, mesh, limit), (call, operands, tensor_operands[first_name], result, expected)


def _layout(random, mesh, shape):
    return with_cuts(random, random_layout(random, mesh, len(shape)), shape, mesh)


def same(result, expected, mesh, limit):
    """Return whether a result equals SciPy's on this rank, up to the error *limit*; None is a limit for the dtype."""
    if isinstance(result, mc.DTensor):
        is_alike = (result.shape, result.dtype) == (expected.shape, expected.dtype)
        if mesh.rank is None:
            return is_alike and result.local is None
        return is_alike and close(result.local, block_of(expected, result.layout, mesh.rank), limit)
    if expected is None or (mesh.rank is None and not isinstance(result, tuple)):
        return result is None
    if isinstance(expected, tuple | list):
        pairs = zip(result, expected, strict=True)
        return type(result) is type(expected) and all(same(*pair, mesh, limit) for pair in pairs)
    result, expected = np.asarray(result), np.asarray(expected)
    if expected.dtype == object:
        return result.shape == expected.shape and same(result.tolist(), expected.tolist(), mesh, limit)
    return (result.dtype, result.shape) == (expected.dtype, expected.shape) and close(result, expected, limit)


def close(result, expected, limit):
    if limit == 0:
        return np.array_equal(result, expected, equal_nan=result.dtype.kind in "fc")
    if limit is None and result.dtype.kind in "iu":  # a value between two integers may be rounded either way
        return np.abs(result.astype("i8") - expected.astype("i8")).max(initial=0) <= 1
    limit = limit or (1e-9 if expected.dtype.char in "dD" else 1e-4)
    return np.allclose(result, expected, limit, limit, equal_nan=True)
