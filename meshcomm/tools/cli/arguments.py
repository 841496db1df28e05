"""Meshes, layouts, shapes, dtypes and numbers of bytes, parsed from the texts of the command line."""

import re

import numpy as np

from meshcomm.core._arguments import as_dtype, quote
from meshcomm.core._types import DType, Shape
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import parsed_specs
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.mesh_text import from_text
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, MeshError, ShapeError


def mesh_of(text: str) -> Mesh:
    """Return the mesh that *text* describes: a name and a size for each dimension. ``MeshError`` if it is malformed.

    >>> mesh_of("x=4,y=2").shape()
    [4, 2]
    """
    if "|" in text:
        raise MeshError(f"mesh {quote(text)} is not written name=size,name=size, such as x=4,y=2")
    for dim in text.split(","):
        name, _, size = map(str.strip, dim.partition("="))
        if size == "-1":
            raise MeshError(
                f"mesh {quote(text)}: no ranks run here to count; write the size of {name}, such as {name}=4"
            )
    dims = from_text(f"|{text}|*CPU").dims
    return Mesh(range(int(np.prod([dim.size for dim in dims]))), dims)


def layout_of(text: str, mesh: Mesh) -> Layout:
    """Return the layout on *mesh* whose sharding specs are written as *text*. ``LayoutError`` if it is malformed.

    >>> layout_of("x+y,unsharded", mesh_of("x=4,y=2")).sharding_specs
    [('x', 'y'), 'unsharded']
    """
    if any(spec.count("(") != spec.count(")") for spec in text.split(",")):
        raise LayoutError(f"layout {quote(text)}: a comma ends a sharding spec; write x=cuts(0;10;25) or x=cyclic(64)")
    specs = parsed_specs([spec.strip() for spec in text.split(",")] if text.strip() else [])
    if "" in specs:
        raise LayoutError(f"layout {quote(text)} has an empty sharding spec; unsharded is the one of a whole axis")
    return Layout(specs, mesh)


def shape_of(text: str) -> Shape:
    """Return the shape that *text* describes. ``ShapeError`` if it is malformed.

    >>> shape_of("10,7"), shape_of("4096"), shape_of("")
    ((10, 7), (4096,), ())
    """
    lengths = [length.strip() for length in text.split(",")] if text.strip() else []
    if not all(length.isascii() and length.isdigit() and len(length) < 20 for length in lengths):
        raise ShapeError(f"shape {quote(text)} is not written as lengths with commas, such as 4096,4096")
    return tuple(map(int, lengths))


def dtype_of(text: str) -> DType:
    """Return the dtype that *text* names, as NumPy does. ``DTypeError`` if there is none.

    >>> dtype_of("f8")
    dtype('float64')
    """
    try:
        return as_dtype(text)
    except (SyntaxError, ValueError) as error:
        raise DTypeError(f"{quote(text)} is not a dtype: {error}") from None


def bytes_of(text: str) -> int:
    """Return the number of bytes that *text* describes, with units of 1024. ``MeshcommError`` if it is malformed.

    >>> bytes_of("1K"), bytes_of("256MiB"), bytes_of("1.5k"), bytes_of("10")
    (1024, 268435456, 1536, 10)
    """
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?)([KMGT]?)(?:i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise MeshcommError(f"{quote(text)} is not a number of bytes, such as 1K, 64M or 1000000")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
