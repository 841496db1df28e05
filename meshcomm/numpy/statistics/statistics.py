"""Statistics of tensors, as NumPy has them: one small exchange each, as :mod:`meshcomm.numpy.reductions.reductions`
makes it.

A variance needs the mean first. Instead of a second exchange, each device computes count, mean and sum of squared
deviations of its block, and these are merged as Chan, Golub and LeVeque (1979) have it. A sum of squares, less the
square of the sum, would lose all digits where the mean is large.
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
from meshcomm.core._callers import naming_callers, warn
from meshcomm.core._types import Array, Axis, DType
from meshcomm.core.arrays._recipes import Call
from meshcomm.core.arrays.dtensor import DTensor, as_tensor
from meshcomm.numpy.elementwise.signatures import decision, implements, operation
from meshcomm.numpy.reductions.reductions import mean, reducing_by, refuse_empty
from meshcomm.numpy.ufuncs import reduce, with_where

CACHED_BYTES = 2**18
"""Bytes of an array that several passes go over, one after the other, before the next interval of it: it stays in the
cache of a core then. Measured with the variance of 32 MiB."""

# -- reductions that devices repeat on their results ------------------------------------------------------------------


def _repeated_reduction(function: Callable[..., object], op: str) -> Callable[..., DTensor]:
    """Return NumPy's *function* for tensors, whose results devices reduce by *op*.

    What it returns is Collective over the mesh if a reduced axis is sharded.
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
    """Return a function that merges shares field by field, each by its universal function.

    >>> rows = np.array([(1, 5), (2, 3)], [("most", int), ("least", int)]).reshape(2, 1)
    >>> merge_by_field(most=np.maximum, least=np.minimum)(rows)["least"].tolist()
    [3]
    """

    def merge(rows: Array) -> Array:
        total: Array = rows[0].copy()
        for row in rows[1:]:
            for field, ufunc in ufuncs.items():
                ufunc(total[field], row[field], out=total[field])
        return total

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

    ``ShapeError`` where there are no elements, NumPy's ``TypeError`` if the dtype has no difference.
    """
    tensor = as_tensor("numpy.ptp", a)
    axes = reduced_axes(axis, tensor.ndim)
    refuse_empty("ptp", tensor, axis)
    over = axis_argument(axes, tensor.ndim)
    native = tensor.dtype.newbyteorder("=")
    how = Reduction(
        "ptp",
        axes,
        lambda block: np.ptp(block, axis=over),
        lambda block: structured_array(most=np.max(block, axis=over), least=np.min(block, axis=over)),
        merge_by_field(most=np.maximum, least=np.minimum),
        result_dtype(np.ptp, [tensor.dtype], tensor.ndim),
        np.dtype([("most", native), ("least", native)], align=True),
        lambda extremes: np.asarray(extremes["most"] - extremes["least"]),
    )
    return reduced(how, tensor, keepdims)


# -- variances --------------------------------------------------------------------------------------------------------


def _variance_function(function: Callable[..., object]) -> Callable[..., DTensor]:
    """Return *function*, of var, std, nanvar and nanstd, for tensors.

    What it returns is Collective over the mesh if a reduced axis is sharded. Several devices merge count, mean and sum
    of squared deviations of their blocks in one small exchange. As in NumPy the variance of complex numbers is real,
    and that of integers float64. float16 is added up in float32. Of *ddof* and *correction*, two names for what is
    subtracted from the number of elements, one may be given: else ``ValueError``. Without NaN there is a warning, and
    NaN, where no more than *ddof* elements are left.

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
        asked = as_dtype(dtype)
        if asked.kind not in "fc" or (asked.kind == "f" and tensor.dtype.kind == "c"):
            raise TypeError(f"numpy.{name}: dtype {asked} cannot hold the mean of {tensor.dtype}")
    return sum_dtype_of(tensor.dtype, dtype)


def sum_dtype_of(source: DType, dtype: DTypeLike | None = None) -> DType:
    """Return the dtype in which the mean of elements of dtype *source* is computed, if it is asked for in *dtype*."""
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
    """Return what *function*, of var, std, nanvar and nanstd, gives. Collective as `reduced`."""
    name = function.__name__
    tensor = as_tensor(f"numpy.{name}", operand)
    axes = reduced_axes(axis, tensor.ndim)
    out_dtype, sum_dtype = result_dtype(function, [tensor.dtype], tensor.ndim, dtype), _mean_dtype(name, tensor, dtype)
    over, skips = axis_argument(axes, tensor.ndim), name.startswith("nan") and tensor.dtype.kind in "fc"

    def finish(merged: Array) -> Array:
        if np.any(merged["count"] <= ddof):
            warn("Degrees of freedom <= 0 for slice", RuntimeWarning)
        return variance_from_moments(merged, ddof, skips, root=name.endswith("std")).astype(out_dtype)

    compute_share, share_dtype = moments(axes, sum_dtype, skips)
    how = Reduction(
        name,
        axes,
        partial(naming_callers(function) if skips else function, axis=over, dtype=dtype, ddof=ddof),
        compute_share,
        merged_moments,
        out_dtype,
        share_dtype,
        finish,
        (f"ddof {ddof!r}", f"in {sum_dtype}"),
    )
    return reduced(how, tensor, keepdims)


def variance_from_moments(merged: Array, ddof: float, skips: bool, *, root: bool) -> Array:
    """Return a variance, or its *root*, from moments; NaN of no elements if it *skips* NaN."""
    degrees = merged["count"] - ddof
    with np.errstate(all="ignore"):
        result = np.asarray(merged["squares"] / np.maximum(degrees, 0))
        if skips:
            result = np.where(degrees <= 0, np.nan, result)
        return np.asarray(tensor_np.sqrt(result) if root else result)


def moments(axes: tuple[int, ...], sum_dtype: DType, skips: bool) -> tuple[Callable[[Array], Array], DType]:
    """Return what makes count, mean and sum of squared deviations along *axes*, and the dtype of these.

    Parameters
    ----------
    axes: reduced axes
    sum_dtype: dtype of the sums
    skips: whether NaN are left out
    """
    compute_share = partial(_nan_moments if skips else _moments, axes=axes, sum_dtype=sum_dtype)
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
    mean = np.asarray(np.sum(block, axis=axes, dtype=sum_dtype, keepdims=True) / sum_dtype.type(count))
    squares = np.sum(_squares(np.asarray(np.subtract(block, mean, dtype=sum_dtype))), axis=axes)
    mean = mean.reshape(np.shape(squares))
    return structured_array(count=np.full(mean.shape, count), mean=mean, squares=squares)


def _is_long(block: Array, axes: tuple[int, ...]) -> bool:
    """Return whether *block*, of which all axes are reduced, is too long for the cache."""
    return len(axes) == block.ndim and block.nbytes > 2 * CACHED_BYTES and block.flags.c_contiguous


def _moments_by_intervals(moments: Callable[..., Array], flat: Array, sum_dtype: DType) -> Array:
    """Return the *moments* of a long array, which is read only once.

    It is cut into intervals that stay in the cache between the passes over them.
    """
    length = CACHED_BYTES // flat.itemsize
    parts = np.array([moments(flat[start : start + length], (0,), sum_dtype) for start in range(0, len(flat), length)])
    counts, count = parts["count"].astype(_real_dtype(sum_dtype)), np.sum(parts["count"])
    mean = np.sum(parts["mean"] * (counts / tensor_np.maximum(count, 1)))
    # An interval of nothing but NaN has no mean: what is in the record then must not count.
    between = np.sum(_squares(np.where(counts > 0, parts["mean"] - mean, 0)) * counts)
    return structured_array(count=count, mean=mean, squares=np.sum(parts["squares"]) + between)


def _nan_moments(block: Array, axes: tuple[int, ...], sum_dtype: DType) -> Array:
    """Return count, mean and sum of squared deviations along *axes* of the elements that are not NaN."""
    if _is_long(block, axes):
        return _moments_by_intervals(_nan_moments, block.reshape(-1), sum_dtype)
    missing = np.isnan(block)
    count = np.sum(~missing, axis=axes, keepdims=True)
    total = np.sum(np.where(missing, 0, block), axis=axes, dtype=sum_dtype, keepdims=True)
    mean = np.asarray(total / tensor_np.maximum(count, 1).astype(_real_dtype(sum_dtype)))
    deviations = np.asarray(np.subtract(block, mean, dtype=sum_dtype))
    np.copyto(deviations, 0, where=missing)
    squares = np.sum(_squares(deviations), axis=axes)
    return structured_array(
        count=count.reshape(np.shape(squares)), mean=mean.reshape(np.shape(squares)), squares=squares
    )


def merged_moments(rows: Array) -> Array:
    """Return the moments of all elements from those of several blocks, which are rows."""
    total: Array = rows[0].copy()
    for row in rows[1:]:
        both = total["count"] + row["count"]
        # Counts are multiplied first: where one is zero, the other block alone decides.
        weight = row["count"].astype(row["squares"].dtype) / np.maximum(both, 1)
        delta = row["mean"] - total["mean"]
        total["squares"] += row["squares"] + (np.conj(delta) * total["count"] * (delta * weight)).real
        total["mean"] += delta * weight
        total["count"] = both
    return total


# -- without NaN ------------------------------------------------------------------------------------------------------

ADDED = merge_by_field(count=np.add, total=np.add)
"""Merges what `totals` makes."""


def totals(axes: tuple[int, ...], sum_dtype: DType, *, skips: bool) -> tuple[Callable[[Array], Array], DType]:
    """Return what makes count and sum along *axes*, and the dtype of these. Arguments are those of `moments`."""
    return partial(_totals, axes=axes, sum_dtype=sum_dtype, skips=skips), np.dtype(
        [("count", np.int64), ("total", sum_dtype)], align=True
    )


def _totals(block: Array, axes: tuple[int, ...], sum_dtype: DType, skips: bool) -> Array:
    over = axis_argument(axes, block.ndim)
    if not skips:
        total = np.sum(block, axis=over, dtype=sum_dtype)
        return structured_array(
            count=np.full(np.shape(total), product(block.shape[axis] for axis in axes)), total=total
        )
    missing = np.isnan(block)
    total = np.sum(np.where(missing, 0, block), axis=over, dtype=sum_dtype)
    if over is None:
        return structured_array(count=block.size - np.count_nonzero(missing), total=total)
    return structured_array(count=np.sum(~missing, axis=over), total=total)


def nanmean(a: DTensor, axis: Axis = None, dtype: DTypeLike | None = None, *, keepdims: bool = False) -> DTensor:
    """Return the mean over *axis* without NaN. Collective over the mesh if a reduced axis is sharded.

    As in NumPy there is a warning, and NaN, where nothing but NaN is. float16 is added up in float32.
    """
    tensor = as_tensor("numpy.nanmean", a)
    if tensor.dtype.kind not in "fc":
        return mean(tensor, axis, dtype, keepdims)  # as NumPy, which takes NaT for a number here
    axes = reduced_axes(axis, tensor.ndim)
    out_dtype = result_dtype(np.nanmean, [tensor.dtype], tensor.ndim, dtype)
    sum_dtype = _mean_dtype("nanmean", tensor, dtype)
    over, (compute_share, share_dtype) = axis_argument(axes, tensor.ndim), totals(axes, sum_dtype, skips=True)

    def finish(sums: Array) -> Array:
        if np.any(sums["count"] == 0):
            warn("Mean of empty slice", RuntimeWarning)
        with np.errstate(all="ignore"):
            return np.asarray(sums["total"] / sums["count"]).astype(out_dtype)

    how = Reduction(
        "nanmean",
        axes,
        lambda block: naming_callers(np.nanmean)(block, axis=over, dtype=dtype),
        compute_share,
        ADDED,
        out_dtype,
        share_dtype,
        finish,
        (f"in {sum_dtype}",),
    )
    return reduced(how, tensor, keepdims)


def _extreme_function(function: Callable[..., object], ufunc: np.ufunc) -> Callable[..., DTensor]:
    """Return *function*, nanmax or nanmin, for tensors, from the *ufunc* of two elements.

    What it returns is Collective over the mesh if a reduced axis is sharded. As in NumPy there is a warning, and NaN,
    where nothing but NaN is. ``ShapeError`` where there are no elements.
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
        over = axis_argument(axes, tensor.ndim)
        how = Reduction(
            name,
            axes,
            lambda block: naming_callers(function)(block, axis=over),
            lambda block: ufunc.reduce(block, axis=over),
            lambda rows: np.asarray(ufunc.reduce(rows, axis=0)),
            result_dtype(function, [tensor.dtype], tensor.ndim),
            finish=finish,
        )
        return reduced(how, tensor, keepdims)

    return extreme


# -- of chosen elements -----------------------------------------------------------------------------------------------


def _of_chosen(function: Callable[..., object], ours: Callable[..., DTensor]) -> Callable[..., Call | DTensor]:
    """Return *ours*, a mean or a deviation, with NumPy's ``where=`` and ``mean=``. Collective as `reduced`.

    With them the sums of the elements that count, and those of their squared deviations, are reduced one by one.
    """
    name, numbers = function.__name__, function.__name__.startswith("nan")

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
            degrees = {} if name.endswith("mean") else {"ddof": ddof, "correction": correction}
            return decision(ours)(a, axis, dtype, keepdims=bool(keepdims), **degrees)
        tensor = as_tensor(f"numpy.{name}", a)
        out_dtype = result_dtype(function, [tensor.dtype], tensor.ndim, dtype)
        sum_dtype = _mean_dtype(name, tensor, dtype)
        skips = numbers and tensor.dtype.kind in "fc"
        counted = tensor_np.logical_and(~np.isnan(tensor) if skips else np.ones_like(tensor, dtype=bool), where)
        count = tensor_np.sum(counted, axis=axis, keepdims=True)
        with np.errstate(all="ignore"):
            if mean is None or name.endswith("mean"):
                mean = _quotient(
                    reduce(np.add, tensor, axis, sum_dtype.type, keepdims=True, where=counted), count, sum_dtype
                )
            result, divisor = mean, count
            if not name.endswith("mean"):
                divisor = tensor_np.maximum(count - _lost_degrees(name, ddof, correction), 0)
                deviations = tensor_np.subtract(tensor, mean, dtype=sum_dtype)
                squares = (deviations * tensor_np.conjugate(deviations)).real
                result = _quotient(reduce(np.add, squares, axis, keepdims=True, where=counted), divisor, sum_dtype)
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
implements(np.nansum, partly=True)(with_where(_typed_reduction(np.nansum, "sum"), np.add, numbers=True))
implements(np.nanprod, partly=True)(with_where(_typed_reduction(np.nanprod, "prod"), np.multiply, numbers=True))
implements(np.mean, partly=True)(_of_chosen(np.mean, mean))
implements(np.nanmean, partly=True)(_of_chosen(np.nanmean, nanmean))
for _function in (np.var, np.std, np.nanvar, np.nanstd):
    implements(_function, partly=True)(_of_chosen(_function, _variance_function(_function)))
implements(np.nanmax, partly=True)(with_where(_extreme_function(np.nanmax, np.fmax), np.fmax))
implements(np.nanmin, partly=True)(with_where(_extreme_function(np.nanmin, np.fmin), np.fmin))
