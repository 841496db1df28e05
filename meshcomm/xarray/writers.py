"""xarray's own `to_netcdf` and `to_zarr`, for datasets with tensors: they write the same files as `save`."""

from pathlib import Path

import xarray

from meshcomm.core._arguments import quote
from meshcomm.core._types import AnyDict
from meshcomm.storage.formats.known import FORMATS
from meshcomm.xarray.saving import save

_ALLOWED: dict[str, dict[str, tuple[object, ...]]] = {
    "to_netcdf": {
        "mode": ("w", "a"),
        "format": (None, "NETCDF4"),
        "engine": (None, "netcdf4", "h5netcdf"),
        "group": (None, "", "/"),
        "compute": (True,),
        "multifile": (False,),
        "invalid_netcdf": (None, False),
    },
    "to_zarr": {
        "mode": (None, "w", "w-", "a", "r+"),
        "group": (None, "", "/"),
        "compute": (True,),
        "storage_options": (None,),
        "zarr_format": (None, 3),
        "consolidated": (None, False),
    },
}
"""The values of arguments that `save` supports. Other arguments are hints, or passed to `save`."""


def write(name: str, dataset: xarray.Dataset, arguments: AnyDict) -> None:
    """Write a dataset for xarray's function *name*. Collective over the meshes of its tensors.

    Parameters
    ----------
    name: "to_netcdf" or "to_zarr"
    dataset: dataset with tensors
    arguments: arguments by name; "path" is the file to write

    ``NotImplementedError`` on all ranks, before any file is touched, for files that only one process can write.
    """
    path = arguments["path"]
    suffix = Path(path).suffix.lower() if isinstance(path, str | Path) else ""
    writer = FORMATS[suffix][0] if suffix in FORMATS else None
    is_supported = writer is not None and writer.has_attributes and (suffix == ".zarr") == (name == "to_zarr")
    refused_arguments = [
        f"{key}={quote(arguments[key])}"
        for key, allowed_values in _ALLOWED[name].items()
        if key in arguments and arguments[key] not in allowed_values
    ]
    if refused_arguments or not is_supported:
        problem = refused_arguments[0] if refused_arguments else f"path {quote(path)}"
        raise NotImplementedError(
            f"{name} of tensors, which all ranks write, takes no {problem}: meshcomm.xarray.save(path, dataset) "
            "writes an .nc, .h5 or .zarr file; of dataset.load() with arrays of NumPy, one rank may write the others"
        )
    mode, append_dim, region = arguments.get("mode"), arguments.get("append_dim"), arguments.get("region")
    if mode in (("r+",) if region is None else ("w", "w-")):
        raise ValueError(f"mode {quote(mode)} with region={quote(region)}: a region is written with mode 'r+' or 'a'")
    save(
        path,
        dataset,
        mode="a" if mode == "a" and append_dim is None else "w",
        append_dim=append_dim,
        region=region,
        encoding=arguments.get("encoding") or None,
        unlimited_dims=arguments.get("unlimited_dims"),
        overwrite=None if mode == "a" or append_dim is not None else mode == "w",
    )
