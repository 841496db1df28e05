"""astype, clip and round of tensors against NumPy on the whole arrays."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DTypeError, Layout, ShapeError
from support.reference import numbered, on_ranks, random_numbers
from support.shape_cases import SEEDS, U, check, check_numbers, layout_of, on_a_mesh

DTYPES = ("f8", "?", "i1", "u2", "i8", "c8", "f2", "g", ">i4")


@pytest.mark.parametrize("seed", SEEDS)
def test_values(seed):
    def program(random: Random, mesh):
        for number in range(12):
            shape = tuple(random.randint(0 if random.random() < 0.1 else 1, 7) for _ in range(random.randint(0, 3)))
            x = random_numbers(shape, random.choice(DTYPES), number)
            t = mc.distribute(x, layout_of(random, mesh, shape))
            kind = random.choice([kind for kind in DTYPES if x.dtype.kind != "c" or kind == "c8"])
            check_numbers(t.astype(kind), x.astype(kind))
            if x.dtype != bool:
                check_numbers(t.round(1), x.round(1))
            check_numbers(np.round(t), np.round(x))
            y = random_numbers(shape, random.choice(DTYPES), number + 1)
            low = mc.distribute(y, layout_of(random, mesh, shape))
            check_numbers(np.clip(t, low, None), np.clip(x, y, None))
            check_numbers(np.clip(t, None, low), np.clip(x, None, y))
            if "?" not in (x.dtype.char, y.dtype.char):
                check_numbers(np.clip(t, 0, low), np.clip(x, 0, y))

    with np.errstate(all="ignore"):
        on_a_mesh(seed, program)


@on_ranks(2)
def test_forms():
    mesh = mc.create_mesh([("x", 2)])
    x = numbered((5, 3)) - 4
    t = mc.distribute(x, Layout(["x", U], mesh))
    assert t.astype("i8", copy=False) is t
    copy = t.astype("i8")
    assert not np.may_share_memory(copy.local, t.local)
    check(t.astype("f4", casting="same_kind"), x.astype("f4"))
    if hasattr(np, "astype"):
        check(np.astype(t, "c16"), x.astype("c16"))
    assert not np.may_share_memory(np.round(t).local, t.local)
    check(np.around(t, -1), np.around(x, -1))
    check(t.clip(0, 3), x.clip(0, 3))
    check(t.clip(max=3), x.clip(max=3))
    check(np.clip(t, [0, 1, 2], 5), np.clip(x, [0, 1, 2], 5))
    check(np.clip(x, t, 100), np.clip(x, x, 100))
    check(np.clip(2, t, 100), np.clip(2, x, 100))
    out = mc.zeros((5, 3), "f8", Layout([U, "x"], mesh))
    assert np.clip(t, 0, 1, out=out) is out
    check(out, np.clip(x, 0, 1).astype("f8"))
    assert np.round(t, out=out) is out
    check(out, x.astype("f8"))


@on_ranks(2)
def test_errors():
    t = mc.distribute(numbered((6, 4)), Layout(["x", U], mc.create_mesh([("x", 2)])))
    for call, error, text in [
        (lambda: t.astype("i1", casting="safe"), TypeError, "Cannot cast"),
        (lambda: t.astype(object), DTypeError, "cannot be sharded"),
        (lambda: np.clip(t, 0, 1, out=np.zeros((6, 4))), TypeError, "out= must be a DTensor"),
        (lambda: np.clip(t, 0, 1, where=True), TypeError, "takes no where="),
        (lambda: np.clip(t, np.zeros(5), None), ShapeError, "do not broadcast"),
        (lambda: np.round(t, out=t.local), TypeError, "out= must be a DTensor"),
    ]:
        with pytest.raises(error, match=text):
            call()
