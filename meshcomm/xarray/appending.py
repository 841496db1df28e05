"""Datasets that are appended to a file: they get the encoding of the file, and must not lose data.

The rule is that of `meshcomm.Series`: no lossy cast, no different coordinates, no calendar but the file's. Values that
xarray has encoded are decoded again, as a reader of the file would do, and compared.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import xarray
from xarray.coding import strings
from xarray.coding.times import decode_cf_datetime, decode_cf_timedelta

from meshcomm.blocks.small import agree_on_result, broadcast_from_device
from meshcomm.core._arguments import quote
from meshcomm.core._json import read
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.relayout import relayout
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import DTypeError
from meshcomm.storage.decoding import CODING, Coding, as_netcdf, coding_of
from meshcomm.storage.formats.known import contents, texts
from meshcomm.storage.meshes import common_mesh
from meshcomm.storage.opened import Store
from meshcomm.storage.save import save as save_tree
from meshcomm.storage.series import StepSeries
from meshcomm.storage.values import node_of_value, value_of_node
from meshcomm.xarray.encoding import EncodedDataset, Encoding, Encodings, StorageOptions, encode_dataset
from meshcomm.xarray.objects import calendar_of

_MIDNIGHT = re.compile(r"[T ]0?0:00(:00(\.0*)?)?$")
"""The end of units such as "days since 2000-01-01 00:00:00", which xarray sometimes leaves out."""

_TEXT_KINDS = "OSTU"
_CALENDAR_ALIASES = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Calendars with two names."""
_KINDS_BY_WIDTH = "biufc"
"""Kinds of numbers: none can be cast to an earlier one, except between both kinds of integers."""


def append(path: Path, dataset: xarray.Dataset, dim: str, encodings: Encodings, options: StorageOptions) -> None:
    """Write the variables along *dim* as snapshots of a series. Collective.

    Parameters
    ----------
    path: path of the file, which is made if it does not exist
    dataset: dataset to append
    dim: first dimension of the dataset, along which the file grows
    encodings: encodings by the name of a variable
    options: options of the file
    """
    growing_names = _growing_names(dataset, dim)
    mesh = common_mesh(meshes_in(dataset))
    file_variables = file_variables_of(path, (dim,), mesh)
    _refuse_missing(path, dataset, dim, file_variables)
    common_variables = {
        name: variable
        for name, variable in file_variables.items()
        if name in dataset.variables and (variable.grows or name in dataset.coords)
    }
    compared = [name for name in growing_names if name in common_variables]
    file_data = encoded_as(path, dataset, common_variables, encodings, compared=compared, mesh=mesh)
    fixed_names = [str(name) for name in dataset.coords if name in file_variables and name not in growing_names]
    _check_coordinates(path, file_data, fixed_names, mesh)
    if file_variables:
        file_data = file_data.only(growing_names)
    _append_snapshots(path, file_data, dim, mesh, options)


def encoded_as(
    path: Path,
    dataset: xarray.Dataset,
    file_variables: "Mapping[str, FileVariable]",
    encodings: Encodings,
    *,
    compared: Iterable[str],
    mesh: Mesh,
) -> EncodedDataset:
    """Return a dataset in the encoding of a file. Errors on all ranks for values that would change. Collective.

    Parameters
    ----------
    path: path of the file
    dataset: dataset to encode
    file_variables: variables of both the file and the dataset
    encodings: encodings by name, which are replaced by those of the file
    compared: names of variables to compare with the values that a reader of the file would get
    mesh: mesh of the call
    """
    steps = {}  # the distance of two numbers in the file, for encodings that round
    for name, variable in file_variables.items():
        _check_kind(path, dataset[name], variable, encodings.get(name, {}))
        steps[name] = variable.step(encodings.get(name, dataset[name].encoding))
        encodings[name] = variable.encoding(dataset[name].variable)
    file_data = _with_lengths(path, encode_dataset(dataset, encodings, path), file_variables)
    _check_units(path, file_data, file_variables)
    _check_lossless(path, dataset, file_data, {name: (file_variables[name], steps[name]) for name in compared}, mesh)
    return file_data


def meshes_in(dataset: xarray.Dataset) -> Iterator[Mesh]:
    """Yield the meshes of the tensors of a dataset."""
    return (variable.data.mesh for variable in dataset.variables.values() if isinstance(variable.data, DTensor))


def check_packed(
    path: Path, dataset: xarray.Dataset, file_data: EncodedDataset, encodings: Mapping[str, Encoding], mesh: Mesh
) -> None:
    """Raise ``DTypeError`` if numbers do not fit into the integers of their encoding. Collective."""
    packed_variables = {}
    for name, array in file_data.arrays.items():
        variable = dataset.variables[name]
        if variable.dtype.kind == "f" and array.dtype.kind in "iu":
            target = FileVariable(file_data.attributes[name], array.dtype.str, array.shape, False)
            packed_variables[name] = target, target.step(encodings.get(name, variable.encoding))
    if packed_variables:
        _check_lossless(path, dataset, file_data, packed_variables, mesh)


def _growing_names(dataset: xarray.Dataset, dim: str) -> list[str]:
    """Return the names of variables with the dimension *dim*. ``ValueError`` unless it is the first one of each."""
    names = [str(name) for name, variable in dataset.variables.items() if dim in variable.dims]
    if not names:
        raise ValueError(f"append_dim names {quote(dim)}; the dimensions are {', '.join(map(str, dataset.sizes))}")
    misplaced_name = next((name for name in names if dataset[name].dims[0] != dim), None)
    if misplaced_name is not None:
        raise ValueError(f"{quote(dim)} is not the first dimension of {quote(misplaced_name)}: transpose it")
    return names


class FileVariable(NamedTuple):
    """A variable of a file: attributes, text of its dtype, shape, whether it has a written dimension, dimensions."""

    attributes: dict[str, object]
    kind: str
    shape: Shape
    grows: bool
    dims: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        """The dtype of its elements in the file."""
        return np.dtype(self.kind)

    @property
    def coding(self) -> Coding | None:
        """The coding of its numbers, if they are encoded."""
        return coding_of(self.attributes, self.dtype)

    def encoding(self, variable: xarray.Variable) -> dict[str, object]:
        """Return the encoding for more elements of it, those of *variable*."""
        keys = (*CODING, *(("units", "calendar") if _is_time(variable) else ()))
        result = {key: value for key, value in self.attributes.items() if key in keys}
        return result if _is_text(variable) else {"dtype": self.dtype} | result

    def step(self, encoding: Encoding) -> float | None:
        """Return the distance of two numbers in the file, if the encoding rounds numbers to these.

        None if numbers must be stored exactly.
        """
        if self.coding is not None and (self.coding.scale is not None or self.coding.offset is not None):
            return abs(float(1 if self.coding.scale is None else self.coding.scale))
        if self.dtype.kind not in "iufc" or encoding.get("dtype") is None or np.dtype(encoding["dtype"]) != self.dtype:
            return None
        return 1.0 if self.dtype.kind in "iu" else 0.0


def _is_time(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in "mM" or calendar_of(variable) is not None


def _is_text(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in _TEXT_KINDS and not _is_time(variable)


def file_variables_of(path: Path, written_dims: Collection[str], mesh: Mesh) -> dict[str, FileVariable]:
    """Return the variables of a file by name; nothing if it does not exist. Collective.

    *written_dims* are the dimensions along which the dataset is written.
    """

    def read_variables() -> object:
        if not path.exists():
            return node_of_value({})
        file_contents = contents(path)
        kinds = {name: (stored.dtype.str, stored.shape) for name, stored in file_contents.arrays.items()}
        kinds |= {name: ("O", shape) for name, shape in file_contents.texts.items()}
        variables = {}
        for name, (kind, shape) in kinds.items():
            dims = file_contents.dims.get(name, ())
            grows = any(dim in written_dims for dim in dims)
            variables[name] = [as_netcdf(file_contents.attributes.get(name, {})), kind, shape, grows, dims]
        return node_of_value(variables)

    node = broadcast_from_device("save", mesh, f"variables of {path}", read_variables) or read_variables()
    return {name: FileVariable(*fields) for name, fields in read(dict, value_of_node(node)).items()}


def _refuse_missing(path: Path, dataset: xarray.Dataset, dim: str, file_variables: Mapping[str, FileVariable]) -> None:
    """Raise ``ValueError`` unless a dataset has all variables that grow in the file."""
    for name, variable in file_variables.items():
        if variable.grows and name not in dataset.variables:
            raise ValueError(f"{path} has {quote(name)} along {quote(dim)}: a dataset that is appended needs it, too")


def _check_kind(path: Path, array: xarray.DataArray, target: FileVariable, encoding: Encoding) -> None:
    """Raise errors unless the file can hold the array, by its dtype, calendar, and the units of *encoding*."""
    name, variable = str(array.name), array.variable
    calendar = calendar_of(variable)
    file_calendar = str(target.attributes.get("calendar", "standard")).lower()
    if calendar is not None:
        is_supported = (
            file_calendar in ("standard", "gregorian", "proleptic_gregorian") if variable.dtype.kind == "M" else False
        )
        if not (
            is_supported
            or _CALENDAR_ALIASES.get(calendar, calendar) == _CALENDAR_ALIASES.get(file_calendar, file_calendar)
        ):
            raise ValueError(
                f"{quote(name)} has the calendar {file_calendar} in {path}, and {calendar} here: convert it"
            )
    for key in ("units", "calendar") if _is_time(variable) else ():
        if key in encoding and _normalized(encoding[key]) != _normalized(target.attributes.get(key)):
            file_value = target.attributes.get(key)
            raise ValueError(
                f"{quote(name)} has the {key} {file_value} in {path}; its encoding asks for {quote(encoding[key])}"
            )
    kind, file_kind = variable.dtype.kind, target.dtype.kind if target.coding is None else target.coding.dtype.kind
    is_wider = kind in _KINDS_BY_WIDTH and file_kind in _KINDS_BY_WIDTH and _kind_order(kind) > _kind_order(file_kind)
    if (is_wider and target.step(encoding or variable.encoding) != 1.0) or _is_text(variable) != (
        file_kind in _TEXT_KINDS
    ):
        raise DTypeError(f"{quote(name)} is {target.kind} in {path}, and {variable.dtype} here: convert it")


def _kind_order(kind: str) -> int:
    return _KINDS_BY_WIDTH.replace("u", "i").index(kind.replace("u", "i"))


def _normalized(units: object) -> str:
    """Return units or a calendar as text, the same for equal meanings."""
    return _MIDNIGHT.sub("", str(units))


def _with_lengths(path: Path, file_data: EncodedDataset, file_variables: Mapping[str, FileVariable]) -> EncodedDataset:
    """Return encoded arrays with texts of the length of the file. ``ValueError`` for a longer one."""
    arrays = dict(file_data.arrays)
    for name, variable in file_variables.items():
        array, max_length = arrays[name], 0
        kind = variable.dtype.kind
        if kind == array.dtype.kind and (kind == "U" or (kind == "S" and path.suffix.lower() == ".zarr")):
            arrays[name] = array.astype(variable.dtype)
            fits = bool((arrays[name] == array).all())
            max_length = variable.dtype.itemsize // np.dtype(f"{kind}1").itemsize
        elif variable.kind == "|S1" and array.dtype.kind == "S" and array.ndim == len(variable.shape) > 0:
            max_length = variable.shape[-1]
            fits = not (array[..., max_length:] != b"").any()
            arrays[name] = np.zeros((*array.shape[:-1], max_length), "S1")
            arrays[name][..., : array.shape[-1]] = array[..., :max_length]
        else:
            continue
        if not fits:
            raise ValueError(
                f"texts of {quote(name)} have at most {max_length} characters in {path}; here one is longer"
            )
    return file_data._replace(arrays=arrays)


def _check_units(path: Path, file_data: EncodedDataset, file_variables: Mapping[str, FileVariable]) -> None:
    """Raise ``ValueError`` for units that are not those of the file."""
    for name, variable in file_variables.items():
        file_units, units = (attrs.get("units") for attrs in (variable.attributes, file_data.attributes[name]))
        if (
            variable.grows
            and file_units is not None
            and units is not None
            and _normalized(file_units) != _normalized(units)
        ):
            raise ValueError(f"{quote(name)} does not fit the units of the file, {file_units}: it needs {units}")


def _check_lossless(
    path: Path,
    dataset: xarray.Dataset,
    file_data: EncodedDataset,
    targets: Mapping[str, tuple[FileVariable, float | None]],
    mesh: Mesh,
) -> None:
    """Raise ``DTypeError`` if a reader of the file would get other values. Collective over *mesh*."""
    pairs = {}
    for name in targets:
        values, encoded = dataset.variables[name].data, file_data.arrays[name]
        if isinstance(encoded, DTensor) and not isinstance(values, DTensor):
            encoded = encoded.to_numpy()
        elif isinstance(values, DTensor):
            has_same_layout = isinstance(encoded, DTensor) and encoded.layout == values.layout
            encoded = (
                encoded._block
                if has_same_layout
                else relayout(as_replicated_tensor(encoded, mesh), values.layout)._block
            )
            values = values._block
        if not _is_text(dataset.variables[name]) and values is not None and encoded is not None:
            pairs[name] = values, encoded

    def check() -> None:
        for name, (values, encoded) in pairs.items():
            target, step = targets[name]
            # These need little memory.
            rows = zip(values, encoded, strict=True) if values.ndim > 1 else [(values, encoded)]
            if not all(_is_lossless(value, number, target, step) for value, number in rows):
                raise DTypeError(f"{quote(name)} has elements that {path} would change: it holds {target.dtype}")

    if targets:
        agree_on_result("save", mesh, f"what is appended to {path}: {', '.join(targets)}", check)


def _is_lossless(values: Array, encoded: Array, variable: FileVariable, step: float | None) -> bool:
    """Return whether decoding *encoded* gives *values*, up to half a *step*."""
    units, kind = str(variable.attributes.get("units", "")), values.dtype.kind
    if kind in "MOm":
        if kind == "m":
            decoded = decode_cf_timedelta(encoded, units)
        else:
            calendar = cast("str | None", variable.attributes.get("calendar"))
            decoded = decode_cf_datetime(encoded, units, calendar, use_cftime=kind == "O")
        return bool(((values == decoded) | (False if kind == "O" else np.isnat(values) & np.isnat(decoded))).all())
    coding = variable.coding
    numbers = encoded if coding is None else coding.decoded(np.asarray(encoded))
    if variable.attributes.get("dtype") == "bool":
        numbers = numbers.astype(bool)
    fills = () if coding is None else coding.fills
    is_nan = np.isnan(numbers) & (np.isnan(values) | np.isin(values, fills)) if numbers.dtype.kind in "fc" else False
    if step is None:
        same_sign = values.dtype.kind == "c" or numbers.dtype.kind == "c" or ((numbers < 0) == (values < 0))
        with np.errstate(invalid="ignore"):
            return bool((is_nan | ((numbers.astype(values.dtype) == values) & same_sign)).all())
    dtypes = [array.dtype for array in (numbers, values, encoded) if array.dtype.kind in "fc"]
    eps = max((float(np.finfo(dtype).eps) for dtype in dtypes), default=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        is_close = np.abs(numbers - values) <= step * 0.501 + 8 * eps * np.abs(values)
    return bool((is_nan | is_close | (numbers == values)).all())


def _check_coordinates(path: Path, file_data: EncodedDataset, names: list[str], mesh: Mesh) -> None:
    """Raise ``ValueError`` if coordinates of other dimensions differ from those of the file. Collective."""
    arrays = {name: file_data.arrays[name] for name in names if not isinstance(file_data.arrays[name], DTensor)}
    if not arrays:
        return

    def compare() -> None:
        file_contents = contents(path)
        with Store(path) as store:
            for name, array in arrays.items():
                file_array = (
                    texts(path, name, file_contents.texts[name]) if name in file_contents.texts else store[name][...]
                )
                if not _are_equal(np.asarray(file_array), np.asarray(array)):
                    raise ValueError(f"the coordinates {quote(name)} are others than those in {path}")

    broadcast_from_device("save", mesh, f"coordinates {', '.join(arrays)} of {path}", compare)


def _are_equal(a: Array, b: Array) -> bool:
    """Return whether coordinates are equal; texts may be arrays of characters, or have different lengths."""
    if a.dtype.kind in _TEXT_KINDS or b.dtype.kind in _TEXT_KINDS:
        ndim = max(a.ndim, b.ndim)
        return bool(np.array_equal(_as_texts(a, ndim), _as_texts(b, ndim)))
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc" and b.dtype.kind in "fc"))


def _as_texts(array: Array, ndim: int) -> Array:
    if array.dtype.kind == "S":
        byte_strings = strings.char_to_bytes(array) if array.dtype == "S1" and array.ndim == ndim else array
        return np.char.decode(byte_strings, "utf-8", "surrogateescape")
    return array.astype("U")


def _append_snapshots(path: Path, file_data: EncodedDataset, dim: str, mesh: Mesh, options: StorageOptions) -> None:
    """Append the variables along *dim*; other variables are for a new file. Collective over *mesh*."""
    steps = {name: array for name, array in file_data.arrays.items() if file_data.dims[name][:1] == (dim,)}
    fixed_arrays = {name: array for name, array in file_data.arrays.items() if name not in steps}
    if not len(next(iter(steps.values()))):
        if fixed_arrays:
            save_tree(
                path,
                fixed_arrays,
                mode="a",
                max_scratch_bytes=options.limit,
                **options.of(file_data.only(list(fixed_arrays))),
            )
        return
    tensor_arrays = {name: array for name, array in steps.items() if array.ndim > 1 or isinstance(array, DTensor)}
    if not tensor_arrays:
        tensor_arrays = {name: array for name, array in steps.items() if name != dim}
    tensors = {name: as_replicated_tensor(array, mesh) for name, array in tensor_arrays.items()}
    numbers = {name: np.asarray(array) for name, array in steps.items() if name not in tensor_arrays}
    dims = {
        name: names[1:] if name in steps else names for name, names in file_data.dims.items() if name not in numbers
    }
    series = StepSeries(
        path,
        {name: tensor.layout.delete(0) for name, tensor in tensors.items()},
        shape={name: tensor.shape[1:] for name, tensor in tensors.items()},
        dtype={name: tensor.dtype for name, tensor in tensors.items()},
        axis=dim,
        max_scratch_bytes=options.limit,
        **options.of(EncodedDataset({**tensors, **fixed_arrays}, dims, file_data.attributes)),
    )
    series.extend({**tensors, **numbers}, fixed_arrays)


def as_replicated_tensor(array: Array | DTensor, mesh: Mesh) -> DTensor:
    """Return an array that is the same on all ranks as a tensor. Collective over *mesh*."""
    return array if isinstance(array, DTensor) else distribute(array, Layout.replicated(mesh, array.ndim))
