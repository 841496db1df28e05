"""The inventory of an HDF5 file, and whether meshcomm wrote all of it.

A file that meshcomm made has a mark with a checksum of its inventory, without the data. After another program has
added, removed or changed something, the mark does not fit any more.
"""

import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from meshcomm.core._arguments import quote
from meshcomm.storage.formats.hdf5 import MARK, NO_VARIABLE, SCALE_ATTRIBUTES
from meshcomm.storage.formats.hdf5_library import Hdf5Dataset, Hdf5Group, Hdf5Object, LowLevelObject, h5py_library


def inventory(file: Hdf5Group) -> Iterator[tuple[str, str, str]]:
    """Yield each entry of a file: its name, a text for people, and its identity.

    The identity leaves out the lengths of axes that may grow: so the mark still fits after snapshots are added.
    """
    h5py, seen = h5py_library(), set()

    def attributes(name: str, owner: Hdf5Object) -> Iterator[tuple[str, str, str]]:
        for key in owner.attrs if h5py.h5a.get_num_attrs(owner.id) else ():
            if key not in SCALE_ATTRIBUTES and key != MARK:
                owner_text = f" of {name}" if name else ""
                yield f"{name}@{key}", f"attribute {quote(key)}{owner_text}", repr(owner.attrs.get(key))

    def members(group: Hdf5Group, prefix: str) -> Iterator[tuple[str, str, str]]:
        for key in group:
            name = f"{prefix}{key}"
            link = key.encode("utf-8", "surrogateescape")
            is_hard = group.id.links.get_info(link).type == h5py.h5l.TYPE_HARD
            member = _high_level_object(h5py.h5o.open(group.id, link)) if is_hard else None
            if member is None:
                yield name, f"link {quote(name)}", ""
                continue
            yield from attributes(name, member)
            if isinstance(member, h5py.Dataset):
                kind, lengths, dtype = "dimension" if is_no_variable(member) else "dataset", member.shape, member.dtype
                shape = [
                    n if max_length == n else "any"
                    for n, max_length in zip(lengths or (), member.maxshape or (), strict=True)
                ]
                yield name, f"{kind} {quote(name)} {lengths} {dtype}", f"{kind} {shape} {dtype}"
            elif isinstance(member, h5py.Group):
                address = h5py.h5o.get_info(member.id).addr
                if address not in seen:
                    seen.add(address)
                    if not len(member):
                        yield name, f"group {quote(name)}", ""
                    yield from members(member, f"{name}/")
            else:
                yield name, f"type {quote(name)}", ""

    yield from attributes("", file)
    yield from members(file, "")


def _high_level_object(low_object: LowLevelObject) -> Hdf5Dataset | Hdf5Group:
    """Return the dataset, group or type of h5py for an object of its low-level interface."""
    h5py = h5py_library()
    kinds = {h5py.h5d.DatasetID: h5py.Dataset, h5py.h5g.GroupID: h5py.Group, h5py.h5t.TypeID: h5py.Datatype}
    return next(kind for id_type, kind in kinds.items() if isinstance(low_object, id_type))(low_object)


def is_no_variable(dataset: Hdf5Dataset) -> bool:
    """Return whether the dataset is a dimension of netCDF only, without a variable."""
    name = dataset.attrs.get("NAME", "") if h5py_library().h5a.get_num_attrs(dataset.id) else ""
    return (name if isinstance(name, bytes) else str(name).encode()).startswith(NO_VARIABLE.encode())


def mark_of(file: Hdf5Group) -> str:
    """Return the mark of a file that meshcomm alone wrote."""
    content = _content(inventory(file))
    return f"version=2,meshcomm={_version()},{content},hdf5={h5py_library().version.hdf5_version}"


def is_ours(file: Hdf5Group, entries: Iterable[tuple[str, str, str]] | None = None) -> bool:
    """Return whether meshcomm wrote the whole file, by its mark; *entries* are its inventory."""
    mark = file.attrs.get(MARK, "")
    mark = mark.decode(errors="replace") if isinstance(mark, bytes) else str(mark)
    return "meshcomm=" in mark and _content(inventory(file) if entries is None else entries) in mark


def _content(entries: Iterable[tuple[str, str, str]]) -> str:
    identities = sorted((name, identity or text) for name, text, identity in entries)
    return f"content={zlib.crc32(repr(identities).encode()):08x}"


@lru_cache
def _version() -> str:
    from importlib.metadata import version  # here, as its import takes long

    return version("meshcomm")
