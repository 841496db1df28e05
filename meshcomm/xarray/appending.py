"""Datasets that go on with a file: what is appended is as the file has it, and nothing of it is lost.

The rule is that of `meshcomm.Series`: no cast that loses, no coordinate that differs, no calendar but the file's.
What xarray has encoded is decoded again, as the file will give it back, and compared.
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
from meshcomm.xarray.encoding import Encoded, Encoding, Encodings, StorageOptions, encode_dataset
from meshcomm.xarray.objects import calendar_of

_MIDNIGHT = re.compile(r"[T ]0?0:00(:00(\.0*)?)?$")
"""The end of units such as "days since 2000-01-01 00:00:00", which xarray leaves out, or not."""

_TEXTS = "OSTU"
_SAME = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Calendars with two names."""
_WIDER = "biufc"
"""Kinds of numbers: none goes into one that stands before it, but integers of both kinds."""


def append(path: Path, dataset: xarray.Dataset, dim: str, encodings: Encodings, options: StorageOptions) -> None:
    """Write what lies along *dim* as snapshots of a series. Collective.

    Parameters
    ----------
    path: path of the file, which is made if it is not there
    dataset: dataset to append
    dim: first dimension of the dataset, along which the file grows
    encodings: encodings by the name of a variable
    options: options of the file
    """
    growing = _growing(dataset, dim)
    mesh = common_mesh(meshes_in(dataset))
    there = variables_there(path, (dim,), mesh)
    _refuse_missing(path, dataset, dim, there)
    common = {
        name: variable
        for name, variable in there.items()
        if name in dataset.variables and (variable.grows or name in dataset.coords)
    }
    compared = [name for name in growing if name in common]
    file_data = encoded_as(path, dataset, common, encodings, compared=compared, mesh=mesh)
    fixed = [str(name) for name in dataset.coords if name in there and name not in growing]
    _check_coordinates(path, file_data, fixed, mesh)
    if there:
        file_data = file_data.only(growing)
    _append_snapshots(path, file_data, dim, mesh, options)


def encoded_as(
    path: Path,
    dataset: xarray.Dataset,
    there: "Mapping[str, FileVariable]",
    encodings: Encodings,
    *,
    compared: Iterable[str],
    mesh: Mesh,
) -> Encoded:
    """Return a dataset in the encoding of a file. Errors on all ranks for what the file would change. Collective.

    Parameters
    ----------
    path: path of the file
    dataset: dataset to encode
    there: variables of both the file and the dataset
    encodings: encodings by name, which are replaced by those of the file
    compared: names of variables to compare with what the file will give back
    mesh: mesh of the call
    """
    steps = {}  # how far a number may be from what it becomes, where the encoding asks for it
    for name, variable in there.items():
        _check_kind(path, dataset[name], variable, encodings.get(name, {}))
        steps[name] = variable.step(encodings.get(name, dataset[name].encoding))
        encodings[name] = variable.encoding(dataset[name].variable)
    file_data = _with_lengths(path, encode_dataset(dataset, encodings, path), there)
    _check_units(path, file_data, there)
    _check_kept(path, dataset, file_data, {name: (there[name], steps[name]) for name in compared}, mesh)
    return file_data


def meshes_in(dataset: xarray.Dataset) -> Iterator[Mesh]:
    """Yield the meshes of the tensors of a dataset."""
    return (variable.data.mesh for variable in dataset.variables.values() if isinstance(variable.data, DTensor))


def check_packed(
    path: Path, dataset: xarray.Dataset, file_data: Encoded, encodings: Mapping[str, Encoding], mesh: Mesh
) -> None:
    """Raise ``DTypeError`` if numbers do not fit into the integers that their encoding packs them into. Collective."""
    packed = {}
    for name, array in file_data.arrays.items():
        variable = dataset.variables[name]
        if variable.dtype.kind == "f" and array.dtype.kind in "iu":
            target = FileVariable(file_data.attributes[name], array.dtype.str, array.shape, False)
            packed[name] = target, target.step(encodings.get(name, variable.encoding))
    if packed:
        _check_kept(path, dataset, file_data, packed, mesh)


def _growing(dataset: xarray.Dataset, dim: str) -> list[str]:
    """Return the names of what has the dimension *dim*. ``ValueError`` unless that comes first in all of them."""
    growing = [str(name) for name, variable in dataset.variables.items() if dim in variable.dims]
    if not growing:
        raise ValueError(f"append_dim names {quote(dim)}; the dimensions are {', '.join(map(str, dataset.sizes))}")
    later = next((name for name in growing if dataset[name].dims[0] != dim), None)
    if later is not None:
        raise ValueError(f"{quote(dim)} is not the first dimension of {quote(later)}: transpose it")
    return growing


class FileVariable(NamedTuple):
    """A variable of a file: its attributes, dtype and shape, and whether it has a dimension that is written to."""

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
        """How its numbers are decoded."""
        return coding_of(self.attributes, self.dtype)

    def encoding(self, variable: xarray.Variable) -> dict[str, object]:
        """Return how more of its elements, which are those of *variable*, are encoded."""
        keys = (*CODING, *(("units", "calendar") if _is_time(variable) else ()))
        result = {key: value for key, value in self.attributes.items() if key in keys}
        return result if _is_text(variable) else {"dtype": self.dtype} | result

    def step(self, encoding: Encoding) -> float | None:
        """Return how far apart two numbers are in the file, if the encoding says that others become these.

        None if a number has to stay what it is.
        """
        if self.coding is not None and (self.coding.scale is not None or self.coding.offset is not None):
            return abs(float(1 if self.coding.scale is None else self.coding.scale))
        if self.dtype.kind not in "iufc" or encoding.get("dtype") is None or np.dtype(encoding["dtype"]) != self.dtype:
            return None
        return 1.0 if self.dtype.kind in "iu" else 0.0


def _is_time(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in "mM" or calendar_of(variable) is not None


def _is_text(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in _TEXTS and not _is_time(variable)


def variables_there(path: Path, along: Collection[str], mesh: Mesh) -> dict[str, FileVariable]:
    """Return the variables of a file by name; nothing if it is not there. Collective.

    *along* are the dimensions that are written to.
    """

    def look() -> object:
        if not path.exists():
            return node_of_value({})
        file_contents = contents(path)
        kinds = {name: (stored.dtype.str, stored.shape) for name, stored in file_contents.arrays.items()}
        kinds |= {name: ("O", shape) for name, shape in file_contents.texts.items()}
        variables = {}
        for name, (kind, shape) in kinds.items():
            dims = file_contents.dims.get(name, ())
            grows = any(dim in along for dim in dims)
            variables[name] = [as_netcdf(file_contents.attributes.get(name, {})), kind, shape, grows, dims]
        return node_of_value(variables)

    node = broadcast_from_device("save", mesh, f"variables of {path}", look) or look()
    return {name: FileVariable(*fields) for name, fields in read(dict, value_of_node(node)).items()}


def _refuse_missing(path: Path, dataset: xarray.Dataset, dim: str, there: Mapping[str, FileVariable]) -> None:
    """Raise ``ValueError`` unless a dataset has all that grows in the file."""
    for name, variable in there.items():
        if variable.grows and name not in dataset.variables:
            raise ValueError(f"{path} has {quote(name)} along {quote(dim)}: a dataset that is appended needs it, too")


def _check_kind(path: Path, array: xarray.DataArray, target: FileVariable, encoding: Encoding) -> None:
    """Raise errors unless the file can hold what the array has: by dtypes, calendars and the units of *encoding*."""
    name, variable = str(array.name), array.variable
    calendar = calendar_of(variable)
    has = str(target.attributes.get("calendar", "standard")).lower()
    if calendar is not None:
        fits = has in ("standard", "gregorian", "proleptic_gregorian") if variable.dtype.kind == "M" else False
        if not (fits or _SAME.get(calendar, calendar) == _SAME.get(has, has)):
            raise ValueError(f"{quote(name)} has the calendar {has} in {path}, and {calendar} here: convert it")
    for key in ("units", "calendar") if _is_time(variable) else ():
        if key in encoding and _plain(encoding[key]) != _plain(target.attributes.get(key)):
            had = target.attributes.get(key)
            raise ValueError(
                f"{quote(name)} has the {key} {had} in {path}; its encoding asks for {quote(encoding[key])}"
            )
    kind, file_kind = variable.dtype.kind, target.dtype.kind if target.coding is None else target.coding.dtype.kind
    wider = kind in _WIDER and file_kind in _WIDER and _rank(kind) > _rank(file_kind)
    if (wider and target.step(encoding or variable.encoding) != 1.0) or _is_text(variable) != (file_kind in _TEXTS):
        raise DTypeError(f"{quote(name)} is {target.kind} in {path}, and {variable.dtype} here: convert it")


def _rank(kind: str) -> int:
    return _WIDER.replace("u", "i").index(kind.replace("u", "i"))


def _plain(units: object) -> str:
    """Return units or a calendar, with one text for each meaning."""
    return _MIDNIGHT.sub("", str(units))


def _with_lengths(path: Path, file_data: Encoded, there: Mapping[str, FileVariable]) -> Encoded:
    """Return encoded arrays whose texts are as long as those of the file. ``ValueError`` for a longer one."""
    arrays = dict(file_data.arrays)
    for name, variable in there.items():
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


def _check_units(path: Path, file_data: Encoded, there: Mapping[str, FileVariable]) -> None:
    """Raise ``ValueError`` for other units than those of the file."""
    for name, variable in there.items():
        had, needs = (attributes.get("units") for attributes in (variable.attributes, file_data.attributes[name]))
        if variable.grows and had is not None and needs is not None and _plain(had) != _plain(needs):
            raise ValueError(f"{quote(name)} does not fit the units of the file, {had}: it needs {needs}")


def _check_kept(
    path: Path,
    dataset: xarray.Dataset,
    file_data: Encoded,
    there: Mapping[str, tuple[FileVariable, float | None]],
    mesh: Mesh,
) -> None:
    """Raise ``ValueError`` if the file would not give back what is appended. Collective over *mesh*."""
    pairs = {}
    for name in there:
        values, new = dataset.variables[name].data, file_data.arrays[name]
        if isinstance(new, DTensor) and not isinstance(values, DTensor):
            new = new.to_numpy()
        elif isinstance(values, DTensor):
            is_same = isinstance(new, DTensor) and new.layout == values.layout
            new = new._block if is_same else relayout(as_replicated_tensor(new, mesh), values.layout)._block
            values = values._block
        if not _is_text(dataset.variables[name]) and values is not None and new is not None:
            pairs[name] = values, new

    def check() -> None:
        for name, (values, new) in pairs.items():
            target, step = there[name]
            rows = zip(values, new, strict=True) if values.ndim > 1 else [(values, new)]  # these need little memory
            if not all(_is_kept(value, number, target, step) for value, number in rows):
                raise DTypeError(f"{quote(name)} has elements that {path} would change: it holds {target.dtype}")

    if there:
        agree_on_result("save", mesh, f"what is appended to {path}: {', '.join(there)}", check)


def _is_kept(values: Array, new: Array, variable: FileVariable, step: float | None) -> bool:
    """Return whether *values* are what becomes of *new*, which are in the file; but for half a *step*."""
    units, kind = str(variable.attributes.get("units", "")), values.dtype.kind
    if kind in "MOm":
        if kind == "m":
            decoded = decode_cf_timedelta(new, units)
        else:
            calendar = cast("str | None", variable.attributes.get("calendar"))
            decoded = decode_cf_datetime(new, units, calendar, use_cftime=kind == "O")
        return bool(((values == decoded) | (False if kind == "O" else np.isnat(values) & np.isnat(decoded))).all())
    coding = variable.coding
    back = new if coding is None else coding.decoded(np.asarray(new))
    if variable.attributes.get("dtype") == "bool":
        back = back.astype(bool)
    fills = () if coding is None else coding.fills
    missing = np.isnan(back) & (np.isnan(values) | np.isin(values, fills)) if back.dtype.kind in "fc" else False
    if step is None:
        signs = values.dtype.kind == "c" or back.dtype.kind == "c" or ((back < 0) == (values < 0))
        with np.errstate(invalid="ignore"):
            return bool((missing | ((back.astype(values.dtype) == values) & signs)).all())
    kinds = [array.dtype for array in (back, values, new) if array.dtype.kind in "fc"]
    eps = max((float(np.finfo(dtype).eps) for dtype in kinds), default=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(back - values) <= step * 0.501 + 8 * eps * np.abs(values)
    return bool((missing | close | (back == values)).all())


def _check_coordinates(path: Path, file_data: Encoded, names: list[str], mesh: Mesh) -> None:
    """Raise ``ValueError`` for coordinates of other dimensions that are not those of the file. Collective."""
    arrays = {name: file_data.arrays[name] for name in names if not isinstance(file_data.arrays[name], DTensor)}
    if not arrays:
        return

    def compare() -> None:
        file_contents = contents(path)
        with Store(path) as store:
            for name, array in arrays.items():
                there = (
                    texts(path, name, file_contents.texts[name]) if name in file_contents.texts else store[name][...]
                )
                if not _equal(np.asarray(there), np.asarray(array)):
                    raise ValueError(f"the coordinates {quote(name)} are others than those in {path}")

    broadcast_from_device("save", mesh, f"coordinates {', '.join(arrays)} of {path}", compare)


def _equal(one: Array, other: Array) -> bool:
    """Return whether coordinates are equal; texts may be characters, or have the length that they need."""
    if one.dtype.kind in _TEXTS or other.dtype.kind in _TEXTS:
        ndim = max(one.ndim, other.ndim)
        return bool(np.array_equal(_as_texts(one, ndim), _as_texts(other, ndim)))
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc"))


def _as_texts(array: Array, ndim: int) -> Array:
    if array.dtype.kind == "S":
        joined = strings.char_to_bytes(array) if array.dtype == "S1" and array.ndim == ndim else array
        return np.char.decode(joined, "utf-8", "surrogateescape")
    return array.astype("U")


def _append_snapshots(path: Path, file_data: Encoded, dim: str, mesh: Mesh, options: StorageOptions) -> None:
    """Append what is along the dimension *dim*; the rest is for a new file. Collective over *mesh*."""
    steps = {name: array for name, array in file_data.arrays.items() if file_data.dims[name][:1] == (dim,)}
    fixed = {name: array for name, array in file_data.arrays.items() if name not in steps}
    if not len(next(iter(steps.values()))):
        if fixed:
            save_tree(
                path, fixed, mode="a", max_scratch_bytes=options.limit, **options.of(file_data.only(list(fixed)))
            )
        return
    wide = {name: array for name, array in steps.items() if array.ndim > 1 or isinstance(array, DTensor)}
    if not wide:
        wide = {name: array for name, array in steps.items() if name != dim}
    tensors = {name: as_replicated_tensor(array, mesh) for name, array in wide.items()}
    numbers = {name: np.asarray(array) for name, array in steps.items() if name not in wide}
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
        **options.of(Encoded({**tensors, **fixed}, dims, file_data.attributes)),
    )
    series.extend({**tensors, **numbers}, fixed)


def as_replicated_tensor(array: Array | DTensor, mesh: Mesh) -> DTensor:
    """Return an array that is the same on all ranks as a tensor. Collective over *mesh*."""
    return array if isinstance(array, DTensor) else distribute(array, Layout.replicated(mesh, array.ndim))
