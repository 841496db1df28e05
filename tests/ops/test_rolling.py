"""flip, roll, take, repeat and tile of tensors against NumPy on the whole arrays, and what moves."""

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout, ShapeError
from support.gradient_cases import on
from support.reference import as_raw, block_of, numbered, on_ranks, random_bits, same_bits
from support.sampling import with_seeds
from support.shape_cases import DTYPES, SEEDS, U, check, layout_of, on_a_mesh


def shape_of(random, least=1):
    return tuple(random.randint(0 if random.random() < 0.05 else 1, 9) for _ in range(random.randint(least, 3)))


def bytes_of(plan):
    """The bytes that all devices receive."""
    return sum(plan.for_device(device).bytes_moved for device in range(len(plan.ranks)))


def tensors(random, mesh, count):
    for number in range(count):
        shape = shape_of(random)
        x = random_bits(shape, random.choice(DTYPES), number)
        yield mc.distribute(x, layout_of(random, mesh, shape)), x


# -- flip -------------------------------------------------------------------------------------------------------------


@with_seeds(on_a_mesh, SEEDS)
def test_flip(random, mesh):
    slices = [slice(None, None, -1), slice(None), slice(5, 1, -2)]
    for t, x in tensors(random, mesh, 14):
        axes = tuple(random.sample(range(-x.ndim, 0), random.randint(0, x.ndim)))
        for axis in (None, axes, random.randrange(-x.ndim, x.ndim)):
            made = np.flip(t, axis)
            assert made.layout == t.layout
            check(made, np.flip(x, axis))
        check(np.flipud(t), np.flipud(x))
        if x.ndim > 1:
            check(np.fliplr(t), np.fliplr(x))
        where = tuple(random.choice(slices) for _ in range(x.ndim))
        check(t[where].copy(), x[where].copy())


def test_each_element_of_a_flip_moves_once(monkeypatch):
    """The plan from flipped blocks to their devices has the bytes that change their device, and no more."""
    plans = []
    relayout = mc.ops.rolling.relayout

    def counted(tensor, layout):
        plans.append(mc.plan_relayout(tensor.shape, tensor.dtype, tensor.layout, layout))
        return relayout(tensor, layout)

    monkeypatch.setattr(mc.ops.rolling, "relayout", counted)

    def program(spec):
        mesh = mc.create_mesh([("x", 3)])
        x = np.arange(12)
        t = mc.distribute(x, Layout([spec], mesh))
        check(np.flip(t), x[::-1])
        owner = np.empty(12, int)
        for device in range(3):
            owner[block_of(x, t.layout, device)] = device
        return int((owner != owner[::-1]).sum())

    for spec in ("x", mc.Cuts("x", (0, 1, 4, 12)), mc.Cyclic("x", 2), mc.Cyclic("x", 3, 2)):
        plans.clear()
        moved = on(3, program, spec)[0]
        assert len(plans) == 3, spec
        assert {bytes_of(plan) for plan in plans} == {8 * moved}, spec


# -- roll -------------------------------------------------------------------------------------------------------------


@with_seeds(on_a_mesh, SEEDS)
def test_roll(random, mesh):
    for t, x in tensors(random, mesh, 5):
        shift = random.choice([0, 1, -1, 2, 7, -20])
        made = np.roll(t, shift)
        assert made.layout == t.layout
        check(made, np.roll(x, shift))
        axis = random.randrange(-x.ndim, x.ndim)
        made = np.roll(t, shift, axis)
        assert made.layout == t.layout
        check(made, np.roll(x, shift, axis))
        axes = tuple(random.sample(range(x.ndim), random.randint(1, x.ndim)))
        shifts = tuple(random.randint(-4, 4) for _ in axes)
        check(np.roll(t, shifts, axes), np.roll(x, shifts, axes))
        check(np.roll(t, 3, axes), np.roll(x, 3, axes))
        check(np.roll(t, (1, 2), 0), np.roll(x, (1, 2), 0))
        check(np.roll(t, (1, 2)), np.roll(x, (1, 2)))


def test_a_roll_moves_only_what_crosses_blocks(relayouts):
    def program():
        x = numbered((100, 10))
        t = mc.distribute(x, Layout(["x", U], mc.create_mesh([("x", 4)])))
        check(np.roll(t, 1, 0), np.roll(x, 1, 0))

    on(4, program)
    assert sum(relayouts) == 4 * 4 * 80, "one row of each block, as each rank counts"


# -- repeat, tile -----------------------------------------------------------------------------------------------------


@with_seeds(on_a_mesh, SEEDS)
def test_repeat_and_tile(random, mesh):
    for t, x in tensors(random, mesh, 5):
        times = random.choice([0, 1, 2, 3])
        axis = random.randrange(-x.ndim, x.ndim)
        check(np.repeat(t, times, axis), np.repeat(x, times, axis))
        check(np.repeat(t, times), np.repeat(x, times))
        each = [random.randint(0, 3) for _ in range(x.shape[axis])]
        check(np.repeat(t, each, axis), np.repeat(x, each, axis))
        for reps in (times, (2, 1), (1,) * x.ndim, tuple(random.randint(0, 2) for _ in range(4))):
            check(np.tile(t, reps), np.tile(x, reps))


@on_ranks(2)
def test_one_number_of_repeats_moves_nothing():
    mesh = mc.create_mesh([("x", 2)])
    for spec, expected in [("x", "x"), (mc.Cuts("x", (0, 1, 6)), mc.Cuts("x", (0, 3, 18)))]:
        t = mc.distribute(np.arange(6), Layout([spec], mesh))
        assert np.repeat(t, 3).layout == Layout([expected], mesh)
    t = mc.distribute(np.arange(6), Layout([mc.Cyclic("x", 1)], mesh))
    assert np.repeat(t, 3, 0).layout == Layout([mc.Cyclic("x", 3)], mesh)


@on_ranks(2)
def test_errors():
    t = mc.distribute(numbered((6, 4)), Layout(["x", U], mc.create_mesh([("x", 2)])))
    flat = mc.distribute(numbered((4,)), Layout(["x"], t.mesh))
    for call, error, text in [
        (lambda: np.flip(t, 2), ShapeError, "axis 2 is out of range"),
        (lambda: np.flip(t, (0, 0)), ShapeError, "names an axis twice"),
        (lambda: np.fliplr(flat), ShapeError, "fliplr takes a tensor of 2 axes or more"),
        (lambda: np.roll(t, 1, 2), ShapeError, "axis 2 is out of range"),
        (lambda: np.roll(t, (1, 2, 3), (0, 1)), ShapeError, "one shift for each axis"),
        (lambda: np.roll(t, 1.5), TypeError, "must be an integer"),
        (lambda: np.repeat(t, -1, 0), ShapeError, "not negative"),
        (lambda: np.repeat(t, [1, 2], 0), ShapeError, "one for each of 6"),
        (lambda: np.repeat(t, 1.5, 0), TypeError, "Cannot cast"),
        (lambda: np.tile(t, -1), ShapeError, "0 or more"),
    ]:
        with pytest.raises(error, match=text):
            call()


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
