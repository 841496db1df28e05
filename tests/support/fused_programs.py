"""Random functions of elementwise operations and reductions, and a check that `fuse` does not change their results."""

from random import Random

import numpy as np

import meshcomm as mc
from support.reference import same_numbers

U = mc.UNSHARDED

SHAPES = [(7,), (5, 3), (1000,), (40, 110), (3, 4, 5), (0, 3), (700, 3), (2, 40_000)]
DTYPES = ["f8", "f8", "f4", "i4", "i8", "u1", "?", "c16", "f2"]

UNARY = [
    *(np.negative, np.absolute, np.sqrt, np.exp, np.log, np.sin, np.tanh, np.square, np.sign, np.floor, np.isnan),
    *(np.logical_not, np.conjugate, np.invert, np.real, np.imag, np.angle, np.nan_to_num, np.zeros_like, np.copy),
    *(lambda x: x**2, lambda x: x**3, lambda x: x**0.5, lambda x: x**-1, lambda x: 2.0**x, lambda x: x.astype("f4")),
    *(lambda x: 1 / x, lambda x: 3 - x, lambda x: x % 3, lambda x: np.clip(x, 0.25, 2), lambda x: x.clip(None, 2)),
    *(
        lambda x: np.modf(x)[1],
        lambda x: np.round(x, 1),
        lambda x: np.where(x, x, 2),
        lambda x: np.multiply(x, 2, dtype="f8"),
    ),
    *(lambda x: np.float32(1.5) * x, lambda x: x.round(decimals=1), lambda x: np.clip(x, min=1), lambda x: x.real),
]
BINARY = [
    *(np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.fmin, np.hypot, np.arctan2, np.less, np.equal),
    *(np.logical_and, np.bitwise_xor, np.floor_divide, np.remainder, np.power, np.copysign, np.isclose),
    *(lambda x, y: divmod(x, y)[0], lambda x, y: divmod(x, y)[1], lambda x, y: np.where(x > y, x, y)),
    *(
        lambda x, y: x + y * 2,
        lambda x, y: (x != y) & (x > 1),
        lambda x, y: np.clip(x, y, 5),
        lambda x, y: x / (y + 1),
    ),
]
REDUCTIONS = [  # sums of whole numbers are exact in any order
    *(np.min, np.max, np.any, np.all, lambda x: np.sum(x > 1), lambda x: (x > 1).mean(), lambda x: np.prod(x == x)),
    *(lambda x: (x < 1).sum(axis=-1), lambda x: x.max(axis=0), lambda x: np.argmax(x)),
]
WITH_REDUCTIONS = [
    lambda x: x / (abs(x).max() + 1),
    lambda x: x - (x > 0).sum(axis=0),
    lambda x: x[..., :1] * x,
    lambda x: x[0] + x,
]


def operands(random):
    """Arrays that broadcast to a common shape: of this shape, rows, columns; in the order of C or of Fortran."""
    shape = random.choice(SHAPES)
    arrays = []
    for number in range(random.randint(1, 3)):
        lengths = [1 if number and random.random() < 0.3 else n for n in shape][
            random.randrange(len(shape)) if number else 0 :
        ]
        values = np.random.default_rng(random.randrange(2**32)).normal(size=lengths) * 3
        with np.errstate(all="ignore"):
            values = values.astype(random.choice(DTYPES))
        arrays.append(np.asfortranarray(values) if random.random() < 0.2 else values)
    return arrays


def function_of(random, arguments):
    """A random function of such operands that NumPy can compute; it returns one result or several."""
    steps, values = [], list(arguments)
    reductions = random.random() < 0.5
    while len(steps) < 8:
        arity = random.choice((1, 2, 2))
        operand_numbers = [random.randrange(len(values)) for _ in range(arity)]
        step = random.choice(
            BINARY if arity == 2 else WITH_REDUCTIONS if reductions and random.random() < 0.1 else UNARY
        )
        try:
            with np.errstate(all="ignore"):
                value = step(*[values[number] for number in operand_numbers])
        except (TypeError, ValueError, OverflowError, IndexError):
            continue
        steps.append((step, operand_numbers))
        values.append(value)
    final_steps = (
        [(step, random.randrange(len(values))) for step in random.sample(REDUCTIONS, 2)] if reductions else []
    )
    returned = random.sample(range(len(arguments), len(values)), random.randint(1, 3))

    def function(*args):
        values = list(args)
        for step, operand_numbers in steps:
            values.append(step(*[values[number] for number in operand_numbers]))
        results = [values[number] for number in returned]
        results += [step(values[number]) for step, number in final_steps]
        return tuple(results) if len(results) > 1 else results[0]

    return function


def program(seed):
    """A random function, and operands."""
    random = Random(seed)
    while True:
        arguments = operands(random)
        function = function_of(random, arguments)
        try:
            with np.errstate(all="ignore"):
                function(*arguments)
        except ValueError:  # a minimum of no elements
            continue
        return function, arguments


def alike(result, expected):
    """Return whether results are equal bit for bit, and in the same layouts."""
    if isinstance(expected, tuple):
        return isinstance(result, tuple) and len(result) == len(expected) and all(map(alike, result, expected))
    if isinstance(expected, mc.DTensor):
        if (result.shape, result.dtype, result.layout) != (expected.shape, expected.dtype, expected.layout):
            return False
        return expected.local is None or alike(result.local, expected.local)
    if type(result) is not type(expected):
        return False
    result, expected = np.asarray(result), np.asarray(expected)
    if result.dtype != expected.dtype or result.shape != expected.shape:
        return False
    return same_numbers(result, expected)


def on_tensors(seed, mesh):
    """Compare a fused function with the function itself, on tensors in random layouts and arrays."""
    function, arrays = program(seed)
    random, names = Random(seed), [name for name, _ in mesh.dims]
    tensors = []
    for number, array in enumerate(arrays):
        if number and random.random() < 0.2:
            tensors.append(array)  # the same one on all ranks
            continue
        specs = random.sample([*names, *[U] * array.ndim], array.ndim)
        tensors.append(mc.distribute(array, mc.Layout(specs, mesh)))
    with np.errstate(all="ignore"):
        expected, fused = function(*tensors), mc.fuse(function)
        for _ in range(2):  # the second call uses the cache of the first
            assert alike(fused(*tensors), expected), seed
