"""Hypothesis strategies: layouts, relayouts, groups and arrays in any memory; and the list of all dtypes."""

from math import prod

import numpy as np
from hypothesis import strategies as st

from meshcomm import Layout, Mesh
from support.random_cases import random_layout, shapes_of
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

RANDOM = st.randoms(use_true_random=False)
"""Random generators for `random_cases`, controlled by hypothesis."""


def dtype_id(dtype):
    return {PADDED: "padded", NESTED: "nested"}.get(dtype, f"{dtype.byteorder}{dtype.char}{dtype}")


def layouts(mesh, ndim):
    """Layouts with any number of mesh dimensions per axis."""
    return RANDOM.map(lambda random: layout_on(random, mesh, ndim))


def layout_on(random, mesh, ndim):
    return Layout(random_layout(random, mesh, ndim).axes, mesh)  # on this very mesh


@st.composite
def relayouts(draw, sizes=range(1, 9), max_rank=5, max_length=9):
    """A global shape, a source and a target on one mesh of any of these numbers of devices."""
    random = draw(RANDOM)
    sizes = random.choice(shapes_of(random.choice(sizes)))
    mesh, ndim = Mesh(range(prod(sizes)), list(zip("xyz", sizes, strict=False))), random.randint(0, max_rank)
    shape = tuple(random.randint(0, max_length if ndim <= 3 else 4) for _ in range(ndim))
    return shape, layout_on(random, mesh, ndim), layout_on(random, mesh, ndim)


@st.composite
def assignments(draw, size):
    """Group assignments of all ranks of a world: rows of any length that divides its size, in any order."""
    ranks = draw(st.permutations(range(size)))
    length = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    return [ranks[i : i + length] for i in range(0, size, length)]


@st.composite
def strided(draw, array):
    """The values of *array* in another memory order: Fortran, reversed, with gaps, read-only."""
    memory_order, raw = draw(st.sampled_from(["C", "F", "reversed", "gaps", "read-only"])), as_raw(array)
    if memory_order == "F" and array.ndim:  # asfortranarray makes a vector of a scalar
        raw = np.asfortranarray(raw)
    elif memory_order == "reversed" and array.ndim:
        raw = raw[::-1].copy()[::-1]
    elif memory_order == "gaps" and array.ndim:
        raw = np.repeat(raw, 2, axis=-1)[..., ::2]
    elif memory_order == "read-only":
        raw = raw.copy()
        raw.flags.writeable = False
    return raw.view(array.dtype)
