"""Loads that convert or transpose go on in rounds: they use no more memory than they may."""

from itertools import product
from math import prod
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.storage import small, transfer
from support.random_cases import any_case
from support.reference import random_bits
from support.sampling import sampled
from support.saved import RANKS, SIZES, here, mesh_of_4, same

U = mc.UNSHARDED


@pytest.fixture
def sizes(monkeypatch):
    """Collect the bytes of what ranks read to before it goes to the tensor."""
    found, make = [], transfer.new_block

    def new_block(shape, dtype):
        found.append(prod(shape) * np.dtype(dtype).itemsize)
        return make(shape, dtype)

    monkeypatch.setattr(transfer, "new_block", new_block)
    return found


@pytest.mark.parametrize(("order", "seed"), sampled(product("CF", range(4))))
def test_any_layout(order, seed, tmp_path, monkeypatch):
    monkeypatch.setattr(small, "SMALL_ARRAY", 64)
    with mc.simulate(RANKS) as world:
        for number in range(seed * 12, seed * 12 + 12):
            case, random = any_case(number, RANKS, SIZES), Random(number)
            if prod(case.shape) > 20_000:
                continue
            whole = np.array(random_bits(case.shape, np.dtype("i4"), number), order=order)
            dtype, limit = random.choice(["f8", "i2", "i4", ">i4"]), random.choice([None, 2**10, 2**12])
            path = tmp_path / f"t{number}.npy"
            np.save(path, whole)

            def program(case=case, whole=whole, path=path, dtype=dtype, limit=limit):
                loaded = mc.load(path, here(case.target), dtype=dtype, max_scratch_bytes=limit)
                same(loaded, whole.astype(dtype))

            world.run(program)


@pytest.mark.parametrize("specs", [["x", "y"], [U, "x"], [("x", "y"), U], [U, U]], ids=str)
@pytest.mark.parametrize(("order", "dtype"), [("C", "f4"), ("F", "f8"), ("F", "f4")])
def test_rounds_keep_to_the_limit(specs, order, dtype, tmp_path, sizes):
    limit = 2**15
    path, whole = tmp_path / "a.npy", np.arange(400 * 300, dtype="f8").reshape(400, 300)
    np.save(path, np.array(whole, order=order))

    def program():
        layout = Layout(specs, mesh_of_4())
        plan = mc.plan_load(path, layout, dtype=dtype, max_scratch_bytes=limit)
        same(mc.load(path, layout, dtype=dtype, max_scratch_bytes=limit), whole.astype(dtype))
        return plan.peak_scratch_bytes

    with mc.simulate(4) as world:
        planned = max(world.run(program))
    assert 0 < max(sizes) <= limit // 4
    assert max(sizes) <= planned <= limit


def test_a_slice_of_a_tensor_is_filled_in_rounds(tmp_path, sizes):
    limit = 2**15
    path, whole = tmp_path / "a.npy", np.arange(400 * 150, dtype="f8").reshape(400, 150)
    np.save(path, whole)

    def program():
        tensor = mc.zeros((400, 300), "f8", Layout(["x", U], mesh_of_4()))
        mc.load(path, out=tensor[:, 100:250], max_scratch_bytes=limit)
        same(tensor, np.pad(whole, ((0, 0), (100, 50))))

    with mc.simulate(4) as world:
        world.run(program)
    assert 0 < max(sizes) <= limit // 4
