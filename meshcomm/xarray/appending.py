"""Datasets that go on with a file: what is appended is as the file has it, and nothing of it is lost.

The rule is that of `meshcomm.Series`: no cast that loses, no coordinate that differs, no calendar but the file's.
What xarray has encoded is decoded again, as the file will give it back, and compared.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray
from xarray.coding import strings
from xarray.coding.times import decode_cf_datetime, decode_cf_timedelta

from meshcomm.blocks.small import looked_up, together
from meshcomm.core._arguments import quote
from meshcomm.core._types import Array, DType, Json, Shape
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
from meshcomm.xarray.encoding import Encoded, OwnOptions, encoded
from meshcomm.xarray.objects import calendar_of

_MIDNIGHT = re.compile(r"[T ]0?0:00(:00(\.0*)?)?$")
"""The end of units such as "days since 2000-01-01 00:00:00", which xarray leaves out, or not."""

_TEXTS = "OSTU"
_SAME = {"gregorian": "standard", "365_day": "noleap", "366_day": "all_leap"}
"""Calendars with two names."""
_WIDER = "biufc"
"""Kinds of numbers: none goes into one that stands before it, but integers of both kinds."""


def append(
    path: Path, dataset: xarray.Dataset, dim: str, asked: dict[str, dict[str, Any]], options: OwnOptions
) -> None:
    """Write what lies along *dim* as snapshots of a series. Collective.

    Parameters
    ----------
    path: of the file, which is made if it is not there
    dataset: what is appended
    dim: its first dimension, along which it goes on with the file
    asked: encodings by the name of a variable
    options: of the file
    """
    growing = _growing(dataset, dim)
    mesh = common_mesh(meshes_in(dataset))
    there = variables_there(path, (dim,), mesh)
    _refuse_missing(path, dataset, dim, there)
    common = {
        name: held
        for name, held in there.items()
        if name in dataset.variables and (held.grows or name in dataset.coords)
    }
    kept = [name for name in growing if name in common]
    found = encoded_as(path, dataset, common, asked, kept=kept, mesh=mesh)
    fixed = [str(name) for name in dataset.coords if name in there and name not in growing]
    _check_coordinates(path, found, fixed, mesh)
    if there:
        found = found.only(growing)
    _append_snapshots(path, found, dim, mesh, options)


def encoded_as(
    path: Path,
    dataset: xarray.Dataset,
    there: "Mapping[str, Held]",
    asked: dict[str, dict[str, Any]],
    *,
    kept: Iterable[str],
    mesh: Mesh,
) -> Encoded:
    """Return a dataset in the encoding of a file. Errors on all ranks for what the file would change. Collective.

    Parameters
    ----------
    path: of the file
    dataset: what is encoded
    there: variables of the file that the dataset has, too
    asked: encodings by name, which get those of the file
    kept: names of variables whose elements are compared with what the file will give back
    mesh: that of the call
    """
    steps = {}  # how far a number may be from what it becomes, where the encoding asks for it
    for name, held in there.items():
        _check_kind(path, dataset[name], held, asked.get(name, {}))
        steps[name] = held.step(asked.get(name, dataset[name].encoding))
        asked[name] = held.encoding(dataset[name].variable)
    found = _with_lengths(path, encoded(dataset, asked, path), there)
    _check_units(path, found, there)
    _check_kept(path, dataset, found, {name: (there[name], steps[name]) for name in kept}, mesh)
    return found


def meshes_in(dataset: xarray.Dataset) -> Iterator[Mesh]:
    """Yield the meshes of the tensors of a dataset."""
    return (each.data.mesh for each in dataset.variables.values() if isinstance(each.data, DTensor))


def check_packed(
    path: Path, dataset: xarray.Dataset, found: Encoded, asked: Mapping[str, Mapping[str, Any]], mesh: Mesh
) -> None:
    """Raise ``DTypeError`` if numbers do not fit into the integers that their encoding packs them into. Collective."""
    packed = {}
    for name, array in found.arrays.items():
        variable = dataset.variables[name]
        if variable.dtype.kind == "f" and array.dtype.kind in "iu":
            held = Held(found.attributes[name], array.dtype.str, array.shape, False)
            packed[name] = held, held.step(asked.get(name, variable.encoding))
    if packed:
        _check_kept(path, dataset, found, packed, mesh)


def _growing(dataset: xarray.Dataset, dim: str) -> list[str]:
    """Return the names of what has the dimension *dim*. ``ValueError`` unless that comes first in all of them."""
    growing = [str(name) for name, each in dataset.variables.items() if dim in each.dims]
    if not growing:
        raise ValueError(f"append_dim names {quote(dim)}; the dimensions are {', '.join(map(str, dataset.sizes))}")
    later = next((name for name in growing if dataset[name].dims[0] != dim), None)
    if later is not None:
        raise ValueError(f"{quote(dim)} is not the first dimension of {quote(later)}: transpose it")
    return growing


class Held(NamedTuple):
    """A variable of a file: its attributes, dtype and shape, and whether it has a dimension that is written to."""

    attributes: dict[str, Any]
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

    def encoding(self, variable: xarray.Variable) -> dict[str, Any]:
        """Return how more of its elements, which are those of *variable*, are encoded."""
        keys = (*CODING, *(("units", "calendar") if _is_time(variable) else ()))
        own = {key: value for key, value in self.attributes.items() if key in keys}
        return own if _is_text(variable) else {"dtype": self.dtype} | own

    def step(self, asked: Mapping[str, Any]) -> float | None:
        """Return how far apart two numbers are in the file, if the encoding says that others become these.

        None if a number has to stay what it is.
        """
        if self.coding is not None and (self.coding.scale is not None or self.coding.offset is not None):
            return abs(float(1 if self.coding.scale is None else self.coding.scale))
        if self.dtype.kind not in "iufc" or asked.get("dtype") is None or np.dtype(asked["dtype"]) != self.dtype:
            return None
        return 1.0 if self.dtype.kind in "iu" else 0.0


def _is_time(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in "mM" or calendar_of(variable) is not None


def _is_text(variable: xarray.Variable) -> bool:
    return variable.dtype.kind in _TEXTS and not _is_time(variable)


def variables_there(path: Path, along: Collection[str], mesh: Mesh) -> dict[str, Held]:
    """Return the variables of a file by name; nothing if it is not there. Collective.

    *along* are the dimensions that are written to.
    """

    def look() -> Json:
        if not path.exists():
            return node_of_value({})
        found = contents(path)
        kinds = {name: (stored.dtype.str, stored.shape) for name, stored in found.arrays.items()}
        kinds |= {name: ("O", shape) for name, shape in found.texts.items()}
        variables = {}
        for name, (kind, shape) in kinds.items():
            dims = found.dims.get(name, ())
            grows = any(dim in along for dim in dims)
            variables[name] = [as_netcdf(found.attributes.get(name, {})), kind, shape, grows, dims]
        return node_of_value(variables)

    told = looked_up("save", mesh, f"variables of {path}", look) or look()
    return {name: Held(*each) for name, each in value_of_node(told).items()}


def _refuse_missing(path: Path, dataset: xarray.Dataset, dim: str, there: Mapping[str, Held]) -> None:
    """Raise ``ValueError`` unless a dataset has all that grows in the file."""
    for name, held in there.items():
        if held.grows and name not in dataset.variables:
            raise ValueError(f"{path} has {quote(name)} along {quote(dim)}: a dataset that is appended needs it, too")


def _check_kind(path: Path, array: xarray.DataArray, held: Held, asked: Mapping[str, Any]) -> None:
    """Raise errors unless the file can hold what the array has: by dtypes, calendars and the units *asked* for."""
    name, variable = str(array.name), array.variable
    calendar = calendar_of(variable)
    has = str(held.attributes.get("calendar", "standard")).lower()
    if calendar is not None:
        fits = has in ("standard", "gregorian", "proleptic_gregorian") if variable.dtype.kind == "M" else False
        if not (fits or _SAME.get(calendar, calendar) == _SAME.get(has, has)):
            raise ValueError(f"{quote(name)} has the calendar {has} in {path}, and {calendar} here: convert it")
    for key in ("units", "calendar") if _is_time(variable) else ():
        if key in asked and _plain(asked[key]) != _plain(held.attributes.get(key)):
            had = held.attributes.get(key)
            raise ValueError(f"{quote(name)} has the {key} {had} in {path}; its encoding asks for {quote(asked[key])}")
    its, kept = variable.dtype.kind, held.dtype.kind if held.coding is None else held.coding.dtype.kind
    wider = its in _WIDER and kept in _WIDER and _rank(its) > _rank(kept)
    if (wider and held.step(asked or variable.encoding) != 1.0) or _is_text(variable) != (kept in _TEXTS):
        raise DTypeError(f"{quote(name)} is {held.kind} in {path}, and {variable.dtype} here: convert it")


def _rank(kind: str) -> int:
    return _WIDER.replace("u", "i").index(kind.replace("u", "i"))


def _plain(units: object) -> str:
    """Return units or a calendar, with one text for each meaning."""
    return _MIDNIGHT.sub("", str(units))


def _with_lengths(path: Path, found: Encoded, there: Mapping[str, Held]) -> Encoded:
    """Return encoded arrays whose texts are as long as those of the file. ``ValueError`` for a longer one."""
    arrays = dict(found.arrays)
    for name, held in there.items():
        array, most = arrays[name], 0
        kind = held.dtype.kind
        if kind == array.dtype.kind and (kind == "U" or (kind == "S" and path.suffix.lower() == ".zarr")):
            arrays[name] = array.astype(held.dtype)
            fits = bool((arrays[name] == array).all())
            most = held.dtype.itemsize // np.dtype(f"{kind}1").itemsize
        elif held.kind == "|S1" and array.dtype.kind == "S" and array.ndim == len(held.shape) > 0:
            most = held.shape[-1]
            fits = not (array[..., most:] != b"").any()
            arrays[name] = np.zeros((*array.shape[:-1], most), "S1")
            arrays[name][..., : array.shape[-1]] = array[..., :most]
        else:
            continue
        if not fits:
            raise ValueError(f"texts of {quote(name)} have at most {most} characters in {path}; here one is longer")
    return found._replace(arrays=arrays)


def _check_units(path: Path, found: Encoded, there: Mapping[str, Held]) -> None:
    """Raise ``ValueError`` for other units than those of the file."""
    for name, held in there.items():
        had, needs = (its.get("units") for its in (held.attributes, found.attributes[name]))
        if held.grows and had is not None and needs is not None and _plain(had) != _plain(needs):
            raise ValueError(f"{quote(name)} does not fit the units of the file, {had}: it needs {needs}")


def _check_kept(
    path: Path, dataset: xarray.Dataset, found: Encoded, there: Mapping[str, tuple[Held, float | None]], mesh: Mesh
) -> None:
    """Raise ``ValueError`` if the file would not give back what is appended. Collective over *mesh*."""
    pairs = {}
    for name in there:
        values, new = dataset.variables[name].data, found.arrays[name]
        if isinstance(new, DTensor) and not isinstance(values, DTensor):
            new = new.to_numpy()
        elif isinstance(values, DTensor):
            is_same = isinstance(new, DTensor) and new.layout == values.layout
            new = new._block if is_same else relayout(as_tensor(new, mesh), values.layout)._block
            values = values._block
        if not _is_text(dataset.variables[name]) and values is not None and new is not None:
            pairs[name] = values, new

    def check() -> None:
        for name, (values, new) in pairs.items():
            held, step = there[name]
            rows = zip(values, new, strict=True) if values.ndim > 1 else [(values, new)]  # these need little memory
            if not all(_is_kept(value, number, held, step) for value, number in rows):
                raise DTypeError(f"{quote(name)} has elements that {path} would change: it holds {held.dtype}")

    if there:
        together("save", mesh, f"what is appended to {path}: {', '.join(there)}", check)


def _is_kept(values: Array, new: Array, held: Held, step: float | None) -> bool:
    """Return whether *values* are what becomes of *new*, which are in the file; but for half a *step*."""
    units, kind = str(held.attributes.get("units", "")), values.dtype.kind
    if kind in "MOm":
        if kind == "m":
            its = decode_cf_timedelta(new, units)
        else:
            its = decode_cf_datetime(new, units, held.attributes.get("calendar"), use_cftime=kind == "O")
        return bool(((values == its) | (False if kind == "O" else np.isnat(values) & np.isnat(its))).all())
    coding = held.coding
    back = new if coding is None else coding.decoded(np.asarray(new))
    if held.attributes.get("dtype") == "bool":
        back = back.astype(bool)
    fills = () if coding is None else coding.fills
    missing = np.isnan(back) & (np.isnan(values) | np.isin(values, fills)) if back.dtype.kind in "fc" else False
    if step is None:
        signs = values.dtype.kind == "c" or back.dtype.kind == "c" or ((back < 0) == (values < 0))
        with np.errstate(invalid="ignore"):
            return bool((missing | ((back.astype(values.dtype) == values) & signs)).all())
    kinds = [each.dtype for each in (back, values, new) if each.dtype.kind in "fc"]
    eps = max((float(np.finfo(each).eps) for each in kinds), default=0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(back - values) <= step * 0.501 + 8 * eps * np.abs(values)
    return bool((missing | close | (back == values)).all())


def _check_coordinates(path: Path, found: Encoded, names: list[str], mesh: Mesh) -> None:
    """Raise ``ValueError`` for coordinates of other dimensions that are not those of the file. Collective."""
    own = {name: found.arrays[name] for name in names if not isinstance(found.arrays[name], DTensor)}
    if not own:
        return

    def compare() -> None:
        held = contents(path)
        with Store(path) as store:
            for name, array in own.items():
                there = texts(path, name, held.texts[name]) if name in held.texts else store[name][...]
                if not _equal(np.asarray(there), np.asarray(array)):
                    raise ValueError(f"the coordinates {quote(name)} are others than those in {path}")

    looked_up("save", mesh, f"coordinates {', '.join(own)} of {path}", compare)


def _equal(one: Array, other: Array) -> bool:
    """Return whether coordinates are equal; texts may be characters, or have the length that they need."""
    if one.dtype.kind in _TEXTS or other.dtype.kind in _TEXTS:
        ndim = max(one.ndim, other.ndim)
        return bool(np.array_equal(_as_texts(one, ndim), _as_texts(other, ndim)))
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc"))


def _as_texts(array: Array, ndim: int) -> Array:
    if array.dtype.kind == "S":
        joined = strings.char_to_bytes(array) if array.dtype == "S1" and array.ndim == ndim else array  # type: ignore[no-untyped-call]
        return np.char.decode(joined, "utf-8", "surrogateescape")
    return array.astype("U")


def _append_snapshots(path: Path, found: Encoded, dim: str, mesh: Mesh, options: OwnOptions) -> None:
    """Append what is along the dimension *dim*; the rest is for a new file. Collective over *mesh*."""
    steps = {name: array for name, array in found.arrays.items() if found.dims[name][:1] == (dim,)}
    fixed = {name: array for name, array in found.arrays.items() if name not in steps}
    if not len(next(iter(steps.values()))):
        if fixed:
            save_tree(path, fixed, mode="a", max_scratch_bytes=options.limit, **options.of(found.only(list(fixed))))
        return
    wide = {name: array for name, array in steps.items() if array.ndim > 1 or isinstance(array, DTensor)}
    if not wide:
        wide = {name: array for name, array in steps.items() if name != dim}
    tensors = {name: as_tensor(array, mesh) for name, array in wide.items()}
    numbers = {name: np.asarray(array) for name, array in steps.items() if name not in wide}
    dims = {name: own[1:] if name in steps else own for name, own in found.dims.items() if name not in numbers}
    series = StepSeries(
        path,
        {name: tensor.layout.delete(0) for name, tensor in tensors.items()},
        shape={name: tensor.shape[1:] for name, tensor in tensors.items()},
        dtype={name: tensor.dtype for name, tensor in tensors.items()},
        axis=dim,
        max_scratch_bytes=options.limit,
        **options.of(Encoded({**tensors, **fixed}, dims, found.attributes)),
    )
    series.extend({**tensors, **numbers}, fixed)


def as_tensor(array: Array | DTensor, mesh: Mesh) -> DTensor:
    """Return an array that is the same on all ranks as a tensor. Collective over *mesh*."""
    return array if isinstance(array, DTensor) else distribute(array, Layout.replicated(mesh, array.ndim))
