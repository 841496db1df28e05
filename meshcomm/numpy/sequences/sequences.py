"""Sampled functions: gradient, trapezoid, unwrap, convolve, correlate, and polynomials; cov and corrcoef.

What neighbours are needed for moves only next to the cuts.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid, tensors_of
from meshcomm.blocks.assemble import assembling, join_blocks
from meshcomm.blocks.small import allgather_array
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import normalised_axes, quote
from meshcomm.core._types import Array, Axis
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.partition import Cut, Interval
from meshcomm.core.memory.copies import contiguous
from meshcomm.errors import ShapeError
from meshcomm.numpy.elementwise.signatures import implements, operation
from meshcomm.numpy.joining.joining import concatenate

Step: TypeAlias = Any  # a number or an array: a distance, or that behind each sample
Mode: TypeAlias = Literal["valid", "same", "full"]

# -- differences and sums ---------------------------------------------------------------------------------------------

_GRADIENT = "numpy.gradient"


@operation(np.gradient)
def gradient(
    f: DTensor, *varargs: DTensor | ArrayLike, axis: Axis = None, edge_order: Literal[1, 2] = 1
) -> Call | DTensor | tuple[DTensor, ...]:
    """Return central differences along each axis, as numpy.gradient. Collective over the mesh if an axis is sharded.

    Only elements next to the cuts move.

    Parameters
    ----------
    f: a tensor
    varargs: distances between samples: a number for all axes, or a number or an array of coordinates for each axis
    axis: one axis, several, or None for all
    edge_order: order of the differences at the edges: 1 or 2

    A tensor for one axis, a tuple for several; NumPy's errors.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([1.0, 4, 9, 16]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.gradient(t).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [3.0, 4.0, 6.0, 7.0]
    """
    name, tensor = _GRADIENT, as_tensor(_GRADIENT, f)
    axes = normalised_axes(axis, tensor.ndim)
    if axis is not None and not isinstance(axis, tuple | list):
        single = True
    else:
        axes = tuple(a % tensor.ndim for a in axis) if axis is not None else axes
        single = len(axes) == 1
    spacings = _spacings(name, tensor, axes, varargs)
    if edge_order not in (1, 2):
        raise ValueError("'edge_order' greater than 2 not supported")
    if tensor.dtype.kind in "ui?":
        tensor = tensor.astype(np.float64)
    for a in axes:
        if tensor.shape[a] < edge_order + 1:
            raise ShapeError(
                f"{name}: axis {a} has {tensor.shape[a]} elements; edge_order {edge_order} needs {edge_order + 1}"
            )
    if single and np.ndim(spacings[0]) == 0 and tensor.layout.cyclic(axes[0]) is None:
        return _even_differences(tensor, axes[0], spacings[0], edge_order)
    gradients = tuple(_differences(tensor, a, step, edge_order) for a, step in zip(axes, spacings, strict=True))
    return gradients[0] if single else gradients


def _spacings(name: str, tensor: DTensor, axes: tuple[int, ...], varargs: Sequence[DTensor | Step]) -> list[Step]:
    """Return for each axis the distance between samples: a number, or an array with one less than samples."""
    if not varargs:
        return [1.0] * len(axes)
    if len(varargs) == 1 and np.ndim(varargs[0]) == 0:
        return [_step_number(name, varargs[0])] * len(axes)
    if len(varargs) != len(axes):
        raise TypeError("invalid number of arguments")
    spacings: list[Step] = []
    for a, step in zip(axes, varargs, strict=True):
        if np.ndim(step) == 0:
            spacings.append(_step_number(name, step))
            continue
        coordinates = allgather_array(name, step)
        if coordinates.ndim != 1:
            raise ValueError("distances must be either scalars or 1d")
        if len(coordinates) != tensor.shape[a]:
            raise ValueError("when 1d, distances must match the length of the corresponding dimension")
        distances = np.diff(coordinates.astype(np.float64) if coordinates.dtype.kind in "ui" else coordinates)
        even = bool((distances == distances[:1]).all())
        spacings.append(distances[0] if even and len(distances) else distances)
    return spacings


def _step_number(name: str, step: DTensor | Step) -> Step:
    """Return *step* as a number. Collective if it is a tensor."""
    return allgather_array(name, step)[()] if isinstance(unwrapped(step), DTensor) else step


def _differences(tensor: DTensor, axis: int, step: Step, edge_order: Literal[1, 2]) -> DTensor:
    """Return the differences along *axis*. *step* is the distance between samples, or that behind each of them."""
    if np.ndim(step) == 0:
        even = _even_differences(relaid(tensor, tensor.layout.undealt([axis]), _GRADIENT), axis, step, edge_order)
        return relaid(even.run(), tensor.layout.axes, _GRADIENT)

    def at(start: int | None, stop: int | None = None) -> DTensor:
        return tensor[(slice(None),) * axis + (slice(start, stop),)]

    def along_axis(weights: Array) -> Array:
        return weights.reshape([-1 if a == axis else 1 for a in range(tensor.ndim)])

    n, before, after = tensor.shape[axis], step[:-1], step[1:]
    weights = -after / (before * (before + after)), (after - before) / (before * after)
    last = before / (after * (before + after))
    inner = along_axis(weights[0]) * at(0, -2) + along_axis(weights[1]) * at(1, -1) + along_axis(last) * at(2)
    if edge_order == 1:
        low, high = (at(1, 2) - at(0, 1)) / step[0], (at(n - 1, n) - at(n - 2, n - 1)) / step[-1]
    else:
        one, two = step[0], step[1]
        low = (
            -(2 * one + two) / (one * (one + two)) * at(0, 1)
            + (one + two) / (one * two) * at(1, 2)
            - one / (two * (one + two)) * at(2, 3)
        )
        one, two = step[-2], step[-1]
        high = (
            two / (one * (one + two)) * at(n - 3, n - 2)
            - (two + one) / (one * two) * at(n - 2, n - 1)
            + (2.0 * two + one) / (two * (one + two)) * at(n - 1, n)
        )
    return _joined_pieces(tensor, [low, inner, high], axis)


def _even_differences(tensor: DTensor, axis: int, step: Step, edge_order: Literal[1, 2]) -> Call:
    """Return the differences of samples at equal distances, along an axis in consecutive blocks."""
    n, layout, shape, kind = tensor.shape[axis], tensor.layout, tensor.shape, tensor.dtype
    cut = layout.cut(axis, n).consecutive
    sample = np.zeros(tuple(edge_order + 1 if a == axis else 1 for a in range(tensor.ndim)), kind)
    with np.errstate(all="ignore"):
        dtype = np.gradient(sample, step, axis=axis, edge_order=edge_order).dtype

    def source_interval(number: int) -> Interval:
        start, stop = cut.interval(number)
        if start == stop:
            return start, stop
        first, last = max(start - 1, 0), min(stop + 1, n)
        if start == 0:
            last = max(last, edge_order + 1)
        return (min(first, n - edge_order - 1) if stop == n else first), last

    def of(pieces: list[Array], number: int) -> Array:
        start, stop = cut.interval(number)
        if not pieces:
            return np.empty(layout.block_shape(shape), dtype)
        block, first = pieces[0] if len(pieces) == 1 else join_blocks(pieces, axis, kind), source_interval(number)[0]
        differences = np.gradient(block, step, axis=axis, edge_order=edge_order)
        return contiguous(differences[(*(slice(None),) * axis, slice(start - first, stop - first))])

    wanted = tuple(((0, *source_interval(number)),) for number in range(cut.blocks))
    return assembling(_GRADIENT, [tensor], axis, wanted, layout, shape=shape, compute=of, dtype=dtype)


def _joined_pieces(like: DTensor, pieces: Sequence[DTensor], axis: int) -> DTensor:
    """Return the *pieces* one after the other along *axis*, in the layout of *like*."""
    dtype = np.result_type(*(piece.dtype for piece in pieces))
    filled = [piece.astype(dtype, copy=False) for piece in pieces if piece.shape[axis]]
    return concatenate(filled, axis, like.layout)


@implements(*(getattr(np, name) for name in ("trapezoid", "trapz") if name in dir(np)))
def trapezoid(
    y: DTensor | ArrayLike, x: DTensor | ArrayLike | None = None, dx: float = 1.0, axis: int = -1
) -> DTensor:
    """Return the integral along *axis* by trapezoids, as numpy.trapezoid. Collective over the mesh.

    Parameters
    ----------
    y: samples
    x: coordinates of the samples, of one axis, or of the shape of *y*; by default they are *dx* apart
    dx: distance between samples
    axis: axis of the samples
    """
    name = "numpy.trapezoid"
    samples, *points_of = tensors_of(name, [y] if x is None else [y, x])
    (along,) = normalised_axes(axis, samples.ndim)
    widths: DTensor | float = dx
    for points in points_of:
        widths = tensor_np.diff(points, axis=0 if points.ndim == 1 else along)
        if points.ndim == 1:
            widths = widths.reshape([-1 if a == along else 1 for a in range(samples.ndim)])
    before = (slice(None),) * along
    sums = samples[(*before, slice(1, None))] + samples[(*before, slice(None, -1))]
    return tensor_np.sum(widths * sums / 2.0, axis=along)


@implements(np.unwrap, partly=True)
def unwrap(p: DTensor, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi) -> DTensor:
    """Return phases without jumps along *axis*, as numpy.unwrap. Collective over the mesh if that axis is sharded.

    Parameters
    ----------
    p: phases, in radians by default
    discont: least difference that counts as a jump; by default half of the period
    axis: axis of the samples
    period: period of the phases
    """
    tensor = as_tensor("numpy.unwrap", p)
    (along,) = normalised_axes(axis, tensor.ndim)
    if not tensor.shape[along]:
        return tensor.copy()
    steps = np.diff(tensor, axis=along)
    kind = np.result_type(steps.dtype, period)
    at_half = True
    if kind.kind in "ui":
        high, remainder = divmod(period, 2)
        at_half = remainder == 0
    else:
        high = period / 2
    low = -high
    moved = np.mod(steps - low, period) + low
    if at_half:
        moved = np.where((moved == low) & (steps > 0), high, moved)
    correction = moved - steps
    correction = np.where(abs(steps) < (high if discont is None else discont), 0, correction)
    before = (slice(None),) * along
    rest = tensor[(*before, slice(1, None))] + np.cumsum(correction, axis=along)
    first = tensor[(*before, slice(None, 1))]
    return _joined_pieces(tensor, [first.astype(kind), rest.astype(kind)], along)


# -- convolutions -----------------------------------------------------------------------------------------------------


@implements(np.convolve, partly=True)
def convolve(a: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: Mode = "full") -> DTensor:
    """Return the convolution of two sequences, as numpy.convolve. Collective over the mesh.

    The shorter one is gathered to every rank. Of the longer one, each device gets what it has no elements of: as many
    as the shorter one has, less one.

    Parameters
    ----------
    a, v: tensors or arrays of one axis
    mode: length of the result: ``full``; ``same`` as the longer operand; ``valid``, without the edges

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(5), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.convolve(t, [1, 1], "valid").local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[1, 3], [5, 7]]
    """
    one, other = _lines("numpy.convolve", a, v)
    if other.shape[0] > one.shape[0]:
        one, other = other, one
    n, m = one.shape[0], other.shape[0]
    return _convolved("numpy.convolve", one, allgather_array("numpy.convolve", other), _mode_interval(mode, n, m))


@implements(np.correlate, partly=True)
def correlate(a: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: Mode = "valid") -> DTensor:
    """Return the correlation of two sequences, as numpy.correlate. Collective over the mesh.

    Arguments are those of `convolve`, which says what moves.
    """
    name = "numpy.correlate"
    one, other = _lines(name, a, v)
    n, m = one.shape[0], other.shape[0]
    if n >= m:
        return _convolved(name, one, np.conj(allgather_array(name, other))[::-1], _mode_interval(mode, n, m))
    start, length = _mode_interval(mode, m, n)
    flipped = np.conj(np.flip(other))  # the convolution is that of the operands in the other order
    return _convolved(name, flipped, allgather_array(name, one), (n + m - 1 - start - length, length))


def _lines(name: str, a: object, v: object) -> list[DTensor]:
    lines = [tensor_np.atleast_1d(x) for x in tensors_of(name, [a, v])]
    for line, which in zip(lines, ("a", "v"), strict=True):
        if line.ndim != 1:
            raise ValueError(f"{name}: {which} has {line.ndim} axes; it must have one")
        if not line.shape[0]:
            raise ValueError(f"{which} cannot be empty")
    return lines


def _mode_interval(mode: str, n: int, m: int) -> tuple[int, int]:
    """Return where a result begins in the full convolution of *n* and *m* elements, *n* the more, and its length."""
    intervals = {"full": (0, n + m - 1), "same": (m - 1 - m // 2, n), "valid": (m - 1, n - m + 1)}
    if mode not in intervals:
        raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {quote(mode)})")
    return intervals[mode]


def _convolved(name: str, line: DTensor, kernel: Array, interval: tuple[int, int]) -> DTensor:
    """Return an *interval* of the convolution of a sharded *line* and a *kernel*. Collective over the mesh."""
    line = relaid(line, line.layout.undealt([0]), name)
    (n,), m, (offset, length), kind = line.shape, len(kernel), interval, line.dtype
    dtype = np.convolve(np.ones(1, kind), np.ones(1, kernel.dtype)).dtype
    layout = line.layout.usual_cut(0)
    cut = Cut(length, layout.num_shards(0))

    def source_interval(number: int) -> tuple[int, int]:
        start, stop = cut.interval(number)
        first = min(max(start + offset - m + 1, 0), n)
        return first, max(min(stop + offset, n), first) if start < stop else first

    def of(pieces: list[Array], number: int) -> Array:
        start, stop = cut.interval(number)
        if not pieces:
            return np.empty(0, dtype)
        convolved = np.convolve(join_blocks(pieces, 0, kind), kernel)
        first = source_interval(number)[0]
        return convolved[start + offset - first : stop + offset - first].copy()

    wanted = tuple(((0, *source_interval(number)),) for number in range(cut.blocks))
    return assembling(name, [line], 0, wanted, layout, shape=(length,), compute=of, dtype=dtype).run()
