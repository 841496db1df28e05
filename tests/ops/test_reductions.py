"""Reductions of DTensors against NumPy on the whole arrays."""

import gc
import weakref
from itertools import product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import _arguments
from meshcomm.errors import ShapeError
from support.gradient_cases import on
from support.operands import MESHES, U, check, mesh_of, random
from support.reference import tuple_layouts
from support.sampling import sampled

# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_reductions_of_every_layout(sizes):
    def program():
        mesh = mesh_of(*sizes)
        for shape in [(5, 3), (2, 2), (1, 4), (7,), ()]:
            a = random(*shape)
            axes = [None, *range(-len(shape), len(shape)), tuple(range(len(shape)))]
            for layout, axis, keepdims in sampled(product(tuple_layouts(mesh, len(shape)), axes, (False, True)), 8):
                t = mc.distribute(a, layout)
                for name in ("sum", "mean", "max", "min"):
                    result = getattr(t, name)(axis=axis, keepdims=keepdims)
                    check(result, getattr(a, name)(axis=axis, keepdims=keepdims))
                    gone = _arguments.normalised_axes(axis, len(shape))
                    kept = [names for i, names in enumerate(layout.axes) if i not in gone]
                    assert [n for i, n in enumerate(result.layout.axes) if not (keepdims and i in gone)] == kept

    on(MESHES[sizes], program)


def test_reductions_of_every_dtype():
    def program():
        layout = mc.Layout(["x", U], mesh_of(3))
        for dtype in ("?", "i1", "u2", "i8", "f2", "f4", "f8", "g", "c8", "c16", ">f8", ">i2"):
            a = np.abs(random(4, 3)).astype(dtype)
            t = mc.distribute(a, layout)
            rtol = 1e-2 if dtype == "f2" else 1e-5
            for axis in (None, 0, 1, (0, 1)):
                check(t.sum(axis), a.sum(axis), rtol)
                check(t.mean(axis), a.mean(axis), rtol)
                check(t.max(axis), a.max(axis).astype(a.dtype.newbyteorder("=")))
                check(t.min(axis), a.min(axis).astype(a.dtype.newbyteorder("=")))
            check(t.sum(0, dtype="c8"), a.sum(0, dtype="c8"), rtol)
            check(t.mean(0, dtype="c16"), a.mean(0, dtype="c16"), rtol)
        days = np.arange(6).reshape(3, 2).astype("M8[D]")
        assert mc.distribute(days, layout).max(0).local.tolist() == days.max(0).tolist()

    with np.errstate(all="ignore"):
        on(3, program)


def test_nan_is_the_extreme():
    def program():
        a = np.array([1.0, np.nan, 3.0])
        t = mc.distribute(a, mc.Layout(["x"], mesh_of(3)))
        return np.isnan([t.max().item(), t.min().item()]).all()

    assert all(on(3, program))


def test_empty_blocks_and_axes():
    def program():
        mesh = mesh_of(4)
        rows = mc.Layout(["x", U], mesh)
        a = -np.abs(random(2, 3)) - 1  # two of four ranks hold nothing: what they have is no zero
        t = mc.distribute(a, rows)
        check(t.max(axis=0), a.max(axis=0))
        check(t.max(), a.max())
        check((-t).min(), (-a).min())
        check(t.max(axis=1), a.max(axis=1))
        none = mc.distribute(np.zeros((0, 3)), rows)
        check(none.sum(axis=0), np.zeros(3))
        check(none.sum(), np.float64(0))
        check(none.max(axis=1), np.zeros(0))
        for axis in (0, None, (0, 1)):
            with pytest.raises(ShapeError, match=r"over axis .* of shape \(0, 3\) has no elements"):
                none.max(axis)
        with np.errstate(invalid="ignore"):
            assert np.isnan(none.mean(axis=0).local).all()

    on(4, program)


def test_results_are_the_same_bits_everywhere():
    def program():
        mesh = mesh_of(2, 3)
        a = random(11, 7, dtype="f4")
        found = [
            mc.distribute(a, layout).sum().local.tobytes()
            for layout in (mc.Layout(["x", U], mesh), mc.Layout(["x", "y"], mesh), mc.Layout([U, ("y", "x")], mesh))
        ]
        product = mc.distribute(a, mc.Layout([U, "y"], mesh)) @ mc.distribute(a.T, mc.Layout(["y", U], mesh))
        return [*found, product.local.tobytes()]

    results = on(6, program)
    assert all(result == results[0] for result in results)


def test_functions_of_numpy():
    def program():
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

    on(2, program)


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
