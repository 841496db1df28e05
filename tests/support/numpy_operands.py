"""Operands for the calls of tests/data/numpy_calls.txt. A seed and the call determine them, in every process."""

import ast
from functools import cache, partial
from math import inf, prod
from random import Random

import numpy as np

from support.random_cases import shapes_of
from support.reference import random_bits

NUMBERS = ["?", "i1", "u1", "i4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", ">i2"]
SORTED = ["f8", "f8", "f4", "f2", "g", "c16", "c8", "i8", "i4", "u1", "u8", "?", ">f8", ">i4", "M8[s]", "U2"]
RAW = ["f8", "?", "i1", "u2", "c8", "f2", "g", "V3", ">i4"]
LEVELS = [0, 1, 0.5, 0.25, 0.99, 1 / 3, np.float64(0.7), np.float32(0.3), [0.1, 0.5], np.array([[1.0, 0.0, 0.7]])]
PAIRS = [("f8", "f8"), ("c16", "c16"), ("i4", "f4"), ("?", "?"), ("c8", "i2"), ("u1", "i1"), (">f8", "f2")]


@cache
def names_in(call):
    """The names in a call, in their order."""
    nodes = [node for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(n.id for n in sorted(nodes, key=lambda n: (n.lineno, n.col_offset))))


def values(random, shape, dtype, few=True):
    """Small numbers with many ties; if not *few*, larger ones. Floats may be not finite, or -0.0."""
    rng, kind = np.random.default_rng(random.randrange(1 << 30)), np.dtype(dtype).kind
    numbers = rng.integers(-3, 4, shape).astype("f8") if few else rng.integers(-50, 50, shape).astype("f8")
    if kind not in "fc":
        return np.asarray(np.abs(numbers) if kind in "u?UM" else numbers).astype("i8").astype(dtype)
    special = random.choice([[], [], [np.nan], [inf], [-inf, np.nan], [-0.0], [inf, -inf, np.nan]])
    if kind == "c":  # products of complex infinities depend on the order
        special = special and [np.nan, -0.0]
    numbers /= random.choice([1, 4])
    if special:
        numbers = np.where(rng.random(shape) < 0.1, rng.choice(special, shape), numbers)
    return np.asarray(numbers + 1j * rng.integers(-1, 2, shape) if kind == "c" else numbers).astype(dtype)


def integers(random, low, high, shape, dtypes=("i8",)):
    """Integers from *low* on, below *high*; an empty array if there are none."""
    if high <= low:
        shape = (0,) * max(1, np.size(shape)) if shape != () else (0,)
    rng = np.random.default_rng(random.randrange(1 << 30))
    return np.asarray(rng.integers(low, max(high, low + 1), shape)).astype(random.choice(dtypes))


def any_shape(random, min_ndim=0):
    """A shape of *min_ndim* to three axes of small lengths; sometimes one axis is longer."""
    shape = [random.choice([0, 1, 2, 2, 3, 3, 5, 7, 11]) for _ in range(random.randint(min_ndim, 3))]
    if shape and random.random() < 0.1:
        shape[random.randrange(len(shape))] = random.randint(20, 90)
    return tuple(shape)


def broadcasting(random, shape):
    return tuple(1 if random.random() < 0.2 else n for n in shape[random.randint(0, len(shape)) :])


def same_or_other(random, array, other_array):
    """A copy of *array*, or *other_array*; sometimes one element is changed."""
    result = array.copy() if random.random() < 0.6 else other_array
    if result.size and random.random() < 0.3:
        result.flat[random.randrange(result.size)] += result.dtype.type(1)
    return result


def filled(seed, dtype, *shape):
    """Small integers: sums of their products are exact in any order."""
    return np.random.default_rng([seed, *shape]).integers(-4, 5, shape).astype(dtype)


def matrices(random):
    """Stacks of well-conditioned matrices: small integers, with a strong diagonal; and right sides."""
    stack, n = random.choice([(), (), (), (3,), (1,), (2, 3), (0,)]), random.randint(random.random() > 0.1, 8)
    dtype, rng = random.choice(["f8", "f4", "c16", "c8", "i4"]), np.random.default_rng(random.randrange(1 << 30))

    def random_matrix(*shape):
        numbers = rng.integers(-4, 5, shape) * 1.0
        return (numbers + 1j * rng.integers(-4, 5, shape) if dtype[0] == "c" else numbers).astype(dtype)

    square = (random_matrix(*stack, n, n) + 20 * np.eye(n)).astype(dtype)
    width = (random.randint(1, 6),) if random.random() < 0.7 else ()
    return {
        "SQUARE": square,
        "HERMITIAN": square + square.swapaxes(-1, -2).conj(),
        "MATRIX": random_matrix(*stack, random.randint(1, 8), n),
        "LOW": random_matrix(*stack, n, 2) @ random_matrix(*stack, 2, 5),
        "SIDES": random_matrix(*(stack[random.randint(0, len(stack)) :] if width else ()), n, *width).real,
    }


def words(random, shape, axis, n):
    """Arguments that are no arrays of numbers, by their names in calls."""
    ndim, size = len(shape), prod(shape)
    several_axes = tuple(random.sample(range(ndim), random.randint(0, ndim)))
    return {
        "AXIS": axis,
        "DIM": axis,
        "AXES": random.choice([None, several_axes, axis]),
        "SOME": several_axes or axis,
        "NUMBERS": list(range(1, n + 1)),
        "ORDER": random.sample(range(-ndim, 0), ndim),
        "TWO": tuple(random.sample(range(ndim), 2)) if ndim > 1 else (0, 1),
        "SHAPE": random.choice(shapes_of(size)) if size else random.choice([(0, 3), (2, 0), (0,)]),
        "KEEP": random.random() < 0.5,
        "TIMES": random.choice([0, 1, 1, 2, 3, 7]),
        "SHIFT": random.choice([0, 1, -1, 2, 7, -20]),
        "SIDE": random.choice(["left", "right"]),
        "MODE": random.choice(["wrap", "clip"]),
        "LEVEL": random.choice(LEVELS),
        "NUMBER": random.randrange(-n, n) if n else 0,
        "WIDTH": random.choice([0, 2, (1, 2), ((2, 0),), [random.choice([(4, 9), (0, 1), (3, 0)]) for _ in shape]]),
    }


def drawn(call, seed):
    """Return the operands and arguments that a call names in capitals.

    Of one random shape: A, B (NUMBERS, often equal ones), S (SORTED), R (RAW, any bits), N (integers), W (positive
    weights), M (bools), Q (numbers, one at least); P has a shape that broadcasts to it.
    Lines: L (SORTED; V has this dtype, and any shape), C (counts) and D (weights), of one length.
    Along AXIS (DIM is one that is there): INDEX and WIDE (indices in range, or beyond it), MASK, COUNTS, LINE (one
    number for each element), ALONG (indices for each line); AT are indices for all elements.
    Matrices in stacks: SQUARE, HERMITIAN, MATRIX (of any lengths), LOW (of rank 2), and SIDES for SQUARE.
    I and J are functions: I(2, 3) is 2 x 3 integers, of one of the dtypes of PAIRS.
    """
    random, number = Random(f"{seed} {call}"), hash_of(call) + seed
    shape = any_shape(random, min_ndim=int(bool({"DIM", "WIDTH"} & {*names_in(call)})))
    axis = random.randrange(-len(shape), len(shape)) if shape else None
    n, size, nonempty_shape = shape[axis] if shape else 1, prod(shape), tuple(n or 2 for n in shape)
    index_lengths = [m if random.random() < 0.8 else 1 for m in shape]
    if shape:
        index_lengths[axis] = random.randint(0, 5) if n else 0
    number_dtype, sort_dtype, dtype_pair = random.choice(NUMBERS), random.choice(SORTED), PAIRS[number % len(PAIRS)]
    length, few_values = random.choice([0, 1, random.randint(2, 60)]), random.random() < 0.6
    indices = tuple(random.randint(1, 5) for _ in range(random.randint(0, 2)))
    make, draw, ints = partial(values, random), partial(integers, random), ("i8", "i4", "u1", "?")
    base = make(shape, number_dtype)
    makers = {
        "A": lambda: base,
        "B": lambda: same_or_other(random, base, make(shape, number_dtype)),
        "S": lambda: make(shape or (3,), sort_dtype, few_values),
        "R": lambda: random_bits(shape, random.choice(RAW), number),
        "N": lambda: draw(0, 9, shape, ints),
        "W": lambda: draw(1, 9, shape, ("f8", "i4")),
        "M": lambda: draw(0, 2, shape, ("?",)),
        "Q": lambda: make(
            nonempty_shape or (5,), random.choice(["f8", "f8", "f4", "f2", "i8", "u1", "g"]), few_values
        ),
        "P": lambda: draw(-4, 5, broadcasting(random, shape), ("f8", "i2", "f4")),
        "L": lambda: make((length,), sort_dtype, few_values),
        "V": lambda: make(any_shape(random, 1), sort_dtype, few_values),
        "C": lambda: draw(0, 9, (length,), ints),
        "D": lambda: draw(-3, 9, (length,), ("f8", "i4")),
        "INDEX": lambda: draw(-n, n, indices, ("i8", "i4")),
        "WIDE": lambda: draw(-2 * n, 3 * n, indices, ("i8", "i4")),
        "AT": lambda: draw(-size, size, indices),
        "MASK": lambda: draw(0, 2, (n,), ("?",)),
        "COUNTS": lambda: draw(0, 4, (n,)),
        "LINE": lambda: np.arange(1, n + 1),
        "ALONG": lambda: draw(-n, n, tuple(index_lengths)) if n else np.zeros(index_lengths, int),
        "I": lambda: partial(filled, seed, dtype_pair[0]),
        "J": lambda: partial(filled, seed + 1, dtype_pair[1]),
    }
    arguments = words(random, shape, axis, n) | matrices(Random(f"matrices {seed} {call}"))
    return {
        name: arguments[name] if name in arguments else makers[name]() for name in names_in(call) if name.isupper()
    }


def hash_of(call):
    return sum(call.encode())


def fixed(seed):
    """Return the operands with names of small letters, which depend on the seed only."""
    rng = np.random.default_rng(seed)
    f, g = rng.integers(-8, 9, (2, 7, 6)) / 4
    v, w = rng.integers(-8, 9, (2, 11)) / 4
    x = np.where(rng.random((7, 6)) < 0.2, np.nan, f)
    return {
        "f": f,
        "g": g,
        "v": v,
        "w": w,
        "x": x,
        "n": rng.integers(-3, 6, (7, 6)),
        "k": rng.integers(-3, 6, 11),
        "b": rng.random((7, 6)) < 0.6,
        "c": f + 1j * g,
        "t": rng.integers(-8, 9, (4, 3, 5)) / 4,
        "e": np.zeros((0, 6)),
        "z": np.array(1.5),
        "s": np.sort(v),
        "u": rng.integers(0, 256, 11).astype("u1"),
    }
