"""Texts of dtypes: they make the same dtype again, or there is no text; and nothing else can be made from one."""

import json

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DTypeError, Layout
from meshcomm.core.arrays import create
from meshcomm.core.layouts.dtype_text import dtype_of_text, dtype_text
from support.strategies import DTYPES, ML_DTYPES, NESTED, PADDED, dtype_id

ALIGNED = np.dtype([("a", "u1"), ("b", ">f8")], align=True)
WITH_FIELDS = [
    ALIGNED,
    np.dtype([("inner", ALIGNED), ("after", "u1")]),
    np.dtype([("values", ALIGNED, (2, 3)), ("one", "f4", (1,))]),
    np.dtype((np.record, [("a", "i4"), ("b", PADDED)])),
    np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "titles": ["the first", None]}),
    np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 1], "itemsize": 9}),
    np.dtype({"names": ["b", "a"], "formats": ["i4", "i2"], "offsets": [4, 0]}),
    np.dtype({"names": [], "formats": [], "itemsize": 4}),
    np.dtype([("\u00e9\ud800 \"'", "M8[25us]"), ("", ">U2"), ("t", "m8"), ("none", "V0")]),
    *(np.dtype([("a", dtype), ("b", dtype, 2)]) for dtype in ML_DTYPES),
]
ALL = [*DTYPES, *WITH_FIELDS, *map(np.dtype, ["S0", "U0", "V0", "M8", "m8[7D]", "=i4", "c32"])]


def same(a, b):
    """Whether two dtypes agree in all that they know but metadata."""
    if (a, a.isalignedstruct, a.itemsize, a.names) != (b, b.isalignedstruct, b.itemsize, b.names):
        return False
    if a.names is not None and a.type is not b.type:
        return False
    if a.subdtype is not None:
        return a.shape == b.shape and same(a.base, b.base)
    return all(
        same(a.fields[key][0], b.fields[key][0]) and a.fields[key][1:] == b.fields[key][1:] for key in a.fields or ()
    )


@pytest.mark.parametrize("dtype", ALL, ids=dtype_id)
def test_a_text_makes_the_same_dtype(dtype):
    text = dtype_text(dtype)
    assert text.isascii()
    assert same(dtype_of_text(text), dtype)
    assert dtype_text(dtype_of_text(text)) == text


def test_different_dtypes_have_different_texts():
    kinds = {dtype.str + repr(dtype) for dtype in ALL}
    assert len({dtype_text(dtype) for dtype in ALL}) == len(kinds)
    assert not same(np.dtype([("a", "u1"), ("b", ">f8")]), ALIGNED)


def test_metadata_are_not_reported():
    assert dtype_of_text(dtype_text(np.dtype("i4", metadata={"unit": "m"}))).metadata is None


class OwnElements(np.void):
    """Elements of a class of the user."""


UNKEPT = {
    "object": np.dtype(object),
    "object in a field": np.dtype([("a", object)]),
    "text of any length": np.dtypes.StringDType(),
    "number with fields": np.dtype((np.int32, {"real": (np.int16, 0), "imag": (np.int16, 2)})),
    "elements of a class": np.dtype((OwnElements, [("a", "i4")])),
    "title that is no text": np.dtype({"names": ["a"], "formats": ["i4"], "titles": [("x", 1)]}),
    "title of bytes": np.dtype({"names": ["a"], "formats": ["i4"], "titles": [b"x"]}),
}


@pytest.mark.parametrize("dtype", UNKEPT.values(), ids=UNKEPT)
def test_a_dtype_without_a_text_is_an_error(dtype):
    with pytest.raises(DTypeError, match="has no text that other ranks could read"):
        dtype_text(dtype)


def test_a_very_deep_dtype_is_an_error_at_most():
    dtype = np.dtype("i4")
    for _ in range(3000):
        dtype = np.dtype([("a", dtype)])
    with pytest.raises(DTypeError, match="has no text"):
        dtype_text(dtype)


@pytest.mark.parametrize(
    "encoded",
    [
        *("", "i4", "<i1", "=i4", "<i4,<f8", "(2,)<i4", "int32", "<M8[s", "|V99999999999", "object"),
        *(None, 3, [], {}, ["<i4"], {"ml_dtypes": "finfo"}, {"ml_dtypes": "__file__"}, {"ml_dtypes": 3}),
        *({"base": "<i4", "shape": [-1]}, {"base": "<i4", "shape": [2**70]}, {"base": "<i4", "shape": 2}),
        json.loads(dtype_text(NESTED)) | {"itemsize": 3},
        json.loads(dtype_text(NESTED)) | {"offsets": [0, -1]},
        json.loads(dtype_text(NESTED)) | {"names": ["a", "a"]},
        json.loads(dtype_text(NESTED)) | {"aligned": True},
    ],
    ids=str,
)
def test_another_text_is_an_error(encoded):
    with pytest.raises(DTypeError, match="does not describe a dtype of this process"):
        dtype_of_text(json.dumps(encoded))


def test_objects_cannot_be_made():
    with pytest.raises(DTypeError, match="hold references to Python objects"):
        dtype_of_text('"|O"')


def from_root(array, size=3):
    """What each rank gets, or raises, if rank 1 distributes *array*; and what the next such call gives."""

    def program():
        mesh = mc.create_mesh([("x", size)])
        layout = Layout(["x"], mesh)
        try:
            got = mc.distribute(array if mesh.rank == 1 else None, layout, root=1).dtype
        except Exception as error:
            got = error
        return got, mc.distribute(np.arange(3) if mesh.rank == 1 else None, layout, root=1).local.tolist()

    with mc.simulate(size) as world:
        got = world.run(program)
    assert [after for _, after in got] == [[0], [1], [2]]
    return [first for first, _ in got]


@pytest.mark.parametrize("dtype", WITH_FIELDS, ids=str)
def test_root_tells_the_dtype(dtype):
    assert all(same(encoded, dtype) for encoded in from_root(np.zeros(5, dtype)))


def test_all_ranks_raise_if_root_cannot_tell_the_dtype():
    errors = from_root(np.zeros(5, UNKEPT["number with fields"]))
    assert [type(error) for error in errors] == [DTypeError] * 3
    assert "has no text that other ranks could read" in str(errors[0])


def test_all_ranks_raise_if_one_cannot_make_the_dtype(monkeypatch):
    asked = []

    def lacks_a_module(text):
        asked.append(text)
        if len(asked) == 2:
            raise DTypeError("no module named ml_dtypes")
        return dtype_of_text(text)

    monkeypatch.setattr(create, "dtype_of_text", lacks_a_module)
    errors = from_root(np.zeros(5, "f4"))
    assert [type(error) for error in errors] == [DTypeError] * 3
    assert sum("seen by rank" in str(error) for error in errors) == 2
