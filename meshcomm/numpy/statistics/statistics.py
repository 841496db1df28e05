"""Statistics of tensors, as NumPy has them: each with one small exchange, as `meshcomm.numpy.reductions.reductions`.

A variance needs the mean first. Instead of a second exchange, each device computes count, mean and sum of squared
deviations of its block, and these are merged by the formula of Chan, Golub and LeVeque (1979). A sum of squares, less
the square of the sum, would lose all digits if the mean is large.
"""

from collections.abc import Callable
from functools import partial
from math import prod as product

import numpy as np
from numpy.typing import DTypeLike

from meshcomm.blocks.reduce import Merge, Reduction, axis_argument, reduced
from meshcomm.blocks.rules import result_dtype
from meshcomm.blocks.tensor_numpy import tensor_np
from meshcomm.core._arguments import as_dtype, quote, reduced_axes
from meshcomm.core._callers import warn, warning_at_program
from meshcomm.core._types import Array, Axis, DType
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.numpy.elementwise.signatures import decision, implements, operation
from meshcomm.numpy.reductions.reductions import mean, reducing_by, refuse_empty
from meshcomm.numpy.ufuncs import reduce, with_where

CACHED_BYTES = 2**18
"""Bytes of an interval of an array. Several passes go over one interval before the next one: so it stays in the cache
of a core. Measured with the variance of 32 MiB."""

# -- reductions that devices repeat on their results ------------------------------------------------------------------


def _repeated_reduction(function: Callable[..., object], op: str) -> Callable[..., DTensor]:
    """Return NumPy's *function* for tensors: devices reduce the results of their blocks by *op*.

    The returned function is Collective over the mesh if a reduced axis is sharded.
    """

    @operation()
    def statistic(a: DTensor, axis: Axis = None, *, keepdims: bool = False) -> Call | DTensor:
        return reducing_by(function, op, a, axis, keepdims)

    return statistic


def _typed_reduction(function: Callable[..., object], op: str) -> Callable[..., DTensor]:
    """Return NumPy's *function*, which also takes a dtype, as `_repeated_reduction` does."""

    @operation()
    def statistic(
        a: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False
    ) -> Call | DTensor:
        return reducing_by(function, op, a, axis, keepdims, dtype=dtype)

    return statistic


any = _repeated_reduction(np.any, "max")
all = _repeated_reduction(np.all, "min")

# -- shares of several fields -----------------------------------------------------------------------------------------


def merge_by_field(**ufuncs: np.ufunc) -> Merge:
    """Return a function that merges shares field by field: *ufuncs* has a ufunc for each field.

    >>> rows = np.array([(1, 5), (2, 3)], [("most", int), ("least", int)]).reshape(2, 1)
    >>> merge_by_field(most=np.maximum, least=np.minimum)(rows)["least"].tolist()
    [3]
    """

    def merge(rows: Array) -> Array:
        merged_row: Array = rows[0].copy()
        for row in rows[1:]:
            for field, ufunc in ufuncs.items():
                ufunc(merged_row[field], row[field], out=merged_row[field])
        return merged_row

    return merge


def structured_array(**fields: object) -> Array:
    """Return a structured array of these *fields*, which have one shape."""
    arrays = {name: np.asarray(value) for name, value in fields.items()}
    dtype = np.dtype([(name, array.dtype) for name, array in arrays.items()], align=True)
    records = np.zeros(next(iter(arrays.values())).shape, dtype)
    for name, array in arrays.items():
        records[name] = array
    return records


@implements(np.ptp, partly=True)
def ptp(a: DTensor, axis: Axis = None, *, keepdims: bool = False) -> DTensor:
    """Return the maximum less the minimum over *axis*. Collective over the mesh if a reduced axis is sharded.

    ``ShapeError`` if there are no elements, NumPy's ``TypeError`` if the dtype has no subtraction.
    """
    tensor = as_tensor("numpy.ptp", a)
    axes = reduced_axes(axis, tensor.ndim)
    refuse_empty("ptp", tensor, axis)
    numpy_axis = axis_argument(axes, tensor.ndim)
    native_dtype = tensor.dtype.newbyteorder("=")
    reduction = Reduction(
        "ptp",
        axes,
        lambda block: np.ptp(block, axis=numpy_axis),
        lambda block: structured_array(most=np.max(block, axis=numpy_axis), least=np.min(block, axis=numpy_axis)),
        merge_by_field(most=np.maximum, least=np.minimum),
        result_dtype(np.ptp, [tensor.dtype], tensor.ndim),
        np.dtype([("most", native_dtype), ("least", native_dtype)], align=True),
        lambda extremes: np.asarray(extremes["most"] - extremes["least"]),
    )
    return reduced(reduction, tensor, keepdims)


# -- variances --------------------------------------------------------------------------------------------------------


def _variance_function(function: Callable[..., object]) -> Callable[..., DTensor]:
    """Return *function*, one of var, std, nanvar and nanstd, for tensors.

    The returned function is Collective over the mesh if a reduced axis is sharded. Several devices merge count, mean
    and sum of squared deviations of their blocks in one small exchange. As in NumPy the variance of complex numbers is
    real, and that of integers float64. float16 is added up in float32. *ddof* and *correction* are two names of the
    number that is subtracted from the number of elements: ``ValueError`` if both are given. A result from *ddof* or
    fewer elements is NaN, with a warning.

    >>> import numpy as np, meshcomm as mc
    >>> def program():
    ...     t = mc.distribute(1e9 + np.arange(4.0), mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    ...     return float(np.var(t)), float(np.var(t, ddof=1))
    >>> with mc.simulate(2) as world:
    ...     print(world.run(program)[0])
    (1.25, 1.6666666666666667)
    """
    name = function.__name__

    def statistic(
        a: DTensor,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        ddof: float = 0,
        keepdims: bool = False,
        correction: float | None = None,
    ) -> DTensor:
        return _variance_or_std(function, a, axis, dtype, _lost_degrees(name, ddof, correction), keepdims=keepdims)

    return statistic


def _lost_degrees(name: str, ddof: float, correction: float | None) -> float:
    if correction is not None and ddof != 0:
        raise ValueError(f"numpy.{name}: ddof and correction can't be provided simultaneously.")
    degrees = ddof if correction is None else correction
    if not isinstance(degrees, int | float | np.integer | np.floating):
        raise TypeError(f"numpy.{name}: ddof must be a number, not {quote(degrees)}")
    return degrees


def _sum_dtype(dtype: DType) -> DType:
    """Return the dtype in which to add up: float32 for float16."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype.newbyteorder("=")


def _real_dtype(dtype: DType) -> DType:
    return np.zeros((), dtype).real.dtype


def _quotient(total: DTensor, count: DTensor, sum_dtype: DType) -> DTensor:
    """Return a mean from a sum in *sum_dtype* and a count. Durations are divided by integers, as in NumPy."""
    return total / (count if sum_dtype.kind == "m" else count.astype(_real_dtype(sum_dtype)))


def _mean_dtype(name: str, tensor: DTensor, dtype: DTypeLike | None) -> DType:
    """Return the dtype in which a mean is computed; ``TypeError`` if *dtype* cannot hold it."""
    if dtype is not None:
        requested_dtype = as_dtype(dtype)
        if requested_dtype.kind not in "fc" or (requested_dtype.kind == "f" and tensor.dtype.kind == "c"):
            raise TypeError(f"numpy.{name}: dtype {requested_dtype} cannot hold the mean of {tensor.dtype}")
    return sum_dtype_of(tensor.dtype, dtype)


def sum_dtype_of(source: DType, dtype: DTypeLike | None = None) -> DType:
    """Return the dtype in which a mean in *dtype* is computed from elements of dtype *source*."""
    return _sum_dtype(result_dtype(np.mean, [source], 1, dtype))


def _variance_or_std(
    function: Callable[..., object],
    operand: object,
    axis: Axis,
    dtype: DTypeLike | None,
    ddof: float,
    *,
    keepdims: bool,
) -> DTensor:
    """Return the result of *function*, one of var, std, nanvar and nanstd. Collective as `reduced`."""
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    axes = reduced_axes(axis, tensor.ndim)
    out_dtype, sum_dtype = result_dtype(function, [tensor.dtype], tensor.ndim, dtype), _mean_dtype(name, tensor, dtype)
    numpy_axis, skip_nan = axis_argument(axes, tensor.ndim), name.startswith("nan") and tensor.dtype.kind in "fc"

    def finish(moment_fields: Array) -> Array:
        if np.any(moment_fields["count"] <= ddof):
            warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        return variance_from_moments(moment_fields, ddof, skip_nan, root=name.endswith("std")).astype(out_dtype)

    compute_share, share_dtype = moments(axes, sum_dtype, skip_nan)
    reduction = Reduction(
        name,
        axes,
        partial(warning_at_program(function) if skip_nan else function, axis=numpy_axis, dtype=dtype, ddof=ddof),
        compute_share,
        merged_moments,
        out_dtype,
        share_dtype,
        finish,
        (f"ddof {ddof!r}", f"in {sum_dtype}"),
    )
    return reduced(reduction, tensor, keepdims)


def variance_from_moments(moment_fields: Array, ddof: float, skip_nan: bool, *, root: bool) -> Array:
    """Return a variance, or its square root if *root*, from moments; NaN for no elements if *skip_nan*."""
    degrees = moment_fields["count"] - ddof
    with np.errstate(all="ignore"):
        result = np.asarray(moment_fields["squares"] / np.maximum(degrees, 0))
        if skip_nan:
            result = np.where(degrees <= 0, np.nan, result)
        return np.asarray(tensor_np.sqrt(result) if root else result)


def moments(axes: tuple[int, ...], sum_dtype: DType, skip_nan: bool) -> tuple[Callable[[Array], Array], DType]:
    """Return a function that computes count, mean and sum of squared deviations along *axes*, and its dtype.

    Parameters
    ----------
    axes: reduced axes
    sum_dtype: dtype of the sums
    skip_nan: whether NaN are left out
    """
    compute_share = partial(_nan_moments if skip_nan else _moments, axes=axes, sum_dtype=sum_dtype)
    return compute_share, np.dtype(
        [("count", np.int64), ("mean", sum_dtype), ("squares", _real_dtype(sum_dtype))], align=True
    )


def _squares(deviations: Array) -> Array:
    """Return the squares of the absolute values; *deviations* is overwritten."""
    if deviations.dtype.kind == "c":
        return np.asarray(np.square(deviations.real) + np.square(deviations.imag))
    np.multiply(deviations, deviations, out=deviations)
    return deviations


def _moments(block: Array, axes: tuple[int, ...], sum_dtype: DType) -> Array:
    """Return count, mean and sum of squared deviations along *axes*."""
    if _is_long(block, axes):
        return _moments_by_intervals(_moments, block.reshape(-1), sum_dtype)
    count = product(block.shape[axis] for axis in axes)
    block_mean = np.asarray(np.sum(block, axis=axes, dtype=sum_dtype, keepdims=True) / sum_dtype.type(count))
    squares = np.sum(_squares(np.asarray(np.subtract(block, block_mean, dtype=sum_dtype))), axis=axes)
    block_mean = block_mean.reshape(np.shape(squares))
    return structured_array(count=np.full(block_mean.shape, count), mean=block_mean, squares=squares)


def _is_long(block: Array, axes: tuple[int, ...]) -> bool:
    """Return whether all axes of *block* are reduced, and it is too long for the cache."""
    return len(axes) == block.ndim and block.nbytes > 2 * CACHED_BYTES and block.flags.c_contiguous


def _moments_by_intervals(compute_moments: Callable[..., Array], flat: Array, sum_dtype: DType) -> Array:
    """Return the result of *compute_moments* for a long array, which is read from memory only once.

    The array is cut into intervals that stay in the cache between the passes over them.
    """
    length = CACHED_BYTES // flat.itemsize
    records = np.array(
        [compute_moments(flat[start : start + length], (0,), sum_dtype) for start in range(0, len(flat), length)]
    )
    counts, count = records["count"].astype(_real_dtype(sum_dtype)), np.sum(records["count"])
    overall_mean = np.sum(records["mean"] * (counts / tensor_np.maximum(count, 1)))
    # An interval with only NaN has no mean: its record must not count.
    between_squares = np.sum(_squares(np.where(counts > 0, records["mean"] - overall_mean, 0)) * counts)
    return structured_array(count=count, mean=overall_mean, squares=np.sum(records["squares"]) + between_squares)


def _nan_moments(block: Array, axes: tuple[int, ...], sum_dtype: DType) -> Array:
    """Return count, mean and sum of squared deviations along *axes* of the elements that are not NaN."""
    if _is_long(block, axes):
        return _moments_by_intervals(_nan_moments, block.reshape(-1), sum_dtype)
    is_nan = np.isnan(block)
    count = np.sum(~is_nan, axis=axes, keepdims=True)
    total = np.sum(np.where(is_nan, 0, block), axis=axes, dtype=sum_dtype, keepdims=True)
    block_mean = np.asarray(total / tensor_np.maximum(count, 1).astype(_real_dtype(sum_dtype)))
    deviations = np.asarray(np.subtract(block, block_mean, dtype=sum_dtype))
    np.copyto(deviations, 0, where=is_nan)
    squares = np.sum(_squares(deviations), axis=axes)
    return structured_array(
        count=count.reshape(np.shape(squares)), mean=block_mean.reshape(np.shape(squares)), squares=squares
    )


def merged_moments(rows: Array) -> Array:
    """Return the moments of all elements from those of several blocks, which are rows."""
    merged_row: Array = rows[0].copy()
    for row in rows[1:]:
        total_count = merged_row["count"] + row["count"]
        # Counts are multiplied first: if one is zero, the result is that of the other block.
        weight = row["count"].astype(row["squares"].dtype) / np.maximum(total_count, 1)
        delta = row["mean"] - merged_row["mean"]
        merged_row["squares"] += row["squares"] + (np.conj(delta) * merged_row["count"] * (delta * weight)).real
        merged_row["mean"] += delta * weight
        merged_row["count"] = total_count
    return merged_row


# -- without NaN ------------------------------------------------------------------------------------------------------

MERGE_TOTALS = merge_by_field(count=np.add, total=np.add)
"""The function that merges the shares of `totals`."""


def totals(axes: tuple[int, ...], sum_dtype: DType, *, skip_nan: bool) -> tuple[Callable[[Array], Array], DType]:
    """Return a function that computes count and sum along *axes*, and its dtype. Arguments are those of `moments`."""
    return partial(_totals, axes=axes, sum_dtype=sum_dtype, skip_nan=skip_nan), np.dtype(
        [("count", np.int64), ("total", sum_dtype)], align=True
    )


def _totals(block: Array, axes: tuple[int, ...], sum_dtype: DType, skip_nan: bool) -> Array:
    numpy_axis = axis_argument(axes, block.ndim)
    if not skip_nan:
        total = np.sum(block, axis=numpy_axis, dtype=sum_dtype)
        return structured_array(
            count=np.full(np.shape(total), product(block.shape[axis] for axis in axes)), total=total
        )
    is_nan = np.isnan(block)
    total = np.sum(np.where(is_nan, 0, block), axis=numpy_axis, dtype=sum_dtype)
    if numpy_axis is None:
        return structured_array(count=block.size - np.count_nonzero(is_nan), total=total)
    return structured_array(count=np.sum(~is_nan, axis=numpy_axis), total=total)


def nanmean(a: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the mean over *axis* without NaN. Collective over the mesh if a reduced axis is sharded.

    As in NumPy, the mean of only NaN is NaN, with a warning. float16 is added up in float32.
    """
    tensor = as_tensor("numpy.nanmean", a)
    if tensor.dtype.kind not in "fc":
        return mean(tensor, axis, dtype, keepdims)  # as in NumPy, NaT counts as a number here
    axes = reduced_axes(axis, tensor.ndim)
    out_dtype = result_dtype(np.nanmean, [tensor.dtype], tensor.ndim, dtype)
    sum_dtype = _mean_dtype("nanmean", tensor, dtype)
    numpy_axis, (compute_share, share_dtype) = axis_argument(axes, tensor.ndim), totals(axes, sum_dtype, skip_nan=True)

    def finish(sums: Array) -> Array:
        if np.any(sums["count"] == 0):
            warn("Mean of empty slice", RuntimeWarning)
        with np.errstate(all="ignore"):
            return np.asarray(sums["total"] / sums["count"]).astype(out_dtype)

    reduction = Reduction(
        "nanmean",
        axes,
        lambda block: warning_at_program(np.nanmean)(block, axis=numpy_axis, dtype=dtype),
        compute_share,
        MERGE_TOTALS,
        out_dtype,
        share_dtype,
        finish,
        (f"in {sum_dtype}",),
    )
    return reduced(reduction, tensor, keepdims)


def _extreme_function(function: Callable[..., object], ufunc: np.ufunc) -> Callable[..., DTensor]:
    """Return *function*, nanmax or nanmin, for tensors, from the *ufunc* of two elements.

    The returned function is Collective over the mesh if a reduced axis is sharded. As in NumPy, the extreme of only
    NaN is NaN, with a warning. ``ShapeError`` if there are no elements.
    """
    name = function.__name__

    def finish(extremes: Array) -> Array:
        if np.any(np.isnan(extremes)):
            warn("All-NaN slice encountered", RuntimeWarning)
        return extremes

    def extreme(a: DTensor, axis: Axis = None, *, keepdims: bool = False) -> DTensor:
        tensor = as_tensor(f"numpy.{name}", a)
        axes = reduced_axes(axis, tensor.ndim)
        refuse_empty(name, tensor, axis)
        numpy_axis = axis_argument(axes, tensor.ndim)
        reduction = Reduction(
            name,
            axes,
            lambda block: warning_at_program(function)(block, axis=numpy_axis),
            lambda block: ufunc.reduce(block, axis=numpy_axis),
            lambda rows: np.asarray(ufunc.reduce(rows, axis=0)),
            result_dtype(function, [tensor.dtype], tensor.ndim),
            finish=finish,
        )
        return reduced(reduction, tensor, keepdims)

    return extreme


# -- where= and mean= -------------------------------------------------------------------------------------------------


def _with_options(function: Callable[..., object], reduction: Callable[..., DTensor]) -> Callable[..., Call | DTensor]:
    """Return *reduction*, a mean or a deviation, with NumPy's ``where=`` and ``mean=``. Collective as `reduced`.

    With these, first the sums of the elements that count are reduced, and then those of their squared deviations.
    """
    name, ignores_nan = function.__name__, function.__name__.startswith("nan")

    def statistic(
        a: DTensor,
        axis: Axis = None,
        dtype: DTypeLike | None = None,
        *,
        keepdims: bool = False,
        where: object = True,
        mean: DTensor | None = None,
        ddof: float = 0,
        correction: float | None = None,
    ) -> Call | DTensor:
        if where is True and mean is None:
            ddof_options = {} if name.endswith("mean") else {"ddof": ddof, "correction": correction}
            return decision(reduction)(a, axis, dtype, keepdims=bool(keepdims), **ddof_options)
        tensor = as_tensor(f"numpy.{name}", a)
        out_dtype = result_dtype(function, [tensor.dtype], tensor.ndim, dtype)
        sum_dtype = _mean_dtype(name, tensor, dtype)
        skip_nan = ignores_nan and tensor.dtype.kind in "fc"
        is_counted = tensor_np.logical_and(~np.isnan(tensor) if skip_nan else np.ones_like(tensor, dtype=bool), where)
        count = tensor_np.sum(is_counted, axis=axis, keepdims=True)
        with np.errstate(all="ignore"):
            if mean is None or name.endswith("mean"):
                mean = _quotient(
                    reduce(np.add, tensor, axis, sum_dtype.type, keepdims=True, where=is_counted), count, sum_dtype
                )
            result, divisor = mean, count
            if not name.endswith("mean"):
                divisor = tensor_np.maximum(count - _lost_degrees(name, ddof, correction), 0)
                deviations = tensor_np.subtract(tensor, mean, dtype=sum_dtype)
                squares = (deviations * tensor_np.conjugate(deviations)).real
                result = _quotient(reduce(np.add, squares, axis, keepdims=True, where=is_counted), divisor, sum_dtype)
                result = tensor_np.sqrt(result) if name.endswith("std") else result
        if np.any(divisor == 0):
            warn("Mean of empty slice" if divisor is count else "Degrees of freedom <= 0 for slice", RuntimeWarning)
        result = result.astype(out_dtype, copy=False)
        return result if keepdims else tensor_np.squeeze(result, reduced_axes(axis, tensor.ndim))

    return statistic


implements(np.any, partly=True)(with_where(any, np.logical_or))
implements(np.all, partly=True)(with_where(all, np.logical_and))
implements(np.count_nonzero, partly=True)(decision(_repeated_reduction(np.count_nonzero, "sum")))
implements(np.prod, partly=True)(with_where(_typed_reduction(np.prod, "prod"), np.multiply))
implements(np.nansum, partly=True)(with_where(_typed_reduction(np.nansum, "sum"), np.add, skip_nan=True))
implements(np.nanprod, partly=True)(with_where(_typed_reduction(np.nanprod, "prod"), np.multiply, skip_nan=True))
implements(np.mean, partly=True)(_with_options(np.mean, mean))
implements(np.nanmean, partly=True)(_with_options(np.nanmean, nanmean))
for _function in (np.var, np.std, np.nanvar, np.nanstd):
    implements(_function, partly=True)(_with_options(_function, _variance_function(_function)))
implements(np.nanmax, partly=True)(with_where(_extreme_function(np.nanmax, np.fmax), np.fmax))
implements(np.nanmin, partly=True)(with_where(_extreme_function(np.nanmin, np.fmin), np.fmin))
