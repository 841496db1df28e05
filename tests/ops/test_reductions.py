"""Copies, numbers and the memory of operations; `test_numpy` compares reductions with NumPy."""

import gc
import weakref

import numpy as np
import pytest

import meshcomm as mc
from support.gradient_cases import on
from support.operands import U, check, mesh_of, random
from support.reference import on_ranks

# -- reductions -------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_copies_and_numbers():
    mesh = mesh_of(2)
    a = random(4, 3)
    t = mc.distribute(a, mc.Layout(["x", U], mesh))
    copy = np.copy(t)
    check(copy, a)
    assert not np.shares_memory(copy.local, t.local)
    assert np.result_type(t, np.complex64) == np.complex128
    assert float(t.sum()) == t.sum().item() == complex(t.sum())
    assert int(mc.full((), 3, "f8", mc.Layout([], mesh))) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(t)


def test_memory_is_not_kept():
    """What is remembered of a call holds no block."""

    def program():
        mesh = mesh_of(2)
        alive = []
        for _ in range(2):
            t = mc.distribute(random(4, 4), mc.Layout(["x", U], mesh))
            u = t.T @ t + t.sum(axis=0) + t.max()
            alive += [weakref.ref(t.local), weakref.ref(u.local)]
            del t, u
        gc.collect()
        return [ref() is None for ref in alive]

    assert on(2, program) == [[True] * 4] * 2
