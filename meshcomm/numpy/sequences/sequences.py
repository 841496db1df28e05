"""Sampled functions: gradient, trapezoid, unwrap, convolve and correlate.

Where a function needs neighbours of elements, only elements next to the cuts move.
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

Step: TypeAlias = Any  # the distance between samples: a number, or an array with the distance after each sample
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
        is_single = True
    else:
        axes = tuple(a % tensor.ndim for a in axis) if axis is not None else axes
        is_single = len(axes) == 1
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
    if is_single and np.ndim(spacings[0]) == 0 and tensor.layout.cyclic(axes[0]) is None:
        return _even_gradient(tensor, axes[0], spacings[0], edge_order)
    gradients = tuple(_gradient_along(tensor, a, step, edge_order) for a, step in zip(axes, spacings, strict=True))
    return gradients[0] if is_single else gradients


def _spacings(name: str, tensor: DTensor, axes: tuple[int, ...], varargs: Sequence[DTensor | Step]) -> list[Step]:
    """Return for each axis the distance between samples: a number, or an array with one entry less than samples."""
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
        is_even = bool((distances == distances[:1]).all())
        spacings.append(distances[0] if is_even and len(distances) else distances)
    return spacings


def _step_number(name: str, step: DTensor | Step) -> Step:
    """Return *step* as a number. Collective if it is a tensor."""
    return allgather_array(name, step)[()] if isinstance(unwrapped(step), DTensor) else step


def _gradient_along(tensor: DTensor, axis: int, step: Step, edge_order: Literal[1, 2]) -> DTensor:
    """Return the gradient along *axis*. *step* is the distance between samples, or an array of the distances."""
    if np.ndim(step) == 0:
        call = _even_gradient(relaid(tensor, tensor.layout.as_consecutive([axis]), _GRADIENT), axis, step, edge_order)
        return relaid(call.run(), tensor.layout.axes, _GRADIENT)

    def samples(start: int | None, stop: int | None = None) -> DTensor:
        return tensor[(slice(None),) * axis + (slice(start, stop),)]

    def along_axis(weights: Array) -> Array:
        return weights.reshape([-1 if a == axis else 1 for a in range(tensor.ndim)])

    n, step_before, step_after = tensor.shape[axis], step[:-1], step[1:]
    weights = (
        -step_after / (step_before * (step_before + step_after)),
        (step_after - step_before) / (step_before * step_after),
    )
    next_weights = step_before / (step_after * (step_before + step_after))
    inner_differences = (
        along_axis(weights[0]) * samples(0, -2)
        + along_axis(weights[1]) * samples(1, -1)
        + along_axis(next_weights) * samples(2)
    )
    if edge_order == 1:
        first_difference, last_difference = (
            (samples(1, 2) - samples(0, 1)) / step[0],
            (samples(n - 1, n) - samples(n - 2, n - 1)) / step[-1],
        )
    else:
        step1, step2 = step[0], step[1]
        first_difference = (
            -(2 * step1 + step2) / (step1 * (step1 + step2)) * samples(0, 1)
            + (step1 + step2) / (step1 * step2) * samples(1, 2)
            - step1 / (step2 * (step1 + step2)) * samples(2, 3)
        )
        step1, step2 = step[-2], step[-1]
        last_difference = (
            step2 / (step1 * (step1 + step2)) * samples(n - 3, n - 2)
            - (step2 + step1) / (step1 * step2) * samples(n - 2, n - 1)
            + (2.0 * step2 + step1) / (step2 * (step1 + step2)) * samples(n - 1, n)
        )
    return _joined_pieces(tensor, [first_difference, inner_differences, last_difference], axis)


def _even_gradient(tensor: DTensor, axis: int, step: Step, edge_order: Literal[1, 2]) -> Call:
    """Return the gradient of samples at equal distances, along an axis in consecutive blocks."""
    n, layout, shape, source_dtype = tensor.shape[axis], tensor.layout, tensor.shape, tensor.dtype
    cut = layout.cut(axis, n).consecutive
    sample = np.zeros(tuple(edge_order + 1 if a == axis else 1 for a in range(tensor.ndim)), source_dtype)
    with np.errstate(all="ignore"):
        dtype = np.gradient(sample, step, axis=axis, edge_order=edge_order).dtype

    def source_interval(number: int) -> Interval:
        start, stop = cut.interval(number)
        if start == stop:
            return start, stop
        source_start, source_stop = max(start - 1, 0), min(stop + 1, n)
        if start == 0:
            source_stop = max(source_stop, edge_order + 1)
        return (min(source_start, n - edge_order - 1) if stop == n else source_start), source_stop

    def compute_block(pieces: list[Array], number: int) -> Array:
        start, stop = cut.interval(number)
        if not pieces:
            return np.empty(layout.block_shape(shape), dtype)
        block, source_start = (
            pieces[0] if len(pieces) == 1 else join_blocks(pieces, axis, source_dtype),
            source_interval(number)[0],
        )
        differences = np.gradient(block, step, axis=axis, edge_order=edge_order)
        return contiguous(differences[(*(slice(None),) * axis, slice(start - source_start, stop - source_start))])

    intervals = tuple(((0, *source_interval(number)),) for number in range(cut.blocks))
    return assembling(_GRADIENT, [tensor], axis, intervals, layout, shape=shape, compute=compute_block, dtype=dtype)


def _joined_pieces(prototype: DTensor, pieces: Sequence[DTensor], axis: int) -> DTensor:
    """Return the *pieces* joined along *axis*, in the layout of *prototype*."""
    dtype = np.result_type(*(piece.dtype for piece in pieces))
    nonempty = [piece.astype(dtype, copy=False) for piece in pieces if piece.shape[axis]]
    return concatenate(nonempty, axis, prototype.layout)


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
    samples, *coordinates = tensors_of(name, [y] if x is None else [y, x])
    (sample_axis,) = normalised_axes(axis, samples.ndim)
    widths: DTensor | float = dx
    for points in coordinates:
        widths = tensor_np.diff(points, axis=0 if points.ndim == 1 else sample_axis)
        if points.ndim == 1:
            widths = widths.reshape([-1 if a == sample_axis else 1 for a in range(samples.ndim)])
    leading_slices = (slice(None),) * sample_axis
    sums = samples[(*leading_slices, slice(1, None))] + samples[(*leading_slices, slice(None, -1))]
    return tensor_np.sum(widths * sums / 2.0, axis=sample_axis)


@implements(np.unwrap, partly=True)
def unwrap(p: DTensor, discont: float | None = None, axis: int = -1, *, period: float = 2 * np.pi) -> DTensor:
    """Return phases without jumps along *axis*, as numpy.unwrap. Collective over the mesh if that axis is sharded.

    Parameters
    ----------
    p: phases, in radians by default
    discont: smallest difference that counts as a jump; by default half of the period
    axis: axis of the samples
    period: period of the phases
    """
    tensor = as_tensor("numpy.unwrap", p)
    (sample_axis,) = normalised_axes(axis, tensor.ndim)
    if not tensor.shape[sample_axis]:
        return tensor.copy()
    steps = np.diff(tensor, axis=sample_axis)
    dtype = np.result_type(steps.dtype, period)
    boundary_ambiguous = True
    if dtype.kind in "ui":
        interval_high, remainder = divmod(period, 2)
        boundary_ambiguous = remainder == 0
    else:
        interval_high = period / 2
    interval_low = -interval_high
    wrapped_steps = np.mod(steps - interval_low, period) + interval_low
    if boundary_ambiguous:
        wrapped_steps = np.where((wrapped_steps == interval_low) & (steps > 0), interval_high, wrapped_steps)
    correction = wrapped_steps - steps
    correction = np.where(abs(steps) < (interval_high if discont is None else discont), 0, correction)
    leading_slices = (slice(None),) * sample_axis
    corrected_samples = tensor[(*leading_slices, slice(1, None))] + np.cumsum(correction, axis=sample_axis)
    first_samples = tensor[(*leading_slices, slice(None, 1))]
    return _joined_pieces(tensor, [first_samples.astype(dtype), corrected_samples.astype(dtype)], sample_axis)


# -- convolutions -----------------------------------------------------------------------------------------------------


@implements(np.convolve, partly=True)
def convolve(a: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: Mode = "full") -> DTensor:
    """Return the convolution of two sequences, as numpy.convolve. Collective over the mesh.

    The shorter one is gathered to every rank. Of the longer one, each device gets neighbouring elements: as many as
    the shorter one has, less one.

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
    longer, shorter = _vector_operands("numpy.convolve", a, v)
    if shorter.shape[0] > longer.shape[0]:
        longer, shorter = shorter, longer
    n, m = longer.shape[0], shorter.shape[0]
    return _convolved("numpy.convolve", longer, allgather_array("numpy.convolve", shorter), _mode_interval(mode, n, m))


@implements(np.correlate, partly=True)
def correlate(a: DTensor | ArrayLike, v: DTensor | ArrayLike, mode: Mode = "valid") -> DTensor:
    """Return the correlation of two sequences, as numpy.correlate. Collective over the mesh.

    Arguments are those of `convolve`, and the same elements move.
    """
    name = "numpy.correlate"
    a_line, v_line = _vector_operands(name, a, v)
    n, m = a_line.shape[0], v_line.shape[0]
    if n >= m:
        return _convolved(name, a_line, np.conj(allgather_array(name, v_line))[::-1], _mode_interval(mode, n, m))
    start, length = _mode_interval(mode, m, n)
    flipped = np.conj(np.flip(v_line))  # the correlation is a convolution with the operands exchanged
    return _convolved(name, flipped, allgather_array(name, a_line), (n + m - 1 - start - length, length))


def _vector_operands(name: str, a: object, v: object) -> list[DTensor]:
    lines = [tensor_np.atleast_1d(x) for x in tensors_of(name, [a, v])]
    for line, letter in zip(lines, ("a", "v"), strict=True):
        if line.ndim != 1:
            raise ValueError(f"{name}: {letter} has {line.ndim} axes; it must have one")
        if not line.shape[0]:
            raise ValueError(f"{letter} cannot be empty")
    return lines


def _mode_interval(mode: str, n: int, m: int) -> tuple[int, int]:
    """Return the start of a result in the full convolution of *n* and *m* elements, n >= m, and its length."""
    intervals = {"full": (0, n + m - 1), "same": (m - 1 - m // 2, n), "valid": (m - 1, n - m + 1)}
    if mode not in intervals:
        raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {quote(mode)})")
    return intervals[mode]


def _convolved(name: str, line: DTensor, kernel: Array, interval: tuple[int, int]) -> DTensor:
    """Return an *interval* of the convolution of a sharded *line* and a *kernel*. Collective over the mesh."""
    line = relaid(line, line.layout.as_consecutive([0]), name)
    (n,), m, (offset, length), line_dtype = line.shape, len(kernel), interval, line.dtype
    dtype = np.convolve(np.ones(1, line_dtype), np.ones(1, kernel.dtype)).dtype
    layout = line.layout.default_cut(0)
    cut = Cut(length, layout.num_shards(0))

    def source_interval(number: int) -> tuple[int, int]:
        start, stop = cut.interval(number)
        source_start = min(max(start + offset - m + 1, 0), n)
        return source_start, max(min(stop + offset, n), source_start) if start < stop else source_start

    def compute_block(pieces: list[Array], number: int) -> Array:
        start, stop = cut.interval(number)
        if not pieces:
            return np.empty(0, dtype)
        convolution = np.convolve(join_blocks(pieces, 0, line_dtype), kernel)
        source_start = source_interval(number)[0]
        return convolution[start + offset - source_start : stop + offset - source_start].copy()

    intervals = tuple(((0, *source_interval(number)),) for number in range(cut.blocks))
    return assembling(name, [line], 0, intervals, layout, shape=(length,), compute=compute_block, dtype=dtype).run()
