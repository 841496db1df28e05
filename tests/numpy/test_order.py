"""Sorts of tensors: long ones, balance, in place, errors; `test_numpy` compares them with NumPy."""

import gc
import tracemalloc
from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.blocks.whole import whole_along
from meshcomm.errors import ShapeError
from meshcomm.numpy.order.order import in_flat_order
from meshcomm.numpy.order.samplesort import in_order
from support.numpy_operands import SORTED, any_shape, values
from support.reference import on_ranks, same_numbers
from support.sampling import sampled, with_seeds
from support.tensors import check, layout_of, on, on_some_ranks

U = "unsharded"

# -- sorts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "dtype"), sampled(product([2, 3, 5, 8], SORTED[1:]), 12))
def test_sorts_of_long_tensors(ranks, dtype):
    """Many elements for each sample, in blocks of very different lengths."""

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        n, random = 3000, Random(ranks)
        for few in (False, True):
            a = values(Random(ranks), (n,), dtype, few)
            for spec in ("x", mc.Cuts("x", sizes=[0] * (ranks - 2) + [n - 7, 7]), mc.Cyclic("x", 3, ranks - 1)):
                t = mc.distribute(a, Layout([spec], mesh))
                check(np.sort(t), np.sort(a, kind="stable"))  # by default NumPy 2.4.6 sorts float16 wrongly
                for function in (np.sort, np.argsort):
                    check(function(t, kind="stable"), function(a, kind="stable"), same_numbers)
            t = mc.distribute(np.sort(a)[:: random.choice([1, -1])], Layout(["x"], mesh))
            check(np.sort(t), np.sort(a, kind="stable"))

    on(ranks, program)


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("kind", ["random", "all equal", "two values", "nan", "sorted", "reversed", "steps"])
def test_no_rank_is_overloaded(kind, stable):
    ranks, n = 6, 30_000
    random = np.random.default_rng(0).random(n)
    a = {
        "random": random,
        "all equal": np.full(n, 3.0),
        "two values": np.where(random < 0.3, 1.0, 2.0),
        "nan": np.where(random < 0.8, np.nan, random),
        "sorted": np.sort(random),
        "reversed": -np.sort(random),
        "steps": np.arange(n) % 7.0,
    }[kind]

    def program():
        mesh = mc.create_mesh([("x", ranks)])
        t = mc.distribute(a, Layout([mc.Cuts("x", sizes=[1, 4999, 0, 20_000, 3000, 2000])], mesh))
        found = in_order("sort", t, stable=stable, indexed=False).values
        np.testing.assert_array_equal(found.to_numpy(), np.sort(a))
        return found.local.size

    assert max(on(ranks, program)) < 1.1 * n / ranks


def test_sorts_keep_no_memory():
    """What a sort allocates is free after it, not only after the next garbage collection."""

    def program(times):
        t = mc.distribute(np.random.default_rng(0).random(2**17), Layout(["x"], mc.create_mesh([("x", 2)])))
        for _ in range(times):
            np.sort(t)

    def most(times):
        tracemalloc.reset_peak()
        world.run(program, times)
        return tracemalloc.get_traced_memory()[1]

    gc.disable()
    tracemalloc.start()
    try:
        with mc.simulate(2) as world:
            once = [most(1), most(1)][1]  # the first one imports what a sort needs
            assert most(4) < once + 2**18
    finally:
        tracemalloc.stop()
        gc.enable()


@on_ranks(3)
def test_sort_in_place():
    mesh = mc.create_mesh([("x", 3)])
    a = values(Random(1), (7, 5), "f8", few=False)
    for specs in (["x", U], [U, "x"], [mc.Cyclic("x", 2), U]):
        for axis in (0, 1, -1):
            t = mc.distribute(a, Layout(specs, mesh))
            block = t.local
            assert t.sort(axis) is None
            assert t.local is block
            check(t, np.sort(a, axis))
    layout = Layout(["x", U], mesh)
    wide = np.zeros(layout.block_shape((7, 10), mesh.rank))
    t = mc.DTensor(wide[:, ::2], layout, (7, 5), np.dtype(float))
    t.local[...] = mc.distribute(a, layout).local
    t.sort(0, kind="stable")
    np.testing.assert_array_equal(t.to_numpy(), np.sort(a, 0))
    assert not wide[:, 1::2].any()
    check(np.sort(t, 1), np.sort(np.sort(a, 0), 1))
    check(t.argsort(0, kind="stable"), np.argsort(np.sort(a, 0), 0, kind="stable"))


@on_ranks(3)
def test_fields_are_compared_in_turn():
    mesh = mc.create_mesh([("x", 3)])
    a = np.zeros(50, [("key", "i4"), ("name", "U1")])
    a["key"], a["name"] = np.arange(50) % 5, list("edcba") * 10
    t = mc.distribute(a, Layout(["x"], mesh))
    assert np.sort(t).to_numpy().tolist() == np.sort(a).tolist()
    check(np.argsort(t, kind="stable"), np.argsort(a, kind="stable"))


# -- errors -----------------------------------------------------------------------------------------------------------


@on_ranks(3)
def test_a_block_that_does_not_fit_is_an_error_on_all_ranks():
    mesh = mc.create_mesh([("x", 3)])
    local = np.zeros(2 + (mesh.rank == 1))
    t = mc.DTensor(local, Layout(["x"], mesh), (6,), np.dtype(float))
    with pytest.raises(ShapeError, match=r"the block is \(3,\) float64, but by its layout"):
        np.sort(t)
    check(np.sort(mc.distribute(np.arange(6.0), t.layout)), np.arange(6.0))


# -- whole axes -------------------------------------------------------------------------------------------------------


@with_seeds(on_some_ranks, sampled(range(60), 7))
def test_whole_axes(random, mesh):
    for _ in range(10):
        shape = any_shape(random, 1)
        a = values(random, shape, "i4")
        t = mc.distribute(a, layout_of(random, mesh, shape))
        axes = random.sample(range(len(shape)), random.randint(0, len(shape)))
        whole = whole_along(t, axes)
        check(whole, a)
        assert all(whole.layout.num_shards(axis) == 1 for axis in axes)
        if all(t.layout.num_shards(axis) == 1 for axis in axes):
            assert whole is t
        if any(n > 1 for axis, n in enumerate(shape) if axis not in axes):
            assert prod(whole.layout.shape) == prod(t.layout.shape), "as many blocks as before"
        flat = in_flat_order(t, "test") if a.size else None
        if flat is not None and flat.local is not None:
            device = mesh.rank
            index = np.arange(a.size).reshape(shape)
            mine = mc.distribute(index, flat.layout).local.reshape(-1)
            assert (np.diff(mine) == 1).all(), f"{flat.layout} of {shape} on {device}"
