"""Splines through the elements of a tensor, evaluated between them: zoom, shift, rotate, other maps of coordinates.

Each rank computes the input coordinates for its block of the output, reads the box of the input around them, and lets
SciPy evaluate the spline there. The spline filter before it runs along unsharded lines (`spline_filter`). Arguments
and values are SciPy's. The output is sharded as the input; in consecutive blocks, if it has another shape.

All are Collective over the mesh of *input* if that is sharded. ``LayoutError`` for plain arrays and for `Cyclic` axes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import complex_of, map_to_new, mapped, on_blocks
from meshcomm.blocks.regions import read_box
from meshcomm.blocks.small import agree_on_result
from meshcomm.blocks.whole import whole_along
from meshcomm.core._arguments import normalised_axes
from meshcomm.core._tuning import DEFAULT_SCRATCH
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.cutting import cut_out
from meshcomm.core.arrays.dtensor import DTensor, Tensor, TensorLike, unwrapped
from meshcomm.core.layouts.boxes import Box, box_shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import new_block
from meshcomm.core.ranks.local_errors import refusable
from meshcomm.errors import ShapeError
from meshcomm.ndimage.arguments import Number, Output, Reals
from meshcomm.ndimage.axes import per_axis
from meshcomm.ndimage.calls import (
    as_dtype_of,
    call_text,
    input_tensor,
    refuse_cyclic,
    requested_dtype,
    scipy_ndimage,
    write_output,
)
from meshcomm.ndimage.splines import CONSTANT, SplineRule, Support, extended, slabs
from meshcomm.numpy.joining.padding import pad

Coordinates = Callable[[Box], Sequence[Array]]
"""A function from a box of the output to the coordinates along each axis of the input, as arrays that broadcast."""

_PAD_MODES = {"nearest": "edge", "grid-constant": "constant"}
"""Modes with padding for SciPy's filter, and their names in numpy.pad."""

_PADDING = 12  # elements, as in SciPy


# -- the filter -------------------------------------------------------------------------------------------------------


def _filtered_along(tensor: DTensor, order: int, axis: int, dtype: DType, mode: str) -> DTensor:
    """Return the spline filter along one axis, in a layout with this axis unsharded. Collective if it is sharded."""
    refuse_cyclic(tensor)
    whole = whole_along(tensor, (axis,), "spline_filter1d")
    scipy_filter = scipy_ndimage().spline_filter1d
    return map_to_new(lambda out, block: scipy_filter(block, order, axis, output=out, mode=mode), whole, dtype=dtype)


def _filtered(tensor: DTensor, order: int, axes: Sequence[int], dtype: DType, mode: str) -> DTensor:
    for axis in axes:
        tensor = _filtered_along(tensor, order, axis, dtype, mode)
    return tensor


def _filter_dtype(name: str, tensor: DTensor, order: int, output: Output, mode: str) -> DType:
    """Return the dtype of the result of a spline filter, from SciPy's for one element; raise SciPy's errors."""
    function, one_element = getattr(scipy_ndimage(), name), np.zeros((1,) * tensor.ndim, tensor.dtype)
    return function(one_element, order, output=requested_dtype(output), mode=mode).dtype


@refusable
def spline_filter1d(
    input: TensorLike, order: int = 3, axis: int = -1, output: Output = np.float64, mode: str = "mirror"
) -> DTensor:
    """Return the coefficients of a spline along *axis*. Collective over the mesh if that is sharded.

    The filter runs along whole lines: *axis* is unsharded for it. Source: scipy.ndimage.spline_filter1d.

    Parameters
    ----------
    input: a tensor
    order: order of the spline, 0 to 5
    axis: the axis of the spline
    output: a dtype for the result, or a tensor to write into and return
    mode: boundary

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.spline_filter1d(mc.distribute([0.0, 0, 1, 0], rows)).local.round(2).tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.27, -0.53], [1.87, -0.93]]
    """
    tensor = input_tensor("spline_filter1d", input)
    dtype = _filter_dtype("spline_filter1d", tensor, order, output, mode)
    (filter_axis,) = normalised_axes(axis, tensor.ndim)
    if order < 2:
        return write_output(as_dtype_of(tensor, dtype), output)
    return write_output(
        relaid(_filtered_along(tensor, order, filter_axis, dtype, mode), tensor.layout.axes, "spline_filter1d"), output
    )


@refusable
def spline_filter(input: TensorLike, order: int = 3, output: Output = np.float64, mode: str = "mirror") -> DTensor:
    """Return the coefficients of a spline along all axes. Collective over the mesh if one is sharded.

    Source: scipy.ndimage.spline_filter.

    Arguments are those of `spline_filter1d`.
    """
    tensor = input_tensor("spline_filter", input)
    dtype = _filter_dtype("spline_filter", tensor, order, output, mode)
    result = _filtered(tensor, order, range(tensor.ndim), dtype, mode) if tensor.ndim else as_dtype_of(tensor, dtype)
    return write_output(relaid(result, tensor.layout.axes, "spline_filter"), output)


# -- values at coordinates --------------------------------------------------------------------------------------------


class _SplineCall:
    """A call of one of SciPy's functions that evaluate a spline.

    Parameters
    ----------
    name: name of the function
    input, output: arguments of the function
    rule: order, mode and cval
    prefilter: whether to filter the elements first
    arguments: other arguments, for the text that ranks compare
    """

    def __init__(
        self, name: str, input: TensorLike, output: Output, rule: SplineRule, *, prefilter: bool, **arguments: object
    ) -> None:
        self.tensor, self._name, self._output, self._rule = input_tensor(name, input), name, output, rule
        self._prefilter = bool(prefilter) and rule.order > 1
        refuse_cyclic(self.tensor)
        one_element = np.zeros((1,) * self.tensor.ndim)
        target = one_element.astype(output.dtype) if isinstance(output, DTensor) else output
        self.dtype: DType = (
            scipy_ndimage()
            .shift(one_element.astype(self.tensor.dtype), 0, target, rule.order, rule.mode, rule.cval, prefilter=False)
            .dtype
        )
        self._text = f"{call_text(name, arguments | rule._asdict())} as {self.dtype}, prefilter {self._prefilter}"

    def values_at(
        self, shape: Shape, coordinates: Coordinates, layout: Layout | None = None, planes: Sequence[int] | None = None
    ) -> DTensor:
        """Return the values at *coordinates*, or *output* with them. Collective if the input is sharded.

        Parameters
        ----------
        shape: shape of the output
        coordinates: function from a box of the output to coordinates
        layout: layout of the output; by default as that of the input
        planes: the axes with coordinates; along other axes the indices stay the same. By default all
        """
        tensor, axes = self.tensor, range(self.tensor.ndim) if planes is None else planes
        target = output_layout(tensor, shape) if layout is None else layout, shape, coordinates, axes
        if isinstance(self._output, DTensor) and self._output.shape != shape:
            raise RuntimeError(f"output shape {self._output.shape} is not that of the result: {shape}")
        if tensor.dtype.kind != "c":
            return write_output(self._evaluated(tensor, self._rule, self.dtype, target), self._output)
        components = []
        for component_of in (np.real, np.imag):
            component = mapped(
                lambda block, component_of=component_of: component_of(block).copy(),
                tensor,
                dtype=np.empty(0, tensor.dtype).real.dtype,
            )
            rule = self._rule._replace(cval=component_of(self._rule.cval))
            real_dtype = np.empty(0, self.dtype).real.dtype
            components.append(self._evaluated(component, rule, real_dtype, target))
        return write_output(complex_of(components, self.dtype), self._output)

    def _evaluated(
        self, tensor: DTensor, rule: SplineRule, dtype: DType, target: tuple[Layout, Shape, Coordinates, Sequence[int]]
    ) -> DTensor:
        layout, shape, coordinates, axes = target
        padding = 0
        if self._prefilter:
            if rule.mode in _PAD_MODES:
                padding = _PADDING
                widths = [(padding, padding) if axis in axes else (0, 0) for axis in range(tensor.ndim)]
                options = {"constant_values": rule.cval} if rule.mode == "grid-constant" else {}
                tensor = pad(tensor, widths, _PAD_MODES[rule.mode], **options)
            tensor = _filtered(tensor, rule.order, axes, np.dtype(np.float64), rule.mode)
        supports = [Support(tensor.shape[axis], rule) for axis in axes]

        def needed_box() -> Box:
            box = layout.block_box(shape)
            for slab in _slabs(box, axes, tensor.ndim):
                for support, positions in zip(supports, coordinates(slab), strict=True):
                    support.add(positions + padding)
            spans = dict(zip(axes, (support.span for support in supports), strict=True))
            return tuple(spans[axis] if axis in spans else box[axis] for axis in range(tensor.ndim))

        def block_values(block: Array) -> Array:
            array, box = read_box(tensor, needed_box, self._text), layout.block_box(shape)
            result = new_block(box_shape(box), dtype)
            if result.size:
                block_target = box, axes, coordinates, padding
                _evaluate(extended(array, supports, axes, rule), result, block_target, supports, rule)
            return result

        return mapped(block_values, tensor, layout=layout, shape=shape, dtype=dtype)


def _slabs(box: Box, axes: Sequence[int], ndim: int) -> Iterator[Box]:
    """Yield slabs of *box*, restricted to *axes*, so small that their coordinates keep to the scratch limit."""
    if 0 not in box_shape(box):
        axes_box = box if len(axes) == ndim else tuple(box[axis] for axis in axes)
        yield from slabs(axes_box, max(1, DEFAULT_SCRATCH // (32 * len(axes))))


def _evaluate(
    array: Array,
    result: Array,
    block_target: tuple[Box, Sequence[int], Coordinates, int],
    supports: Sequence[Support],
    rule: SplineRule,
) -> None:
    """Write the values of the block *result* from *array*, the elements of *supports*.

    *block_target* is the box of the block, the axes with coordinates, the coordinates, and the padding.
    """
    box, axes, coordinates, padding = block_target
    other_axes = [axis for axis in range(array.ndim) if axis not in axes]
    sources = np.moveaxis(array, other_axes, range(len(other_axes)))
    targets = np.moveaxis(result, other_axes, range(len(other_axes))) if other_axes else result
    if not array.size:  # all values are the constant
        sources = np.zeros((*targets.shape[: len(other_axes)], *(1,) * len(axes)), array.dtype)
    axes_box = box if not other_axes else tuple(box[axis] for axis in axes)
    for slab in _slabs(box, axes, array.ndim):
        positions = np.empty((len(axes), *box_shape(slab)))
        is_outside = np.zeros(box_shape(slab), bool)
        for row, support, axis_coordinates in zip(positions, supports, coordinates(slab), strict=True):
            folded, is_constant = support.folded(axis_coordinates + padding)
            row[...] = folded - support.first
            is_outside |= is_constant
        positions[:, is_outside] = CONSTANT
        row_slice = slice(slab[0][0] - axes_box[0][0], slab[0][1] - axes_box[0][0])
        for index in np.ndindex(targets.shape[: len(other_axes)]):
            scipy_ndimage().map_coordinates(
                sources[index],
                positions,
                targets[(*index, row_slice)],
                rule.order,
                "constant",
                rule.cval,
                prefilter=False,
            )


def output_layout(tensor: DTensor, shape: Shape) -> Layout:
    """Return the layout of an output of *shape*: as *tensor*, or cut along its first axis if *ndim* differs.

    >>> import meshcomm as mc
    >>> mesh = mc.Mesh(range(2), {"x": 2})
    >>> t = mc.DTensor(None, mc.Layout(["x", mc.UNSHARDED], mesh), (4, 5), np.dtype("f8"))
    >>> output_layout(t, (8, 9)).sharding_specs, output_layout(t, (7,)).sharding_specs
    (['x', 'unsharded'], ['x'])
    """
    if shape == tensor.shape:
        return tensor.layout
    if len(shape) == tensor.ndim:
        return tensor.layout.default_cut(axis for axis, n in enumerate(shape) if n != tensor.shape[axis])
    return Layout([tensor.layout.sharding_dims, *[()] * (len(shape) - 1)][: len(shape)], tensor.mesh)


# -- functions --------------------------------------------------------------------------------------------------------


def _grid(box: Box) -> list[Array]:
    """Return the indices of a box along each of its axes, as arrays that broadcast."""
    return [
        np.arange(start, stop, dtype=np.float64).reshape([-1 if a == axis else 1 for a in range(len(box))])
        for axis, (start, stop, *_) in enumerate(box)
    ]


@refusable
def shift(
    input: TensorLike,
    shift: Reals,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
) -> DTensor:
    """Return the tensor shifted by *shift* elements, which need not be whole. Collective over the mesh.

    Source: scipy.ndimage.shift.

    Parameters
    ----------
    input: a tensor
    shift: shift in elements, or one number for each axis
    output: a dtype for the result, or a tensor to write into and return
    order: order of the spline, 0 to 5
    mode: boundary: "constant", "nearest", "reflect", "mirror", "wrap" or another name of SciPy
    cval: the value beyond the edges if *mode* is "constant" or "grid-constant"
    prefilter: whether to filter *input* first, as splines of an order above 1 need it; False if it is filtered

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.shift(mc.distribute(np.arange(4.0), rows), 0.5, order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 0.5], [1.5, 2.5]]
    """
    spline = _SplineCall("shift", input, output, SplineRule(order, mode, cval), prefilter=prefilter, shift=shift)
    tensor = spline.tensor
    shifts = [-np.float64(amount) for amount in per_axis(shift, tensor.ndim, "shift")]
    return spline.values_at(
        tensor.shape, lambda box: [index + amount for index, amount in zip(_grid(box), shifts, strict=True)]
    )


@refusable
def zoom(
    input: TensorLike,
    zoom: Reals,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
    *,
    grid_mode: bool = False,
) -> DTensor:
    """Return the tensor with more elements, or fewer, over the same range. Collective over the mesh.

    Source: scipy.ndimage.zoom.

    Other arguments are those of `shift`.

    Parameters
    ----------
    zoom: factor of the lengths of the axes, or one for each axis
    grid_mode: whether the ends of an axis are the edges of its first and last element; by default they are the centres

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.zoom(mc.distribute([0.0, 1, 2, 3], rows), 1.75, order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[0.0, 0.5, 1.0, 1.5], [2.0, 2.5, 3.0]]
    """
    spline = _SplineCall(
        "zoom", input, output, SplineRule(order, mode, cval), prefilter=prefilter, zoom=zoom, grid_mode=bool(grid_mode)
    )
    tensor = spline.tensor
    factors = per_axis(zoom, tensor.ndim, "zoom")
    scipy_ndimage().zoom(np.zeros((1,) * tensor.ndim), 2, order=0, mode=mode, grid_mode=grid_mode)  # its warning
    shape = tuple(round(n * factor) for n, factor in zip(tensor.shape, factors, strict=True))
    if all(factor == 1 for factor in factors) and prefilter:
        return write_output(as_dtype_of(tensor, spline.dtype), output)
    length_offset = 0 if grid_mode else 1
    scales = [
        np.float64(old_length - length_offset) / np.float64(new_length - length_offset)
        if new_length != length_offset
        else np.float64(1)
        for old_length, new_length in zip(tensor.shape, shape, strict=True)
    ]
    centre_offset = 0.5 if grid_mode else 0.0
    return spline.values_at(
        shape,
        lambda box: [
            (index + centre_offset) * scale - centre_offset for index, scale in zip(_grid(box), scales, strict=True)
        ],
    )


def _affine_coordinates(matrix: Array, offset: Array) -> Coordinates:
    """Return the coordinates of an affine map, computed in SciPy's order."""

    def coordinates(box: Box) -> list[Array]:
        grid, coordinates_along = _grid(box), []
        for row, axis_shift in zip(matrix, offset, strict=True):
            values = np.full((1,) * len(box), axis_shift)
            for index, factor in zip(grid, row, strict=True):
                values = values + index * factor
            coordinates_along.append(values)
        return coordinates_along

    return coordinates


@refusable
def affine_transform(
    input: TensorLike,
    matrix: ArrayLike,
    offset: Reals = 0.0,
    output_shape: Iterable[SupportsIndex] | None = None,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
) -> DTensor:
    """Return for each index o of the output the value at ``matrix @ o + offset``. Collective over the mesh.

    Source: scipy.ndimage.affine_transform.

    Other arguments are those of `shift`.

    Parameters
    ----------
    matrix: one row for each axis of the input; its diagonal; or a matrix for homogeneous coordinates
    offset: number to add, or one for each axis
    output_shape: shape of the output; by default the shape of *output* or *input*

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.affine_transform(mc.distribute(np.arange(4.0), rows), [-1], 3, order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3.0, 2.0], [1.0, 0.0]]
    """
    factors, text_arguments = np.asarray(matrix, np.float64), {"offset": offset, "output_shape": output_shape}
    spline = _SplineCall(
        "affine_transform",
        input,
        output,
        SplineRule(order, mode, cval),
        prefilter=prefilter,
        matrix=factors,
        **text_arguments,
    )
    ndim = spline.tensor.ndim
    shape = _output_shape(spline.tensor, output, output_shape)
    one_element = np.zeros((1,) * ndim)
    scipy_ndimage().affine_transform(one_element, factors, offset, (1,) * len(shape), order=0)  # raises SciPy's errors
    if factors.ndim == 2 and factors.shape[1] == ndim + 1 and factors.shape[0] in (ndim, ndim + 1):
        offset, factors = factors[:ndim, ndim], factors[:ndim, :ndim]
    offsets = np.asarray(per_axis(offset, ndim, "offset"), np.float64)
    if factors.ndim == 2:
        return spline.values_at(shape, _affine_coordinates(factors, offsets))
    with np.errstate(all="ignore"):
        shifts = offsets / factors
    return spline.values_at(
        shape,
        lambda box: [
            (index + axis_shift) * factor
            for index, axis_shift, factor in zip(_grid(box), shifts, factors, strict=True)
        ],
    )


def _output_shape(tensor: DTensor, output: Output, shape: Iterable[SupportsIndex] | None) -> Shape:
    if shape is None:
        return output.shape if isinstance(output, DTensor) else tensor.shape
    return tuple(map(int, shape))


@refusable
def rotate(
    input: TensorLike,
    angle: float,
    axes: tuple[int, int] = (1, 0),
    reshape: bool = True,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
) -> DTensor:
    """Return the tensor rotated in the plane of two *axes*. Collective over the mesh.

    Source: scipy.ndimage.rotate.

    Other arguments are those of `shift`.

    Parameters
    ----------
    angle: angle in degrees
    axes: the two axes of the plane
    reshape: whether the output is as large as the rotated input

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
    ...     return mc.ndimage.rotate(mc.distribute([[1.0, 2], [3, 4]], rows), 90, order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[[2.0, 4.0]], [[1.0, 3.0]]]
    """
    text_arguments = {"angle": angle, "axes": axes, "reshape": bool(reshape)}
    spline = _SplineCall("rotate", input, output, SplineRule(order, mode, cval), prefilter=prefilter, **text_arguments)
    tensor = spline.tensor
    scipy_ndimage().rotate(np.zeros((1,) * tensor.ndim), 0, axes, order=0)  # raises SciPy's errors
    plane = sorted(int(axis) % tensor.ndim for axis in axes)
    cosine, sine = _cosine_and_sine(angle)
    matrix = np.array([[cosine, sine], [-sine, cosine]])
    input_lengths = np.asarray(tensor.shape)[plane]
    output_lengths = input_lengths
    if reshape:
        iy, ix = input_lengths
        corners = matrix @ [[0, 0, iy, iy], [0, ix, 0, ix]]
        output_lengths = (np.ptp(corners, axis=1) + 0.5).astype(int)
    offset = (input_lengths - 1) / 2 - matrix @ ((output_lengths - 1) / 2)
    shape = list(tensor.shape)
    shape[plane[0]], shape[plane[1]] = map(int, output_lengths)
    return spline.values_at(tuple(shape), _affine_coordinates(matrix, offset), planes=plane)


def _cosine_and_sine(angle: float) -> tuple[float, float]:
    """Return cosine and sine of an angle in degrees, from SciPy's functions for degrees."""
    import scipy.special

    return float(scipy.special.cosdg(angle)), float(scipy.special.sindg(angle))


@refusable
def map_coordinates(
    input: TensorLike,
    coordinates: Tensor,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
) -> DTensor:
    """Return the values at *coordinates*. Collective over the meshes of *input* and *coordinates*.

    Each rank reads the smallest box with all elements for its coordinates. The result is sharded as *coordinates*, if
    that is a tensor. Source: scipy.ndimage.map_coordinates.

    Other arguments are those of `shift`.

    Parameters
    ----------
    coordinates: for each axis of *input* an array of the shape of the output: a tensor, or an array, the same on all
        ranks

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.arange(4.0), rows)
    ...     return mc.ndimage.map_coordinates(t, [[2.5, 0.5]], order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[2.5], [0.5]]
    """
    points = unwrapped(coordinates)
    coordinate_values = points if isinstance(points, DTensor) else np.asarray(points)
    text_arguments = {
        "coordinates": coordinate_values if isinstance(coordinate_values, np.ndarray) else str(coordinate_values.shape)
    }
    spline = _SplineCall(
        "map_coordinates", input, output, SplineRule(order, mode, cval), prefilter=prefilter, **text_arguments
    )
    if coordinate_values.dtype.kind == "c":
        raise TypeError("Complex type not supported")
    if coordinate_values.ndim < 2 or not spline.tensor.ndim:
        raise RuntimeError("input and output rank must be > 0")
    if coordinate_values.shape[0] != spline.tensor.ndim:
        raise RuntimeError("invalid shape for coordinate array")
    shape = coordinate_values.shape[1:]
    if not isinstance(coordinate_values, DTensor):
        return spline.values_at(shape, lambda box: [row.astype(np.float64) for row in cut_out(coordinate_values, box)])
    refuse_cyclic(coordinate_values)
    unsharded = whole_along(coordinate_values, (0,), "map_coordinates")
    layout = unsharded.layout.delete(0)
    if layout.mesh is not spline.tensor.mesh:
        raise ShapeError("map_coordinates: input and coordinates are on different meshes")

    return spline.values_at(shape, _coordinates_within(on_blocks(list, unsharded) or [], layout, shape), layout)


@refusable
def geometric_transform(
    input: TensorLike,
    mapping: Callable[..., Sequence[float]],
    output_shape: Iterable[SupportsIndex] | None = None,
    output: Output = None,
    order: int = 3,
    mode: str = "constant",
    cval: Number = 0.0,
    prefilter: bool = True,
    extra_arguments: Sequence[object] = (),
    extra_keywords: Mapping[str, object] | None = None,
) -> DTensor:
    """Return for each index of the output the value at the coordinates by *mapping*. Collective over the mesh.

    Each rank calls *mapping* for the indices of its block. Source: scipy.ndimage.geometric_transform.

    Other arguments are those of `shift`.

    Parameters
    ----------
    mapping: Python function from an index, a tuple of numbers, to coordinates
    output_shape: shape of the output; by default the shape of *input*
    extra_arguments: further arguments for *mapping*
    extra_keywords: further arguments for *mapping*, by name

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    ...     t = mc.distribute(np.arange(4.0), rows)
    ...     return mc.ndimage.geometric_transform(t, lambda at: (3 - at[0],), order=1).local.tolist()
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program))
    [[3.0, 2.0], [1.0, 0.0]]
    """
    if not callable(mapping):
        raise TypeError(f"geometric_transform: mapping must be a function of Python, not {type(mapping).__name__}")
    spline = _SplineCall("geometric_transform", input, output, SplineRule(order, mode, cval), prefilter=prefilter)
    tensor = spline.tensor
    shape = _output_shape(tensor, None, output_shape)
    if not tensor.ndim or not shape:
        raise RuntimeError("input and output rank must be > 0")
    layout = output_layout(tensor, shape)

    def coordinates() -> list[Array]:
        box = layout.block_box(shape)
        table = np.empty((prod(box_shape(box)), tensor.ndim))
        for row, local_index in enumerate(np.ndindex(box_shape(box))):
            index = tuple(start + i for (start, *_), i in zip(box, local_index, strict=True))
            table[row] = mapping(index, *extra_arguments, **(extra_keywords or {}))
        return [np.ascontiguousarray(column).reshape(box_shape(box)) for column in table.T]

    call = f"geometric_transform to {shape}"
    columns = on_blocks(lambda block: agree_on_result("geometric_transform", layout.mesh, call, coordinates), tensor)
    return spline.values_at(shape, _coordinates_within(columns or [], layout, shape), layout)


def _coordinates_within(block: Sequence[Array], layout: Layout, shape: Shape) -> Coordinates:
    """Return the function from boxes in the block of this rank to their coordinates, from those of the *block*."""

    def coordinates(box: Box) -> list[Array]:
        block_box = layout.block_box(shape)
        local_slices = tuple(
            slice(start - block_start, stop - block_start)
            for (start, stop, *_), (block_start, *_) in zip(box, block_box, strict=True)
        )
        return [values[local_slices].astype(np.float64) for values in block]

    return coordinates
