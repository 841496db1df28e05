"""Reductions of DTensors against NumPy on the whole arrays."""

import gc
import weakref

import numpy as np
import pytest

import meshcomm as mc
from support.gradient_cases import on
from support.operands import U, check, mesh_of, random
from support.reference import on_ranks

# -- reductions -------------------------------------------------------------------------------------------------------


def test_reductions_in_another_dtype():
    def program():
        layout = mc.Layout(["x", U], mesh_of(3))
        for dtype in ("?", "i1", "u2", "i8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", ">i2"):
            a = np.abs(random(4, 3)).astype(dtype)
            t = mc.distribute(a, layout)
            rtol = 1e-2 if dtype == "f2" else 1e-5
            check(t.sum(0, dtype="c8"), a.sum(0, dtype="c8"), rtol)
            check(t.mean(0, dtype="c16"), a.mean(0, dtype="c16"), rtol)
        days = np.arange(6).reshape(3, 2).astype("M8[D]")
        assert mc.distribute(days, layout).max(0).local.tolist() == days.max(0).tolist()

    with np.errstate(all="ignore"):
        on(3, program)


@on_ranks(2)
def test_functions_of_numpy():
    mesh = mesh_of(2)
    a = random(4, 3)
    t = mc.distribute(a, mc.Layout(["x", U], mesh))
    for name in ("sum", "mean", "max", "min", "amax", "amin"):
        check(getattr(np, name)(t), getattr(np, name)(a))
        check(getattr(np, name)(t, axis=-1, keepdims=True), getattr(np, name)(a, axis=-1, keepdims=True))
        check(getattr(np, name)(t, 0), getattr(np, name)(a, 0))
    check(np.max(t, 0, None, True), np.max(a, 0, None, True))
    check(np.sum(t, 0, "f4", None, True), np.sum(a, 0, "f4", None, True), 1e-6)
    check(np.transpose(t), a.T)
    check(np.transpose(t, (0, 1)), a)
    check(np.dot(t, t.T), a @ a.T)
    check(np.zeros_like(t), np.zeros_like(a))
    check(np.ones_like(t), np.ones_like(a))
    copy = np.copy(t)
    check(copy, a)
    assert not np.shares_memory(copy.local, t.local)
    assert (np.shape(t), np.ndim(t), np.size(t), np.iscomplexobj(t)) == ((4, 3), 2, 12, False)
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
