"""Random initial values: a rank draws its own block, the same for every layout. No communication.

The values are those of the first call of a generator with this seed (`meshcomm.random.streams`), scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from numpy.random import Generator as NumpyGenerator
from numpy.random import SeedSequence
from numpy.typing import DTypeLike

from meshcomm.core._arguments import as_dtype, as_integer, as_shape, quote
from meshcomm.core._types import Array
from meshcomm.errors import DTypeError, ShapeError
from meshcomm.random.streams import Streams, Tiles, tile_sides


@dataclass(frozen=True)
class RandomInitializer:
    """A function that returns a block of draws by NumPy's *method*, times *scale* and plus *shift*."""

    method: str
    seed: int
    shift: float
    scale: float

    def __call__(self, slices: tuple[slice, ...], shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Return the block *slices* of the array of *shape* and *dtype*."""
        out_dtype, lengths = as_dtype(dtype), as_shape(shape)
        if (
            out_dtype.kind not in "fcV"
            or out_dtype.type is np.void
            or not np.can_cast(np.float64, out_dtype, "same_kind")
        ):
            raise DTypeError(f"random real numbers cannot be of dtype {out_dtype}; it must be of floating point")
        bounds = [slice_.indices(n)[:2] for slice_, n in zip(slices, lengths, strict=True)]
        box = tuple((start, max(start, stop)) for start, stop in bounds)
        block = np.empty(tuple(stop - start for start, stop in box), out_dtype)
        streams = Streams(SeedSequence(self.seed))
        Tiles(lengths, tile_sides(lengths), lambda tile: streams.at(0, tile)).fill(block, box, self._tile)
        return block

    def _tile(self, generator: NumpyGenerator, global_slices: tuple[slice, ...], out: Array | None) -> Array:
        draws: Array = getattr(generator, self.method)(
            [global_slice.stop - global_slice.start for global_slice in global_slices]
        )
        return draws * self.scale + self.shift


def random_uniform(seed: int, low: float = 0.0, high: float = 1.0) -> RandomInitializer:
    """Return an initializer of numbers that are uniform between *low* and *high*.

    The same *seed* gives the same global array for every layout and number of ranks: that of the first call of
    ``mc.random.default_rng(seed).uniform``. ``ShapeError`` unless *seed* is an integer of up to 128 bits. The
    initializer raises ``DTypeError`` for a dtype that is not of floating point.

    >>> whole = random_uniform(7)((slice(0, 2), slice(0, 3)), (2, 3), "f4")
    >>> block = random_uniform(7)((slice(0, 2), slice(1, 2)), (2, 3), "f4")
    >>> bool((block == whole[:, 1:2]).all())
    True
    """
    checked_seed = _check_seed("random_uniform", seed, low=low, high=high)
    return RandomInitializer("random", checked_seed, low, high - low)


def random_normal(seed: int, mean: float = 0.0, stddev: float = 1.0) -> RandomInitializer:
    """Return an initializer of numbers of a normal distribution.

    The same *seed* gives the same global array for every layout and number of ranks: that of the first call of
    ``mc.random.default_rng(seed).normal``. ``ShapeError`` unless *seed* is an integer of up to 128 bits. The
    initializer raises ``DTypeError`` for a dtype that is not of floating point.

    >>> random_normal(7)((slice(0, 2),), (1000,), "f4").shape
    (2,)
    """
    checked_seed = _check_seed("random_normal", seed, mean=mean, stddev=stddev)
    return RandomInitializer("standard_normal", checked_seed, mean, stddev)


def _check_seed(name: str, seed: int, **parameters: float) -> int:
    """Return *seed*; ``ShapeError`` unless it is valid, and all *parameters* of the function *name* are numbers."""
    usage = f"; mc.{name}(seed) makes an initializer, for mc.Variable(mc.{name}(seed), shape, dtype, layout=layout)"
    try:
        checked_seed = as_integer(seed, "seed", ShapeError)
    except ShapeError as error:
        raise ShapeError(f"{name}: {error}{usage}") from None
    if not 0 <= checked_seed < 1 << 128:
        raise ShapeError(f"{name}: seed {quote(seed)}; it must be zero or more and below 2**128")
    for parameter, value in parameters.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ShapeError(f"{name}: {parameter} is a number, not {quote(value)}{usage}")
    return checked_seed
