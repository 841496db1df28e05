"""What is in an HDF5 file, and whether meshcomm wrote all of it.

A file that meshcomm made has a mark with a checksum of all that was in it, but the data. When another program has
added, removed or changed something since, the mark does not fit any more.
"""

import zlib
from collections.abc import Iterator
from typing import Any

from meshcomm._arguments import quote
from meshcomm.storage.formats.hdf5 import MARK, NO_VARIABLE, library

OF_SCALES = frozenset(("CLASS", "NAME", "REFERENCE_LIST", "DIMENSION_LIST", "DIMENSION_LABELS", "_Netcdf4Dimid"))
"""Attributes that say which axes have which dimension scales."""


def inventory(file: Any) -> Iterator[tuple[str, str, str]]:
    """Yield all that is in a file: the name, what it is for people, and what tells it from others."""
    h5py, seen = library(), set()

    def attributes(name: str, found: Any) -> Iterator[tuple[str, str, str]]:
        for key in found.attrs:
            if key not in OF_SCALES and key != MARK:
                of = f" of {name}" if name else ""
                yield f"{name}@{key}", f"attribute {quote(key)}{of}", repr(found.attrs.get(key))

    def inside(group: Any, above: str) -> Iterator[tuple[str, str, str]]:
        for key in group:
            name = f"{above}{key}"
            found = group.get(key) if isinstance(group.get(key, getlink=True), h5py.HardLink) else None
            if found is None:
                yield name, f"link {quote(name)}", ""
                continue
            yield from attributes(name, found)
            if isinstance(found, h5py.Dataset):
                kind = "dimension" if is_no_variable(found) else "dataset"
                yield name, f"{kind} {quote(name)} {found.shape} {found.dtype}", ""
            elif isinstance(found, h5py.Group):
                address = h5py.h5o.get_info(found.id).addr
                if address not in seen:
                    seen.add(address)
                    if not len(found):
                        yield name, f"group {quote(name)}", ""
                    yield from inside(found, f"{name}/")
            else:
                yield name, f"type {quote(name)}", ""

    yield from attributes("", file)
    yield from inside(file, "")


def is_no_variable(found: Any) -> bool:
    """Return whether the dataset is a dimension only."""
    name = found.attrs.get("NAME", "")
    return (name if isinstance(name, bytes) else str(name).encode()).startswith(NO_VARIABLE.encode())


def mark_of(things: list[tuple[str, str, str]]) -> str:
    """Return the mark of a file that holds these things, all written by meshcomm."""
    from importlib.metadata import version  # here, as its import takes long

    crc = zlib.crc32(repr(sorted(things)).encode())
    return f"version=2,meshcomm={version('meshcomm')},content={crc:08x},hdf5={library().version.hdf5_version}"


def is_ours(file: Any, things: list[tuple[str, str, str]]) -> bool:
    """Return whether meshcomm wrote all that is in a file."""
    mark = file.attrs.get(MARK, "")
    mark = mark.decode(errors="replace") if isinstance(mark, bytes) else str(mark)
    content = f",content={zlib.crc32(repr(sorted(things)).encode()):08x}"
    return "meshcomm=" in mark and content in mark
