"""Random numbers as their page defines them, computed tile by tile with NumPy alone, and the record of each method.

`python tests/support/random_numbers.py` writes tests/data/random.json. Recorded entries may never change: run it only
to add methods.
"""

import json
from hashlib import blake2b
from itertools import product
from pathlib import Path

import numpy as np

RECORD = Path(__file__).parent.parent / "data" / "random.json"
SEED = 2026
SHAPE = (150, 200)
"""The shape of recorded arrays: four tiles, three of them cut off by the ends of the axes."""

METHODS = {
    "random": ((), {}), "random of float32": ((), {"dtype": np.float32}), "standard_normal": ((), {}),
    "standard_normal of float32": ((), {"dtype": np.float32}), "standard_exponential": ((), {}),
    "standard_exponential by inv": ((), {"method": "inv"}), "standard_gamma": ((2.5,), {}), "integers": ((-5, 7), {}),
    "integers of int8": ((100,), {"dtype": np.int8, "endpoint": True}), "integers of bool": ((0, 2), {"dtype": bool}),
    "integers of uint64": ((0, 2**64 - 1), {"dtype": np.uint64, "endpoint": True}), "normal": ((1.5, 2.0), {}),
    "uniform": ((-1.0, 3.0), {}), "exponential": ((2.0,), {}), "gamma": ((0.5, 2.0), {}), "beta": ((2.0, 3.0), {}),
    "lognormal": ((0.5, 0.75), {}), "laplace": ((1.0, 2.0), {}), "logistic": ((1.0, 2.0), {}),
    "gumbel": ((1.0, 2.0), {}), "rayleigh": ((2.0,), {}), "weibull": ((1.5,), {}), "pareto": ((3.0,), {}),
    "power": ((2.0,), {}), "triangular": ((-1.0, 0.0, 2.0), {}), "vonmises": ((0.5, 4.0), {}),
    "wald": ((1.0, 2.0), {}), "chisquare": ((3.0,), {}), "noncentral_chisquare": ((3.0, 1.0), {}),
    "f": ((5.0, 7.0), {}), "noncentral_f": ((5.0, 7.0, 1.0), {}), "standard_t": ((4.0,), {}),
    "standard_cauchy": ((), {}), "poisson": ((6.5,), {}), "poisson of many": ((1000.0,), {}),
    "binomial": ((20, 0.3), {}), "negative_binomial": ((5, 0.4), {}), "geometric": ((0.2,), {}),
    "hypergeometric": ((15, 20, 12), {}), "logseries": ((0.6,), {}), "zipf": ((2.5,), {}),
}  # fmt: skip
"""The methods that draw each element separately: parameters and options. Words after the name distinguish entries."""

VECTORS = {
    "multivariate_normal": (([1.0, 2.0, 3.0], [[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 3.0]]), {}),
    "multivariate_normal by cholesky": (([1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]]), {"method": "cholesky"}),
    "dirichlet": (([1.0, 2.0, 3.0, 4.0],), {}),
    "multinomial": ((20, [0.2, 0.3, 0.5]), {}),
    "multivariate_hypergeometric": (([10, 20, 30], 12), {}),
}
"""The methods that draw vectors."""


def sides_of(shape, elements=16384):
    """The sides of tiles: the shortest side is doubled, or the last of equal ones, while a tile is not too large."""
    sides = [1] * len(shape)
    while any(side < n for side, n in zip(sides, shape, strict=True)):
        short_axes = [axis for axis in range(len(shape)) if sides[axis] < shape[axis]]
        axis = max(short_axes, key=lambda a: (-sides[a], a))
        longer_sides = [
            min(2 * side, n) if a == axis else side for a, (side, n) in enumerate(zip(sides, shape, strict=True))
        ]
        if np.prod(longer_sides) > elements:
            break
        sides = longer_sides
    return sides


def stream(seed, call, tile):
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, tile, call, 0]))


def tiles(shape, last=0):
    """Yield the number and the slices of each tile; the *last* axes are not cut."""
    cut = len(shape) - last
    sides = [*sides_of(shape[:cut], max(1, 16384 // int(np.prod(shape[cut:])))), *shape[cut:]]
    boxes = product(
        *(
            [slice(begin, min(begin + side, n)) for begin in range(0, n, side)]
            for side, n in zip(sides, shape, strict=True)
        )
    )
    return enumerate(boxes)


def drawn(name, shape, seed=SEED, call=0, given=(), options=None):
    """The array of *shape* that a method draws; parameters are numbers or arrays that broadcast to *shape*."""
    sample = getattr(stream(seed, call, 0), name.split()[0])(
        *(np.ravel(x)[0] for x in given), size=1, **(options or {})
    )
    result = np.empty(shape, sample.dtype)
    for number, box in tiles(shape):
        size = tuple(interval.stop - interval.start for interval in box)
        tile_parameters = [np.broadcast_to(x, shape)[box] if np.ndim(x) else x for x in given]
        block = getattr(stream(seed, call, number), name.split()[0])(*tile_parameters, size=size, **(options or {}))
        result[box] = block
    return result


def vectors(name, shape, seed=SEED, call=0, given=(), options=None):
    """The whole array of vectors that a method draws."""
    result = None
    for number, box in tiles((*shape, len(given[0]) if np.ndim(given[0]) else len(given[1])), last=1):
        size = tuple(interval.stop - interval.start for interval in box[:-1])
        block = getattr(stream(seed, call, number), name.split()[0])(*given, size=size, **(options or {}))
        result = np.empty((*shape, block.shape[-1]), block.dtype) if result is None else result
        result[box] = block
    return result


EXACT = ("random", "integers", "permutation", "permuted", "choice", "bytes")
"""Methods that do not depend on functions of the C library, such as log: their bytes are recorded."""


def recorded(name, array):
    """The record of an array: numbers of the first and the last tile, the mean, and maybe a digest of all bytes."""
    flat = np.asarray(array).reshape(-1)
    numbers = [number.item() for number in (*flat[:4], *flat[-4:])]
    entry = {"dtype": array.dtype.str, "numbers": numbers, "mean": float(flat.mean(dtype=np.float64))}
    if name.split()[0] in EXACT:
        entry["digest"] = blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).hexdigest()
    return entry


def ours():
    """Return the records of this version of meshcomm, by name. Each method is the first call of a generator."""
    import meshcomm as mc

    layout = mc.Layout([mc.UNSHARDED] * 2, mc.create_mesh([("x", 1)]))
    line, space = (mc.Layout([mc.UNSHARDED] * ndim, layout.mesh) for ndim in (1, 3))
    t = mc.distribute(np.arange(30000).reshape(SHAPE), layout)
    arrays = {}
    for name, (parameters, options) in METHODS.items():
        method = getattr(mc.random.default_rng(SEED), name.split()[0])
        arrays[name] = method(*parameters, size=SHAPE, layout=layout, **options).local
    for name, (parameters, options) in VECTORS.items():
        method = getattr(mc.random.default_rng(SEED), name.split()[0])
        arrays[name] = method(*parameters, size=SHAPE, layout=space, **options).local
    generator = mc.random.default_rng
    weights = np.arange(1000) / np.arange(1000).sum()
    arrays["permutation"] = generator(SEED).permutation(30000, layout=line).local
    arrays["permutation of rows"] = generator(SEED).permutation(t).local
    arrays["permuted"] = generator(SEED).permuted(t, axis=1).local
    arrays["choice"] = generator(SEED).choice(1000, SHAPE, layout=layout).local
    arrays["choice by weights"] = generator(SEED).choice(1000, SHAPE, p=weights, layout=layout).local
    arrays["choice of few"] = generator(SEED).choice(10**6, 100, replace=False, layout=line).local
    arrays["choice of many"] = generator(SEED).choice(1000, 700, replace=False, layout=line).local
    arrays["choice of many by weights"] = (
        generator(SEED).choice(1000, 700, replace=False, p=weights, layout=line).local
    )
    arrays["bytes"] = np.frombuffer(generator(SEED).bytes(100), np.uint8)
    arrays["random of a spawned generator"] = generator(SEED).spawn(2)[1].random(SHAPE, layout=layout).local
    return {name: recorded(name, array) for name, array in arrays.items()}


if __name__ == "__main__":
    import meshcomm as mc

    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    with mc.simulate(1) as world:
        (now,) = world.run(ours)
    assert {name: entry for name, entry in now.items() if name in known} == known, "what is recorded may not change"
    RECORD.write_text(json.dumps(now, indent=1) + "\n")
