"""The text of tensors is NumPy's, and of a large one only the corners come to all ranks."""

import numpy as np
import pytest

import meshcomm as mc

ARRAYS = {
    "small": np.arange(10.0),
    "a number": np.array(3.5),
    "long": np.arange(1001.0) / 7,
    "a matrix": np.arange(4000).reshape(40, 100),
    "of float32": np.arange(4000, dtype="f4").reshape(1000, 2, 2) * 1e3,
    "of booleans": np.zeros((7, 300), bool),
    "with an axis of seven": np.arange(7 * 8 * 30, dtype="i2").reshape(7, 8, 30),
    "with an axis of six": np.arange(6 * 7 * 40).reshape(6, 7, 40),
    "empty": np.zeros((0, 3)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_texts_are_numpys(name):
    array = ARRAYS[name]

    def program():
        mesh = mc.create_mesh()
        for axis in range(-1, array.ndim):
            specs = ["x" if number == axis else mc.UNSHARDED for number in range(array.ndim)]
            tensor = mc.distribute(array, mc.Layout(specs, mesh))
            for text in (np.array_repr, np.array_str, np.array2string):
                assert text(tensor) == text(array)
            with np.printoptions(edgeitems=2, threshold=5, linewidth=40, precision=3):
                assert np.array_repr(tensor) == np.array_repr(array)
            options = {"separator": ",", "threshold": 10, "edgeitems": 1}
            assert np.array2string(tensor, **options) == np.array2string(array, **options)

    for ranks in (1, 2, 3):
        with mc.simulate(ranks) as world:
            world.run(program)


def test_only_corners_move():
    def program():
        tensor = mc.ones((1000, 1000), float, mc.Layout(["x", mc.UNSHARDED], mc.create_mesh()))
        return len(np.array_repr(tensor))

    with mc.simulate(2) as world:
        world.run(program)
        assert max(world.bytes_moved) < 10_000
