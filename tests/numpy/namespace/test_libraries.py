"""What libraries get of a cut array in a script of NumPy: buffers, arrays, classes and operators."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import meshcomm as mc
import meshcomm.numpy as namespace
from meshcomm.core.arrays.scripted import set_scripted
from meshcomm.numpy.namespace.names import member_named


def tensor(array):
    return mc.distribute(array, mc.Layout(["x"], mc.create_mesh([("x", 2)])))


PADDED = np.dtype({"names": ["a", "b"], "formats": ["f8", "f8"], "itemsize": 32, "offsets": [8, 16]})
DTYPES = [
    "f8",
    ">f8",
    "?",
    "U3",
    "S2",
    "V10",
    "M8[s]",
    "m8[ns]",
    "g",
    [("a", "f8"), ("b", "i4")],
    PADDED,
    "i4,(2,3)f8",
]


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_knows_each_dtype_again(dtype):
    """NumPy asks for buffers first, which have no dates, and no fields with gaps."""
    array = np.frombuffer(np.random.default_rng(1).bytes(6 * np.dtype(dtype).itemsize), "u1") % 2
    array = array.view(dtype)

    def program():
        whole = np.asarray(tensor(array))
        assert whole.dtype == array.dtype
        assert whole.tobytes() == array.tobytes()
        assert not whole.flags.writeable
        assert np.array(tensor(array)).flags.writeable

    with mc.simulate(2) as world:
        world.run(program)


def test_tensors_of_other_programs_have_no_buffers():
    """Nothing becomes Collective there that was an error, or a loop over elements."""

    def program():
        t = tensor(np.arange(6))
        with pytest.raises(TypeError, match="a bytes-like object is required"):
            memoryview(t)
        assert not hasattr(t, "__array_interface__")
        with pytest.raises(AttributeError, match=r"t\.local is the block"):
            _ = t.data
        assert np.asarray(t).tolist() == [0, 1, 2, 3, 4, 5]

    for _ in range(2):
        with mc.simulate(2) as world:
            world.run(program)
        set_scripted(True)
        set_scripted(False)


@pytest.mark.usefixtures("scripted")
def test_what_is_too_large_says_so():
    length = 2**23 + 1  # more than 64 MiB

    def program():
        t = tensor(np.zeros(length))
        dates = tensor(np.zeros(length, "M8[s]"))
        ones = np.ones(length).view(np.recarray)
        calls = (memoryview, np.asarray, lambda x: x.__array_interface__, lambda x: x * ones)
        for call in calls:
            for x in (t, dates):
                with pytest.raises((TypeError, BufferError), match=r"to_numpy\(\)"):
                    call(x)

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_windows_of_memory_are_refused():
    def program():
        t = tensor(np.arange(6.0))
        for call in (as_strided, lambda x: as_strided(x[1:], (2,), (16,)), namespace.frombuffer):
            with pytest.raises(ValueError, match="no memory in one piece"):
                call(t)
        with pytest.raises(ValueError, match="no memory in one piece"):
            member_named("ndarray")((3,), buffer=t)

    with mc.simulate(2) as world:
        world.run(program)


@pytest.mark.usefixtures("scripted")
def test_no_write_to_a_copy_is_lost():
    def program():
        t, z = tensor(np.arange(6.0)), tensor(np.zeros(6, "i4,f8"))
        for write in (
            lambda: memoryview(t).__setitem__(0, 7.0),
            lambda: t.view(np.recarray).__setitem__(0, 7.0),
            lambda: np.asarray(t).__setitem__(0, 7.0),
            lambda: next(iter(z)).__setitem__("f1", 7.0),
        ):
            with pytest.raises((TypeError, ValueError), match="read-only"):
                write()
        z[3]["f1"] = 7.0
        assert z["f1"].tolist() == [0, 0, 0, 7, 0, 0]
        y = t.copy()
        y *= np.arange(6.0).view(np.recarray)
        return y.tolist()

    with mc.simulate(2) as world:
        assert world.run(program) == [[0, 1, 4, 9, 16, 25]] * 2


@pytest.mark.parametrize("value", [(7, 8.0), 7, [(7, 8.0)], np.array((7, 8.0), "i4,f8")])
@pytest.mark.parametrize("index", [2, slice(1, 4), [1, 3], Ellipsis])
def test_records_are_written_as_numpys(index, value):
    """A tuple is a record, and not a row of numbers: also in other programs than scripts."""
    expected = np.zeros(6, "i4,f8")
    if index == 2 and isinstance(value, list):
        value = value[0]
    expected[index] = value

    def program():
        t = tensor(np.zeros(6, "i4,f8"))
        t[index] = value
        assert np.array_equal(t.to_numpy(), expected)

    with mc.simulate(2) as world:
        world.run(program)
