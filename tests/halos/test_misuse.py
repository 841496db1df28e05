"""What a program may get wrong with halos, and the errors."""

import copy

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import CollectiveMismatch, DTypeError, LayoutError, MeshError


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


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_second_update_before_the_wait_is_an_error_on_any_number_of_ranks(ranks):
    def program():
        h = mc.halo(mc.zeros(6, "f8", mc.Layout(["x"], mc.create_mesh([("x", ranks)]))), 1)
        for over in (lambda request: request.wait(), lambda request: h.wait(), tested):
            request = h.start_update()
            with pytest.raises(MeshError, match="an update of this halo is in flight"):
                h.start_update()
            over(request)
        h.update()

    def tested(request):
        while not request.test():
            pass

    with mc.simulate(ranks) as world:
        world.run(program)


def test_an_update_whose_request_is_lost_can_be_waited_for():
    def program(t):
        h = mc.halo(t, {0: 1}, "periodic")
        h.wait()  # nothing is in flight
        h.inner[...] += 1
        h.start_update()  # and the request is lost
        for call in (h.update, h.reduce, h.start_update, lambda: mc.update_halos([h])):
            with pytest.raises(MeshError, match=r"or by the wait\(\) of the halo"):
                call()
        h.wait()
        h.wait()
        np.testing.assert_array_equal(h.local, np.pad(whole + 1, [(1, 1), (0, 0)], "wrap")[h.mesh.rank * 3 :][:5])
        h.update()
        return True

    whole = np.arange(48.0).reshape(6, 8)
    assert on_two(program) == [True, True]


FILTERS = {
    "sigma": lambda t, rank: mc.ndimage.gaussian_filter(t, 1.0 + rank / 100),
    "weights": lambda t, rank: mc.ndimage.convolve(t, [[1, rank, 3]] * 3),
    "an array": lambda t, rank: mc.ndimage.correlate1d(t, np.array([1, rank, 3]), 0),
    "percentile": lambda t, rank: mc.ndimage.percentile_filter(t, 40 + rank, size=3),
    "rank": lambda t, rank: mc.ndimage.rank_filter(t, rank, size=3),
    "output": lambda t, rank: mc.ndimage.uniform_filter(t, 3, ["f8", "f4"][rank]),
    "function": lambda t, rank: [mc.ndimage.minimum_filter, mc.ndimage.maximum_filter][rank](t, 3),
    "trim": lambda t, rank: mc.map_overlap(lambda x: x, t, 1, 0, trim=rank == 0),
    "names": lambda t, rank: mc.map_overlap(lambda x, **other: x, t, 1, **{"ab"[rank]: 1}),
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("name", FILTERS)
def test_arguments_that_differ_between_ranks_are_found_out(name, known):
    """Also those that change no message, in a first call and in a later one."""
    call = FILTERS[name]

    def program(t):
        for _ in range(2 if known else 0):
            call(t, 0)
            call(t, 1)
        call(t, t.mesh.rank)

    pytest.importorskip("scipy")
    with pytest.raises(CollectiveMismatch):
        on_two(program)


@pytest.mark.usefixtures("every_call_is_checked")
def test_the_message_names_the_filter():
    pytest.importorskip("scipy")
    with pytest.raises(CollectiveMismatch, match=r"rank 1: gaussian_filter1d\(.*sigma=1.01"):
        on_two(lambda t: FILTERS["sigma"](t, t.mesh.rank))


def test_what_is_said_differently_is_the_same_call():
    def program(t):
        rank = t.mesh.rank
        mc.ndimage.gaussian_filter(t, [1, np.int64(1)][rank])
        mc.ndimage.generic_filter(t, [lambda window: window.sum(), np.sum][rank], size=3)
        mc.map_overlap(lambda x, number: x + number, t, 1, number=rank)  # values may differ
        mc.barrier(t.mesh)
        return True

    pytest.importorskip("scipy")
    assert on_two(program) == [True, True]


def test_a_filter_that_moves_nothing_is_for_one_rank():
    """Along an axis that is whole: nobody has to make the same call."""

    def program(t):
        if t.mesh.rank == 0:
            mc.ndimage.gaussian_filter1d(t, 1.0, axis=1)
        mc.ndimage.gaussian_filter1d(t, 1.0, axis=0)
        return True

    pytest.importorskip("scipy")
    assert on_two(program) == [True, True]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("kind", ["edt", "cdt", "bf"])
def test_all_ranks_refuse_distances_between_records_also_those_without_elements(kind, ranks):
    def program():
        t = mc.zeros((2,), "i4, f8", mc.Layout(["x"], mc.create_mesh([("x", -1)])))
        with pytest.raises(TypeError):
            getattr(mc.ndimage, f"distance_transform_{kind}")(t)
        mc.barrier(t.mesh)

    with mc.simulate(ranks) as world:
        world.run(program)
