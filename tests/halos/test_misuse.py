"""What a program may get wrong with halos, and is told."""

import copy

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import CollectiveMismatch, DTypeError, LayoutError


def on_two(program):
    def run():
        rows = mc.Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        return program(mc.distribute(np.arange(48.0).reshape(6, 8), rows))

    with mc.simulate(2) as world:
        return world.run(run)


def test_blocks_are_written_into_not_replaced():
    def program(t):
        h = mc.halo(t, 1, "periodic")
        for name in ("inner", "local"):
            with pytest.raises(AttributeError, match=rf"write into it: h.{name}\[...\] = values"):
                setattr(h, name, np.zeros((3, 8)))
        h.inner += 1
        h.update()
        assert h.local.base is None or np.shares_memory(h.local, h.inner)
        np.testing.assert_array_equal(h.tensor().to_numpy(), t.to_numpy() + 1)
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            copy.deepcopy(h)

    on_two(program)


def test_a_halo_without_axes_is_its_element():
    def program(t):
        h = mc.halo(mc.distribute(np.array(3.0), mc.Layout([], t.mesh)), 1)
        assert h.inner == h.local == 3
        return float(mc.map_overlap(lambda x: 2 * x, h.tensor(), 1).local)

    assert on_two(program) == [6.0, 6.0]


@pytest.mark.parametrize("dtype", ["O", np.dtype([("a", "O")])])
def test_functions_that_return_objects(dtype):
    def program(t):
        with pytest.raises(DTypeError, match="references to Python objects"):
            mc.map_overlap(lambda x: np.zeros(x.shape, dtype), t, 1, "periodic")

    on_two(program)


def test_functions_that_return_other_dtypes_on_other_ranks():
    with pytest.raises(CollectiveMismatch, match="<f4"):
        on_two(lambda t: mc.map_overlap(lambda x: x.astype("f4") if t.mesh.rank else x, t, 1))


def test_an_error_of_the_function_on_one_rank_is_raised_on_all():
    def program(t):
        def fails(x):
            if t.mesh.rank:
                raise ZeroDivisionError("on rank 1")
            return x

        with pytest.raises(Exception, match="on rank 1"):
            mc.map_overlap(fails, t, 1)
        return mc.map_overlap(lambda x: x, t, 1).local.sum()

    assert on_two(program) == [276.0, 852.0]


def test_function_and_tensor_in_the_other_order():
    def program(t):
        with pytest.raises(LayoutError, match="takes a function and then tensors"):
            mc.map_overlap(t, lambda x: x, 1)

    on_two(program)
