"""flip, roll, repeat and tile of tensors: what moves, errors, bits; `test_numpy` compares them with NumPy."""

import numpy as np

import meshcomm as mc
from meshcomm import Layout
from support.reference import as_raw, block_of, numbered, on_ranks, random_bits, same_bits
from support.tensors import check, on

U = mc.UNSHARDED


# -- flip -------------------------------------------------------------------------------------------------------------


def test_each_element_of_a_flip_moves_once():
    """Only elements that change their device are received, and none of them twice."""

    def program(spec):
        mesh = mc.create_mesh([("x", 3)])
        x = np.arange(12)
        t = mc.distribute(x, Layout([spec], mesh))
        with mc.count() as c:
            flipped = np.flip(t)
        check(flipped, x[::-1])
        owner = np.empty(12, int)
        for device in range(3):
            owner[block_of(x, t.layout, device)] = device
        return c.bytes, 8 * int((owner[x[::-1]] != owner).sum())

    for spec in ("x", mc.Cuts("x", (0, 1, 4, 12)), mc.Cyclic("x", 2), mc.Cyclic("x", 3, 2)):
        received, changing = zip(*on(3, program, spec), strict=True)
        assert sum(received) == changing[0] > 0, spec


# -- roll -------------------------------------------------------------------------------------------------------------


def test_a_roll_moves_only_what_crosses_blocks():
    def program():
        x = numbered((100, 10))
        t = mc.distribute(x, Layout(["x", U], mc.create_mesh([("x", 4)])))
        with mc.count() as c:
            rolled = np.roll(t, 1, 0)
        check(rolled, np.roll(x, 1, 0))
        return c.messages, c.bytes

    assert on(4, program) == [(1, 80)] * 4, "one row for each block"


# -- repeat, tile -----------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_one_number_of_repeats_moves_nothing():
    mesh = mc.create_mesh([("x", 2)])
    for spec, expected in [("x", "x"), (mc.Cuts("x", (0, 1, 6)), mc.Cuts("x", (0, 3, 18)))]:
        t = mc.distribute(np.arange(6), Layout([spec], mesh))
        assert np.repeat(t, 3).layout == Layout([expected], mesh)
    t = mc.distribute(np.arange(6), Layout([mc.Cyclic("x", 1)], mesh))
    assert np.repeat(t, 3, 0).layout == Layout([mc.Cyclic("x", 3)], mesh)


@on_ranks(2)
def test_bits_of_records_stay():
    mesh = mc.create_mesh([("x", 2)])
    kind = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    x = random_bits((6, 2), kind)
    t = mc.distribute(x, Layout(["x", U], mesh))
    calls = [
        np.flip,
        lambda y: np.roll(y, 2, 0),
        lambda y: np.roll(y, 1, 1),
        lambda y: np.take(y, [1, 4], 0),
        lambda y: np.repeat(y, 2, 0),
        lambda y: np.concatenate([y, y]),
        lambda y: np.concatenate([y, y], 1),
        lambda y: np.pad(y, 1, mode="edge"),
    ]
    for call in calls:
        assert same_bits(as_raw(call(t).to_numpy()), call(as_raw(x)))
