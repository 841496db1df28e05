"""xarray's reductions of groups and of rolling windows, for tensors in one pass over the blocks.

xarray reduces groups in a loop, with an index and a reduction for each; ranks would have to agree on each. Here a rank
goes over its block once, and calls the same function of xarray for the elements of each group: so the values are equal
to xarray's. `meshcomm.numpy.statistics.groups` explains the case where the axis of the groups is cut.

Rolling windows are reduced by Bottleneck if xarray would use it: on the block, with the elements of neighbours that
its windows reach. Windows of durations and dates are reduced as numbers, as by xarray and Bottleneck.
"""

from collections.abc import Callable, Hashable, Mapping
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from xarray import DataArray, Dataset, Variable
from xarray.core import duck_array_ops
from xarray.core.options import OPTIONS, _get_keep_attrs
from xarray.core.resample import DataArrayResample, DatasetResample, Resample
from xarray.core.utils import is_scalar, module_available  # type: ignore[attr-defined]

from meshcomm.adapters.xarray_variables import is_of_ranks, module_of
from meshcomm.blocks.align import relaid
from meshcomm.blocks.make import mapped
from meshcomm.blocks.regions import read_box
from meshcomm.core._types import AnyFunction, Array, DType
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.boxes import Box
from meshcomm.numpy.statistics.groups import ElementGroups, Grouping, ShareReduction, grouped, shares_of

if TYPE_CHECKING:
    from xarray.core.types import Dims

_groupby = import_module("xarray.core.groupby")
_is_numeric = _groupby._is_numeric_aggregatable_dtype
Groups: TypeAlias = Any
"""A groupby object of xarray, of an array or a dataset; its private attributes have no types."""

Rolling: TypeAlias = Any
"""A rolling-window object of xarray; see `Groups`."""

Method: TypeAlias = AnyFunction
"""A method of `Groups` or `Rolling`; it returns an array or a dataset."""

X = TypeVar("X", DataArray, Dataset)

_Rolling: Callable[..., Rolling] = module_of("xarray.computation.rolling", "xarray.core.rolling").DataArrayRolling

# -- groups -----------------------------------------------------------------------------------------------------------

_REDUCTION_NAMES = {
    getattr(duck_array_ops, name): name.removeprefix("array_")
    for name in (
        *("array_all", "array_any", "count", "first", "last", "max", "mean", "median", "min", "prod", "std", "sum"),
        "var",
    )
}
"""The functions of xarray that reduce groups, and their names."""

_OPTIONS = {"ddof", "min_count", "numeric_only", "skipna"}


class _GroupReduction(NamedTuple):
    """A reduction of groups.

    Parameters
    ----------
    by: groupby object of xarray
    function: function of xarray that reduces an array
    dims: reduced dimensions, including that of the groups
    keep_attrs: whether results keep the attributes
    options: options of the function, by name
    """

    by: Groups
    function: Callable[..., Array]
    dims: list[Hashable]
    keep_attrs: bool
    options: Mapping[str, float | None]

    def of_array(self) -> DataArray:
        """Return the results of an array. Collective over the mesh if a reduced axis is cut."""
        array = self.by._obj
        result = array._replace_maybe_drop_dims(self._of_variable(array.variable))
        return self._completed(self.by._restore_dim_order(result))

    def of_dataset(self, numeric_only: bool) -> Dataset:
        """Return the results of a dataset, or of its numeric variables. Collective if a reduced axis is cut."""
        dataset, variables = self.by._obj, dict[Hashable, Variable]()
        for name, array in dataset.data_vars.items():
            variable, dims = array.variable, [d for d in array.dims if d in self.dims]
            if not isinstance(array.dtype, np.dtype) or (dims and numeric_only and not _is_numeric(variable)):
                continue
            if self.by._group_dim not in dims:  # it is the same in each group
                reduced = variable.reduce(self.function, dims if array.ndim else None, **self.options)
                variables[name] = reduced.set_dims({self._result_dim: len(self._groups), **reduced.sizes}).copy()
            else:
                variables[name] = self._of_variable(variable).transpose(self._result_dim, ...)
        if not self.keep_attrs:
            variables = {name: Variable(variable.dims, variable.data) for name, variable in variables.items()}
        other_variables = dataset.drop_dims([d for d in self.dims if d in dataset.dims])
        result = Dataset(variables, other_variables.coords, dataset.attrs if self.keep_attrs else None)
        return self._completed(result)

    @property
    def _groups(self) -> list[slice | list[int]]:
        """The indices of the elements of each nonempty group; for empty groups, xarray completes results."""
        return [rows for rows in self.by.encoded.group_indices if rows]

    @property
    def _result_dim(self) -> Hashable:
        """The dimension of the groups in results."""
        return self.by.encoded.unique_coord.dims[0]

    def _of_variable(self, variable: Variable) -> Variable:
        """Return the results of a variable that has the dimension of the elements."""
        data = variable.data
        by_dim = self.by._group_dim
        group_numbers = np.full(variable.sizes[by_dim], -1)
        for number, rows in enumerate(self._groups):
            group_numbers[rows] = number
        axes = variable.get_axis_num([d for d in variable.dims if d in self.dims])
        call = partial(self.function, axis=axes if len(axes) > 1 else axes[0], **self.options)
        groups = ElementGroups(variable.get_axis_num(by_dim), group_numbers, len(self._groups))
        grouping = Grouping(f"groupby.{_REDUCTION_NAMES[self.function]}", (*self.options.items(),), call, axes, groups)
        results: DTensor | Array
        if isinstance(data, DTensor) and not (data.dtype.kind in "mM" and grouping.name.endswith("mean")):
            results = grouped(grouping._replace(shares=self._shares(data.dtype, axes)), data)
        else:  # xarray counts from the first date of a group, which may be in another block
            results = np.stack(
                [call(members) for members in grouping.members(data, np.arange(len(group_numbers)))], grouping.axis
            )
        dims = [self._result_dim if d == by_dim else d for d in variable.dims if d == by_dim or d not in self.dims]
        return Variable(dims, results, variable.attrs if self.keep_attrs else None)

    def _shares(self, dtype: DType, axes: tuple[int, ...]) -> ShareReduction | None:
        """Return the reduction of elements of *dtype* by shares of the devices, or None."""
        skipna = self.options.get("skipna")
        skips = dtype.kind in "fc" if skipna is None else bool(skipna)
        if self.options.get("min_count"):
            return None
        return shares_of(_REDUCTION_NAMES[self.function], dtype, axes, skips, self.options.get("ddof") or 0)

    def _completed(self, result: X) -> X:
        """Return results completed by the coordinates of the groups and by empty groups, as in xarray."""
        by = self.by
        result = by._maybe_reindex(by._maybe_unstack(result.assign_coords(by.encoded.coords)))
        if isinstance(by, Resample):
            result = result.drop_vars([by._dim], errors="ignore")
            result = result.rename({self._result_dim: by._dim}) if self._result_dim in result.dims else result
        return result


def _in_one_pass(original: Method) -> Method:
    """Return a method of xarray's groups that reduces them, for tensors in one pass."""

    @wraps(original)
    def reduce(
        self: Groups,
        func: Callable[..., Array],
        dim: "Dims" = None,
        *,
        axis: object = None,
        keep_attrs: bool | None = None,
        shortcut: bool = True,
        **kwargs: float | None,
    ) -> object:
        of_dataset = isinstance(self._obj, Dataset)
        variables = self._obj.data_vars.values() if of_dataset else [self._obj]
        of_ranks = any(is_of_ranks(array.variable) for array in variables)
        is_supported = of_ranks and func in _REDUCTION_NAMES and kwargs.keys() <= _OPTIONS
        dims = [self._group_dim] if dim is None else self._obj.dims if dim is ... else [dim] if is_scalar(dim) else dim
        if not is_supported or axis is not None or not shortcut or self._group_dim not in dims:
            return original(self, func, dim, axis=axis, keep_attrs=keep_attrs, shortcut=shortcut, **kwargs)
        _groupby.check_reduce_dims(dims, self._obj.dims)
        keeps_attrs = _get_keep_attrs(default=True) if keep_attrs is None else keep_attrs
        options = {name: value for name, value in kwargs.items() if name != "numeric_only"}
        reduction = _GroupReduction(self, func, list(dims), keeps_attrs, options)
        return reduction.of_dataset(bool(kwargs.get("numeric_only"))) if of_dataset else reduction.of_array()

    return reduce


_GROUP_METHOD = "reduce"
for _groups in (_groupby.DataArrayGroupByBase, _groupby.DatasetGroupByBase):
    setattr(_groups, _GROUP_METHOD, _in_one_pass(getattr(_groups, _GROUP_METHOD)))


def _uses_flox() -> bool:
    """Return whether xarray leaves the cumulative sums of groups of plain arrays to flox."""
    return hasattr(_groupby.GroupBy, "_flox_scan") and OPTIONS["use_flox"] and module_available("flox", "0.10.5")


def _with_flox_order(original: Method) -> Method:
    """Return the cumulative sum of groups, with its dimension last if flox would have it last for plain arrays."""

    @wraps(original)
    def cumsum(self: Groups, dim: object = None, **kwargs: object) -> object:
        result = original(self, dim, **kwargs)
        variables = result.data_vars.values() if isinstance(result, Dataset) else [result]
        of_ranks = any(is_of_ranks(array.variable) for array in variables)
        return result.transpose(..., *self._parse_dim(dim)) if of_ranks and _uses_flox() else result

    return cumsum


_CUMSUM = "cumsum"
for _groups in (_groupby.DataArrayGroupBy, _groupby.DatasetGroupBy, DataArrayResample, DatasetResample):
    setattr(_groups, _CUMSUM, _with_flox_order(getattr(_groups, _CUMSUM)))

# -- windows ----------------------------------------------------------------------------------------------------------


def _reducing_blocks(original: Method) -> Method:
    """Return a method of rolling windows that reduces them, for tensors by Bottleneck's function on blocks."""
    call_signature = signature(original)

    @wraps(original)
    def method(self: Rolling, *args: object, **kwargs: object) -> object:
        data = self.obj.variable._data
        if not isinstance(data, DTensor):
            return original(self, *args, **kwargs)
        if data.dtype.kind in "mM":
            self = _same_windows(self, self.obj.copy(data=np.where(np.isnat(data), np.nan, data.astype("i8"))))
        arguments = call_signature.bind(self, *args, **kwargs).arguments
        function, other_options = (
            arguments["bottleneck_move_func"],
            arguments["kwargs"].keys() - {"sliding_window_view_kwargs"},
        )
        if function is None or not OPTIONS["use_bottleneck"] or self.ndim > 1 or other_options:
            return original(self, *args, **kwargs)
        result = _reduced_windows(self, function)
        return self.obj.__class__(
            result, self.obj.coords, attrs=self.obj.attrs if arguments["keep_attrs"] else {}, name=self.obj.name
        )

    return method


def _same_windows(rolling: Rolling, array: DataArray) -> Rolling:
    """Return an object with the windows of *rolling* on another *array*."""
    windows = dict(zip(rolling.dim, rolling.window, strict=True))
    return _Rolling(array, windows, rolling.min_periods, dict(zip(rolling.dim, rolling.center, strict=True)))


def _reduced_windows(rolling: Rolling, function: Callable[..., Array]) -> DTensor:
    """Return the windows of a tensor reduced by Bottleneck's *function*. Collective if their axis is cut."""
    data, axis, dims = rolling.obj.variable._data, rolling.obj.get_axis_num(rolling.dim[0]), rolling.obj.dims

    def move(block: Array) -> Array:
        return _same_windows(rolling, DataArray(block, dims=dims))._bottleneck_reduce(function, False).variable._data

    n, reach = data.shape[axis], rolling.window[0] - 1
    # For windows that are too long, this raises the error on all ranks.
    dtype = move(np.ones([n if a == axis else 1 for a in range(data.ndim)], data.dtype)).dtype
    if data.layout.num_shards(axis) == 1:
        return mapped(lambda block: move(block) if block.size else block.astype(dtype), data, dtype=dtype)
    tensor = relaid(data, data.layout.as_consecutive(range(data.ndim)), "rolling")

    def box() -> Box:
        bounds = list(tensor.layout.block_box(tensor.shape))
        start, stop = bounds[axis]
        if start < stop:
            bounds[axis] = (max(start - reach, 0), min(stop + reach, n))
        return tuple(bounds)

    def with_neighbours(block: Array) -> Array:
        block_start = tensor.layout.block_box(tensor.shape)[axis][0]
        extended_block = read_box(tensor, box, f"rolling({function.__name__}, {rolling.window}) along axis {axis}")
        if not block.size:
            return block.astype(dtype)
        offset = block_start - max(block_start - reach, 0)
        return move(extended_block)[(*(slice(None),) * axis, slice(offset, offset + block.shape[axis]))]

    return mapped(with_neighbours, tensor, dtype=dtype)


_WINDOW_METHOD = "_array_reduce"
setattr(_Rolling, _WINDOW_METHOD, _reducing_blocks(getattr(_Rolling, _WINDOW_METHOD)))
