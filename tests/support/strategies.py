"""Hypothesis strategies: meshes, layouts, relayouts, dtypes and group assignments; and the list of all dtypes."""

from math import prod

import numpy as np
from hypothesis import strategies as st

from meshcomm import Layout, Mesh
from support.reference import as_raw

try:
    import ml_dtypes
except ImportError:
    ML_DTYPES = []
else:
    ML_DTYPES = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]

PADDED = np.dtype({"names": ["a", "b"], "formats": ["u1", "<f8"], "offsets": [1, 8], "itemsize": 24})
NESTED = np.dtype([("place", [("x", ">i2"), ("y", "f4")]), ("values", "c8", (2,))])
NUMERIC = [*"bhilqBHILQefdgFDG", ">i2", ">u4", ">f2", ">f8", ">c16", *ML_DTYPES[:3]]
DTYPES = [np.dtype(d) for d in ["?", *NUMERIC, *ML_DTYPES[3:], "M8[ns]", ">m8[s]", "S5", "U3", "V7", PADDED, NESTED]]


def dtype_id(dtype):
    return {PADDED: "padded", NESTED: "nested"}.get(dtype, f"{dtype.byteorder}{dtype.char}{dtype}")


def shapes_of(size):
    """Every shape of one to three dimensions for a mesh of *size* devices."""
    factors = [n for n in range(1, size + 1) if size % n == 0]
    planes = [(a, size // a) for a in factors]
    cubes = [(a, b, size // a // b) for a in factors for b in factors if size % (a * b) == 0]
    return [(size,), *planes, *cubes]


@st.composite
def meshes(draw, sizes=range(1, 9)):
    """Meshes of one of these numbers of devices."""
    shape = draw(st.sampled_from(sizes).map(shapes_of).flatmap(st.sampled_from))
    return Mesh(range(prod(shape)), list(zip("xyz", shape, strict=False)))


@st.composite
def layouts(draw, mesh, rank):
    """Layouts with any number of mesh dimensions per axis."""
    axes = [[] for _ in range(rank)]
    for name in draw(st.permutations(mesh.dim_names)):
        axis = draw(st.integers(-1, rank - 1))
        if axis >= 0:
            axes[axis].append(name)
    return Layout([tuple(names) for names in axes], mesh)


@st.composite
def relayouts(draw, sizes=range(1, 9), max_rank=5, max_length=9):
    """A global shape, a source and a target."""
    mesh = draw(meshes(sizes))
    rank = draw(st.integers(0, max_rank))
    longest = max_length if rank <= 3 else 4
    shape = tuple(draw(st.lists(st.integers(0, longest), min_size=rank, max_size=rank)))
    return shape, draw(layouts(mesh, rank)), draw(layouts(mesh, rank))


@st.composite
def assignments(draw, size):
    """Group assignments of all ranks of a world: rows of any length that divides its size, in any order."""
    ranks = draw(st.permutations(range(size)))
    length = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    return [ranks[i : i + length] for i in range(0, size, length)]


@st.composite
def strided(draw, array):
    """The same values as *array*, in memory of another order: Fortran, reversed, with gaps, read-only."""
    how, raw = draw(st.sampled_from(["C", "F", "reversed", "gaps", "read-only"])), as_raw(array)
    if how == "F" and array.ndim:  # asfortranarray makes a vector of a scalar
        raw = np.asfortranarray(raw)
    elif how == "reversed" and array.ndim:
        raw = raw[::-1].copy()[::-1]
    elif how == "gaps" and array.ndim:
        raw = np.repeat(raw, 2, axis=-1)[..., ::2]
    elif how == "read-only":
        raw = raw.copy()
        raw.flags.writeable = False
    return raw.view(array.dtype)
