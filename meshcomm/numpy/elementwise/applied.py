"""Elementwise functions of NumPy that are not ufuncs: angle, interp, nan_to_num, piecewise and others.

Each device calls NumPy's function on its block. In apply_along_axis, which is also here, a block has complete lines.
"""

from collections.abc import Callable, Sequence
from datetime import date
from math import prod
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import agree_on_plain, replicated
from meshcomm.blocks.intervals import by_intervals
from meshcomm.blocks.make import make, refuse_outside
from meshcomm.blocks.map import deciding, elementwise, with_out
from meshcomm.blocks.rules import as_number, mesh_of
from meshcomm.blocks.small import agree_on_result, allgather_array, broadcast_from_device
from meshcomm.blocks.whole import of_whole_blocks, whole_along
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Axis, Shape
from meshcomm.core.arrays._recipes import completed
from meshcomm.core.arrays.dtensor import DTensor, as_tensor, unwrapped
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from meshcomm.core.layouts.layout import Layout
from meshcomm.numpy.elementwise.signatures import Function, implements, implements_each, operation
from meshcomm.numpy.elementwise.values import astype


@implements_each(
    *(np.angle, np.sinc, np.iscomplex, np.isreal, np.isneginf, np.isposinf, np.fix),
    *(np.datetime_as_string, np.is_busday),
    *(np.strings.upper, np.strings.lower, np.strings.swapcase, np.strings.capitalize, np.strings.title),
)
def _for_blocks(function: Function, count: int = 1) -> Function:
    """Return NumPy's *function* for tensors: its first *count* arguments are operands, the others options."""
    name = f"numpy.{function.__name__}"

    def wrapper(*args: object, **options: object) -> object:
        operands, other_args = [_as_day(unwrapped(x)) for x in args[:count]], list(args[count:])
        if not operands:  # the operand is a keyword argument
            operands.append(unwrapped(options.pop(next(iter(options)))))
        out = other_args.pop() if other_args and name in _SECOND_IS_OUT else options.pop("out", None)
        call = deciding(name, lambda *blocks: function(*blocks, *other_args, **options), operands)
        return call if out is None else with_out(name, out, completed(call))

    return wrapper


@implements(np.i0)
def i0(x: DTensor) -> DTensor:
    """Return the modified Bessel function of the first kind, order 0, as numpy.i0.

    Collective over the mesh for texts, which NumPy converts to numbers: if one rank cannot, all ranks raise the error.
    """
    tensor = as_tensor("numpy.i0", x)
    numbers = astype(tensor, float) if tensor.dtype.kind in "SU" else tensor
    return elementwise("numpy.i0", lambda block: by_intervals(np.i0, block, ()), [numbers])


def _as_day(x: object) -> object:
    """Return a text or a date of Python as a NumPy date; anything else unchanged."""
    return np.datetime64(x, "D") if isinstance(x, str | date) else x


@operation(np.nan_to_num, partly=True)
def nan_to_num(
    x: DTensor,
    copy: bool = True,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> object:
    """Return the tensor with numbers in place of NaN and infinities, as numpy.nan_to_num.

    Parameters
    ----------
    x: a tensor
    copy: whether to return a new tensor; else the numbers are written to *x*
    nan, posinf, neginf: numbers to insert; None for the largest or the smallest number of the dtype
    """
    numbers = [as_number(number) for number in (nan, posinf, neginf)]
    call = deciding("nan_to_num", lambda block: np.nan_to_num(block, True, *numbers), [unwrapped(x)])
    return call if copy else with_out("numpy.nan_to_num", x, completed(call))


@implements(np.interp, partly=True)
def interp(
    x: DTensor | ArrayLike,
    xp: DTensor | ArrayLike,
    fp: DTensor | ArrayLike,
    left: complex | None = None,
    right: complex | None = None,
    period: float | None = None,
) -> DTensor:
    """Return values between points, as numpy.interp. Collective over the mesh if an operand is a plain array.

    Parameters
    ----------
    x: coordinates at which to interpolate
    xp, fp: ascending coordinates of the points, and their values; both are gathered to every rank
    left, right: values beyond the points; by default those of the first and the last point
    period: period of *xp*, which may then be in any order

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.array([0.5, 1.25]), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return np.interp(t, [0, 1, 2], [10, 20, 40]).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[15.0], [25.0]]
    """
    name = "numpy.interp"
    operands = [unwrapped(operand) for operand in (x, xp, fp)]
    mesh = mesh_of(operands)
    positions, *point_tables = agree_on_plain(name, operands, mesh)
    points, values = (allgather_array(name, point_table) for point_table in point_tables)
    tensor = positions if isinstance(positions, DTensor) else replicated(positions, mesh)
    return elementwise(name, lambda block: np.interp(block, points, values, left, right, period), [tensor])


@implements(np.piecewise)
def piecewise(
    x: DTensor | ArrayLike, condlist: Value, funclist: Sequence[Value], *args: object, **kw: object
) -> DTensor:
    """Return results of functions where their conditions hold, as numpy.piecewise. Collective if a condition moves.

    Functions get the elements of one device as an array. If several conditions hold, the last one counts.

    Parameters
    ----------
    x: a tensor
    condlist: boolean tensors or arrays, or a single one
    funclist: function or number for each condition, and optionally one more for elements without a true condition
    args, kw: further arguments of the functions
    """
    name = "numpy.piecewise"
    operands = [unwrapped(x), *map(unwrapped, condlist if isinstance(condlist, list | tuple) else [condlist])]
    tensor = operands[0] if isinstance(operands[0], DTensor) else replicated(operands[0], mesh_of(operands))
    has_several = isinstance(condlist, list | tuple) and isinstance(condlist[0], list | np.ndarray | DTensor)
    if isinstance(condlist, np.ndarray | DTensor):
        has_several = condlist.ndim > tensor.ndim
    conditions = list(condlist) if has_several or tensor.ndim == 0 < np.ndim(condlist) else [condlist]

    def piecewise_block(block: Array, *conditions: Array) -> Array:
        wide_conditions = [np.broadcast_to(condition, block.shape) for condition in conditions]
        return np.piecewise(block, wide_conditions, list(funclist), *args, **kw)

    result: Value = elementwise(name, piecewise_block, [tensor, *map(unwrapped, conditions)])
    return result


@implements(np.apply_along_axis)
def apply_along_axis(func1d: Function, axis: int, arr: DTensor, *args: object, **kwargs: object) -> DTensor:
    """Return the results of a function of each line along *axis*, as numpy.apply_along_axis. Collective over the mesh.

    The tensor is relaid so that *axis* is unsharded. Each device calls the function for its lines only, so the
    function must not make collective calls.

    Parameters
    ----------
    func1d: function of an array with one axis; its results have one shape and dtype
    axis: axis of the lines
    arr: a tensor
    args, kwargs: further arguments of the function

    An exception of the function on one rank is raised on all ranks. ``ValueError`` if there is no line.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(np.arange(6).reshape(2, 3), mc.Layout([mc.UNSHARDED, "x"], mc.create_mesh([("x", 2)])))
    ...     return np.apply_along_axis(lambda line: line[::-1] * 10, 1, t).to_numpy().tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    [[20, 10, 0], [50, 40, 30]]
    """
    name, tensor = "numpy.apply_along_axis", as_tensor("numpy.apply_along_axis", arr)
    (axis_number,) = normalised_axes(axis, tensor.ndim)
    if prod(n for number, n in enumerate(tensor.shape) if number != axis_number) == 0:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    lines = whole_along(tensor, [axis_number], name)
    layout, mesh = lines.layout, lines.mesh
    refuse_outside(name, mesh, "what the function returns")
    shapes = [layout.block_shape(lines.shape, device) for device in range(mesh.size)]
    has_lines = [all(n for number, n in enumerate(shape) if number != axis_number) for shape in shapes]
    call_text = f"{name} along axis {axis_number} of {tensor.shape} {tensor.dtype}"
    block_shape = layout.block_shape(lines.shape)

    def compute() -> Array | None:
        if not all(n for number, n in enumerate(block_shape) if number != axis_number):
            return None
        return np.asarray(np.apply_along_axis(func1d, axis_number, lines._block, *args, **kwargs), order="C")

    results = agree_on_result(name, mesh, call_text, compute)

    def spec() -> tuple[Shape, str]:
        assert results is not None
        return results.shape[axis_number : results.ndim - (tensor.ndim - axis_number - 1)], dtype_text(results.dtype)

    line_shape, dtype_name = broadcast_from_device(name, mesh, call_text, spec, has_lines.index(True)) or spec()

    def check() -> None:
        if results is not None and list(spec()[0]) != list(line_shape):
            raise ValueError(f"{name}: the function must return arrays of one shape, not {spec()[0]} and {line_shape}")

    agree_on_result(name, mesh, f"{call_text}: its results have one shape", check)
    dtype, axes = dtype_of_text(dtype_name), layout.axes
    result_block_shape = (*block_shape[:axis_number], *line_shape, *block_shape[axis_number + 1 :])
    block = np.empty(result_block_shape, dtype) if results is None else results
    shape = (*tensor.shape[:axis_number], *line_shape, *tensor.shape[axis_number + 1 :])
    axes = (*axes[:axis_number], *((),) * len(line_shape), *axes[axis_number + 1 :])
    return make(block.astype(dtype, copy=False), Layout(axes, mesh), shape, dtype)


@implements(np.apply_over_axes)
def apply_over_axes(func: Function, a: DTensor, axes: Axis) -> DTensor:
    """Return *func* applied along one axis after the other, as numpy.apply_over_axes. Collective over the mesh.

    Parameters
    ----------
    func: function of a tensor and an axis
    a: a tensor
    axes: one axis or several; they keep length 1
    """
    tensor = as_tensor("numpy.apply_over_axes", a)
    for axis in normalised_axes(axes, tensor.ndim):
        result: Value = func(tensor, axis)
        if result.ndim == tensor.ndim - 1:
            result = np.expand_dims(result, axis)
        if result.ndim != tensor.ndim:
            raise ValueError(f"numpy.apply_over_axes: a function of {tensor.ndim} axes gave {result.ndim}")
        tensor = result
    return tensor


@implements(np.packbits, partly=True)
def packbits(a: DTensor, axis: int | None = None, bitorder: Literal["big", "little"] = "big") -> DTensor:
    """Return bits packed into bytes, as numpy.packbits. Collective over the mesh if the axis is sharded."""
    return _convert_bits(
        "numpy.packbits",
        a,
        axis,
        lambda n: -(-n // 8),
        lambda block, axis_number: np.packbits(block, axis_number, bitorder),
    )


@implements(np.unpackbits, partly=True)
def unpackbits(
    a: DTensor, axis: int | None = None, count: int | None = None, bitorder: Literal["big", "little"] = "big"
) -> DTensor:
    """Return the bits of bytes, as numpy.unpackbits. Collective over the mesh if the axis is sharded.

    *count* is the number of bits to return; if it is negative, the number to leave out at the end.
    """

    def length(n: int) -> int:
        return 8 * n if count is None else max(8 * n + count, 0) if count < 0 else count

    def unpack(block: Array, axis_number: int) -> Array:
        return np.unpackbits(block, axis_number, count, bitorder)

    return _convert_bits("numpy.unpackbits", a, axis, length, unpack)


def _convert_bits(
    name: str, a: DTensor, axis: int | None, length: Callable[[int], int], function: Callable[[Array, int], Array]
) -> DTensor:
    tensor = as_tensor(name, a)
    tensor, axis = (tensor.ravel(), 0) if axis is None else (tensor, axis)
    (axis_number,) = normalised_axes(axis, tensor.ndim)
    function(np.zeros((1,) * tensor.ndim, tensor.dtype), axis_number)  # NumPy's error for the dtype, on all ranks
    shape = (*tensor.shape[:axis_number], length(tensor.shape[axis_number]), *tensor.shape[axis_number + 1 :])
    blocks = of_whole_blocks(tensor, [axis_number], name, lambda block: function(block, axis_number))
    return make(*blocks, shape, np.dtype(np.uint8))


_SECOND_IS_OUT = ("numpy.fix", "numpy.isneginf", "numpy.isposinf")  # functions with ``out`` as second argument

for _function in (np.busday_count, np.busday_offset):
    implements(_function)(_for_blocks(_function, 2))
