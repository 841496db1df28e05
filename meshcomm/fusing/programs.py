"""Programs: the elementwise operations of a function as calls of NumPy, piece by piece, in kept buffers.

Values have numbers: first the leaves, which are arrays and constants, then what each step makes, in order. A step
writes to its output, so the elements of a result are made by the same ufuncs as without pieces. A buffer is used again
once its value was read for the last time.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from meshcomm.blocks.rules import broadcast_shape
from meshcomm.core._tuning import LINE, PIECE_BYTES
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.memory.scratch import scratch
from meshcomm.fusing.functions import TOTALS, Function, Kind, result_dtypes, writing
from meshcomm.fusing.lines import Origin, Watch

FUSED_BUFFERS = 2**22
"""Bytes of all buffers that a fused function keeps: with many of them, pieces are shorter."""


class Step(NamedTuple):
    """An elementwise operation on values of a program; *names* are those of its last inputs."""

    function: Function
    inputs: tuple[int, ...]
    names: tuple[str, ...]


class Source(NamedTuple):
    """What a program is made from: equal ones have one program.

    Parameters
    ----------
    leaves: the kinds of the operands and constants
    steps: what is computed, in order
    outputs: the values that are results
    totals: reductions of all elements: their functions and the values
    """

    leaves: tuple[Kind, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    totals: tuple[tuple[Function, int], ...]


class Total(NamedTuple):
    """A reduction of all elements.

    Parameters
    ----------
    value: what is reduced
    ufunc: reduces a piece, and then what pieces were reduced to
    merge: how devices reduce what they have: see `meshcomm.core.transport.reduce`
    shares: the dtype in which all of them reduce
    dtype: of the result
    mean: whether the result is a mean
    """

    value: int
    ufunc: np.ufunc
    merge: str
    shares: DType
    dtype: DType
    mean: bool

    def share(self, found: Array | Sequence[Array]) -> Array:
        """Return what the elements of an array are reduced to; zero, which does not count, if there are none."""
        if len(found) == 0:
            return np.zeros((), self.shares)
        return np.asarray(self.ufunc.reduce(np.asarray(found), axis=None, dtype=self.shares))

    def finish(self, share: Array, count: int) -> Array:
        """Return the result, from the share of all *count* elements."""
        return np.asarray(share / count).astype(self.dtype) if self.mean else share


class Program(NamedTuple):
    """What runs for each piece.

    Parameters
    ----------
    calls: functions, the values that they take, and the one that they write to
    buffers: for each array in a buffer: its dtype, which buffer, and the numbers of the values that are in it
    itemsizes: of the buffers
    outputs: the values that are results, and their dtypes
    totals: the reductions
    """

    calls: tuple[tuple[Callable[..., object], tuple[int, ...], int], ...]
    buffers: tuple[tuple[DType, int, tuple[int, ...]], ...]
    itemsizes: tuple[int, ...]
    outputs: tuple[tuple[int, DType], ...]
    totals: tuple[Total, ...]


@lru_cache(maxsize=256)
def compiled(source: Source) -> Program:
    """Return the program of *source*.

    >>> f8 = np.dtype("f8")
    >>> steps = Step(np.multiply, (0, 0), ()), Step(np.add, (2, 1), ()), Step(np.sqrt, (3,), ())
    >>> program = compiled(Source((f8, float), steps, (4,), ()))
    >>> [numbers for _, *numbers in program.calls], program.buffers
    ([[(0, 0), 2], [(2, 1), 3], [(3,), 4]], ((dtype('float64'), 0, (2, 3)),))
    """
    kinds: list[Any] = list(source.leaves)
    for step in source.steps:
        kinds += result_dtypes(step.function, tuple(kinds[each] for each in step.inputs), step.names)
    buffers, itemsizes = _buffers(source, kinds)
    calls = [(writing(s.function, s.names), s.inputs, n) for n, s in enumerate(source.steps, len(source.leaves))]
    outputs = tuple((value, kinds[value]) for value in source.outputs)
    totals = tuple(_total(function, value, kinds[value]) for function, value in source.totals)
    return Program(tuple(calls), buffers, itemsizes, outputs, totals)


def _buffers(
    source: Source, kinds: Sequence[Any]
) -> tuple[tuple[tuple[DType, int, tuple[int, ...]], ...], tuple[int, ...]]:
    """Return which values are in which buffers, and the itemsizes of the buffers."""
    last = {value: number for number, step in enumerate(source.steps) for value in step.inputs}
    last.update((value, len(source.steps)) for _, value in source.totals)
    held: dict[int, int] = {}  # the buffer of a value
    itemsizes: list[int] = []
    free: list[int] = []
    for number, step in enumerate(source.steps):
        value = len(source.leaves) + number
        ended = [each for each in set(step.inputs) if each in held and last[each] == number]
        if value not in source.outputs:
            in_place = [held[each] for each in ended if kinds[each] == kinds[value]]
            if not isinstance(step.function, np.ufunc) or step.names:
                in_place = []
            fitting = in_place or [each for each in free if itemsizes[each] == kinds[value].itemsize]
            if not fitting:
                fitting = [len(itemsizes)]
                itemsizes.append(kinds[value].itemsize)
            held[value] = fitting[-1]
            free = [each for each in free if each != fitting[-1]]
        free += [held[each] for each in ended if held[each] != held.get(value)]
    arrays: dict[tuple[DType, int], tuple[int, ...]] = {}
    for value, buffer in held.items():
        arrays[kinds[value], buffer] = (*arrays.get((kinds[value], buffer), ()), value)
    return tuple((*where, values) for where, values in arrays.items()), tuple(itemsizes)


def _total(function: Function, value: int, kind: DType) -> Total:
    dtype = np.asarray(function(np.ones(1, kind))).dtype
    mean = function is np.mean
    # As in NumPy, the mean of float16 is added up in float32.
    shares = np.dtype(np.float32) if mean and dtype == np.float16 else dtype
    return Total(value, *TOTALS[function], shares, dtype, mean)


class Results(NamedTuple):
    """What a program has made: arrays, and the shares of its reductions, zero if there are no elements."""

    outputs: list[Array]
    shares: list[Array]


def run(program: Program, leaves: Sequence[object], origins: Sequence[Origin], ordered: bool) -> Results:
    """Return the results of *program*.

    Parameters
    ----------
    program: what to run
    leaves: arrays and constants
    origins: of the steps, and then of the reductions
    ordered: whether results are C-contiguous; else their axes are in memory as those of NumPy's results would be
    """
    arrays = {number: x for number, x in enumerate(leaves) if isinstance(x, np.ndarray) and x.ndim}
    shape = broadcast_shape("fuse", [array.shape for array in arrays.values()])
    arrays = {number: x if x.shape == shape else np.broadcast_to(x, shape) for number, x in arrays.items()}
    order = None if ordered else _order([*arrays.values()])
    if order is not None:
        shape = tuple(shape[axis] for axis in order)
        arrays = {number: array.transpose(order) for number, array in arrays.items()}
    outputs = [new_block(shape, dtype) for _, dtype in program.outputs]
    streams = arrays | {number: made for (number, _), made in zip(program.outputs, outputs, strict=True)}
    if len(shape) > 1 and all(array.flags.c_contiguous for array in streams.values()):
        streams, shape = {number: array.reshape(-1) for number, array in streams.items()}, (prod(shape),)
    shares = _run(program, leaves, streams, shape, origins)
    if order is not None:
        outputs = [made.transpose(np.argsort(order)) for made in outputs]
    return Results(outputs, shares)


def _order(arrays: Sequence[Array]) -> list[int] | None:
    """Return the axes of arrays, the outermost one in memory first; None if it is that of C."""
    if all(array.flags.c_contiguous for array in arrays):
        return None
    # What NumPy allocates for an operand of this kind has the axes of its results.
    made = np.nditer([*arrays[:31], None], ["zerosize_ok", "refs_ok"]).operands[-1]  # it takes 32
    order = sorted(range(made.ndim), key=lambda axis: -made.strides[axis])
    return None if order == [*range(made.ndim)] else order


def _run(
    program: Program, leaves: Sequence[object], streams: dict[int, Array], shape: Shape, origins: Sequence[Origin]
) -> list[Array]:
    """Write to the results, which are among the *streams*, and return the shares of the reductions."""
    calls, totals = program.calls, program.totals
    values: list[Any] = [*leaves, *[None] * len(calls)]
    widest = max([1, *program.itemsizes, *(array.itemsize for array in streams.values())])
    count = max(1, min(PIECE_BYTES // widest, FUSED_BUFFERS // max(1, sum(program.itemsizes))))
    first, made = next(iter(streams)), None
    shares: list[list[Array]] = [[] for _ in totals]
    with Watch(origins) as watch:
        for index in pieces(shape, count):
            for number, array in streams.items():
                values[number] = array[index]
            piece = values[first].shape
            if piece != made:
                _put_buffers(program, values, piece)
                made = piece
            for watch.step, (call, inputs, output) in enumerate(calls):
                call(*[values[each] for each in inputs], out=values[output])
            for watch.step, (total, share) in enumerate(zip(totals, shares, strict=True), len(calls)):
                share.append(total.share(values[total.value]))
        return [total.share(share) for total, share in zip(totals, shares, strict=True)]


def _put_buffers(program: Program, values: list[Any], piece: Shape) -> None:
    """Put arrays of the shape of a *piece* in kept memory where *values* are in buffers."""
    starts = [0]
    for itemsize in program.itemsizes:
        starts.append(starts[-1] + -(-prod(piece) * itemsize // LINE) * LINE)
    memory = scratch("fuse", starts[-1])
    for dtype, buffer, numbers in program.buffers:
        array = np.ndarray(piece, dtype, memory, starts[buffer])
        for number in numbers:
            values[number] = array


def pieces(shape: Shape, count: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield the indices of pieces of an array of *shape*, each of about *count* elements that lie together.

    >>> [*pieces((5, 3), 6)], [*pieces((2, 3), 6)]
    ([(slice(0, 2, None),), (slice(2, 4, None),), (slice(4, 6, None),)], [()])
    """
    axis, inner = len(shape), 1
    while axis and inner * shape[axis - 1] <= count:
        axis -= 1
        inner *= shape[axis]
    if 0 in shape:
        return
    if not axis:
        yield ()
        return
    length = shape[axis - 1]
    step = -(-length // -(-length * inner // count))
    if inner == 1:  # whole lines of the cache
        step = -(-step // LINE) * LINE
    for outer in np.ndindex(shape[: axis - 1]):
        for start in range(0, length, step):
            yield (*outer, slice(start, start + step))
