"""Arithmetic on DTensors against NumPy on the whole arrays: any layouts, uneven and empty blocks."""

import gc
import operator
import weakref
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import tuple_layouts

import meshcomm as mc
from meshcomm import arithmetic
from meshcomm.errors import CollectiveMismatch, DTypeError, LayoutError, MeshError, ShapeError

U = mc.UNSHARDED
MESHES = {(2,): 2, (3,): 3, (2, 2): 4, (2, 3): 6, (2, 1, 2): 4}


def on(size, program, *args):
    with mc.simulate(size) as world:
        return world.run(program, *args)


def mesh_of(*sizes):
    return mc.create_mesh(list(zip("xyz", sizes, strict=False)))


def check(tensor, expected, rtol=1e-12):
    """Compare the block of this rank, and what describes it, with the whole array."""
    expected = np.asarray(expected)
    assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
    device = tensor.mesh.rank
    if device is None:
        assert tensor.local is None
        return
    assert type(tensor.local) is np.ndarray
    assert tensor.local.flags.c_contiguous
    block = expected[(..., *tensor.layout.block_slices(expected.shape, device))]
    np.testing.assert_allclose(tensor.local, block, rtol=rtol)
    assert tensor.local.shape == block.shape


def random(*shape, dtype="f8"):
    values = np.random.default_rng(sum(shape)).normal(size=shape) * 5
    return np.asarray(values).astype(dtype)


# -- how operands meet ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "meeting"),
    [
        (["x", U], ["x", U], ["x", U]),
        (["x", U], [U, "y"], ["x", "y"]),
        (["x", U], [U, "x"], ["x", U]),
        ([U, U], ["y", "x"], ["y", "x"]),
        ([U, U], [U, U], [U, U]),
        (["x", U], ["y", U], ["x", U]),
        ([U, "x"], [("x", "y"), U], ["y", "x"]),
        ([("x", "y"), U], [U, "y"], [("x", "y"), U]),
    ],
)
def test_the_rule_by_which_operands_meet(a, b, meeting):
    def program():
        mesh = mesh_of(2, 2)
        t, u = (mc.distribute(random(5, 3), mc.Layout(specs, mesh)) for specs in (a, b))
        check(t + u, random(5, 3) * 2)
        return (t + u).layout.sharding_specs

    assert on(4, program) == [meeting] * 4


def test_an_axis_that_is_stretched_counts_as_unsharded():
    def program():
        mesh = mesh_of(2)
        t = mc.distribute(random(1, 3), mc.Layout(["x", U], mesh))
        u = mc.distribute(random(4, 1), mc.Layout([U, "x"], mesh))
        check(t * u, random(1, 3) * random(4, 1))
        return (t * u).layout.sharding_specs, (t * t).layout.sharding_specs

    assert on(2, program) == [([U, U], ["x", U])] * 2


def test_equal_layouts_move_nothing():
    def program():
        mesh = mesh_of(2, 2)
        x = mc.distribute(random(4, 4), mc.Layout(["x", "y"], mesh))
        z = mc.relayout_like(mc.ones((4, 4), "f8", mc.Layout([U, U], mesh)), x)  # the example of the page
        return (x + z) * 2 - np.float32(3) / x, mc.ones((4,), "f8", mc.Layout([U], mesh)) * x

    with mc.simulate(4) as world:
        results = world.run(program)
        assert world.bytes_moved == [0] * 4
    assert all(a.layout == b.layout for a, b in results)


@pytest.mark.parametrize("sizes", MESHES)
def test_every_pair_of_layouts(sizes):
    def program():
        mesh = mesh_of(*sizes)
        for a, b in [
            ((5, 3), (5, 3)),
            ((5, 3), (3,)),
            ((5, 1), (1, 3)),
            ((4,), (2, 1)),
            ((2, 2), ()),
            ((0, 2), (1, 2)),
        ]:
            pairs = list(product(tuple_layouts(mesh, len(a)), tuple_layouts(mesh, len(b))))
            for one, other in pairs[:: 1 + len(pairs) // 150]:
                check(mc.distribute(random(*a), one) - mc.distribute(random(*b), other), random(*a) - random(*b))

    on(MESHES[sizes], program)


SHAPES = [
    ((), ()),
    ((3,), (1,)),
    ((2, 5), (5,)),
    ((3, 1), (1, 4)),
    ((2, 1, 3), (4, 1)),
    ((0,), (1,)),
    ((2, 3), (2, 3)),
]
UFUNCS = [np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.hypot, np.less, np.equal, np.logical_or]
KINDS = ["f8", "f4", "f2", "i4", "u1", "c8", "?"]


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data())
def test_elementwise_functions_of_any_operands(data):
    sizes = data.draw(st.sampled_from(list(MESHES)))
    shapes = data.draw(st.sampled_from(SHAPES).flatmap(st.permutations))
    ufunc = data.draw(st.sampled_from(UFUNCS))
    arrays = [np.abs(random(*shape)).astype(data.draw(st.sampled_from(KINDS))) + 1 for shape in shapes]
    kinds = data.draw(st.sampled_from(["tt", "tp", "pt", "ts", "st"]))
    picks = [data.draw(st.integers(0, 10**6)) for _ in shapes]
    scalar = data.draw(st.sampled_from([2, 1.5, True, 1j, np.float32(2), np.int64(3), np.array(1.25)]))

    def program():
        mesh = mesh_of(*sizes)
        operands, whole = [], []
        for kind, array, pick in zip(kinds, arrays, picks, strict=True):
            layouts = list(tuple_layouts(mesh, array.ndim))
            tensor = mc.distribute(array, layouts[pick % len(layouts)])
            operands.append({"t": tensor, "p": array, "s": scalar}[kind])
            whole.append(scalar if kind == "s" else array)
        with np.errstate(all="ignore"):
            try:
                expected = ufunc(*whole)
            except TypeError:
                with pytest.raises(TypeError):
                    ufunc(*operands)
                return
            check(ufunc(*operands), expected, rtol=1e-2 if np.asarray(expected).dtype == "f2" else 1e-6)

    on(MESHES[sizes], program)


def test_operators():
    def program():
        mesh = mesh_of(2, 2)
        a, b = random(5, 3), np.abs(random(3)) + 1
        t, u = mc.distribute(a, mc.Layout(["x", "y"], mesh)), mc.distribute(b, mc.Layout(["x"], mesh))
        for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"):
            operation = getattr(operator, name)
            check(operation(t, u), operation(a, b))
            check(operation(u, t), operation(b, a))
            check(operation(t, 2), operation(a, 2))
            check(operation(2, t), operation(2, a))
            check(operation(t, b), operation(a, b))
            check(operation(b, t), operation(b, a))
        check(-t, -a)
        check(abs(t), abs(a))
        check(t**2, a**2)
        check(2**u, 2**b)
        check(+t, a)
        check(~(t > 0), ~(a > 0))
        check((t > 0) & (u > 2), (a > 0) & (b > 2))
        three = [1, 2, 3]
        check(t + three, a + three)
        check(three * t, three * a)
        for got, expected in zip(divmod(t, u), divmod(a, b), strict=True):
            check(got, expected)
        for got, expected in zip(np.modf(t), np.modf(a), strict=True):
            check(got, expected)
        check(np.where(t > 0, t, u), np.where(a > 0, a, b))
        check(np.where(t > 0, 1, 0.5), np.where(a > 0, 1, 0.5))
        check(np.real(t * 1j), np.real(a * 1j))
        check(np.imag(t * 1j), a)
        check(np.conj(t * 1j), -a * 1j)

    on(4, program)


def test_numbers_keep_the_promotion_of_numpy():
    def program():
        layout = mc.Layout(["x"], mesh_of(2))
        for dtype in ("f4", "i1", "f2", "c8", "?"):
            a = np.ones(3, dtype)
            t = mc.distribute(a, layout)
            for number in (1, 1.0, 1j, np.float64(1), np.int8(1), np.array(1.0), np.array([1.0]), True):
                assert (t + number).dtype == (a + number).dtype, (dtype, number)
            assert (t / 2).dtype == (a / 2).dtype
            assert np.add(t, 1, dtype="c16").dtype == "c16"
        with pytest.raises(OverflowError):
            mc.distribute(np.ones(3, "u1"), layout) + 300

    on(2, program)


def test_in_place_and_out():
    def program():
        mesh = mesh_of(2, 2)
        a, b = random(5, 3), random(5, 1)
        t, u = mc.distribute(a, mc.Layout(["x", U], mesh)), mc.distribute(b, mc.Layout(["y", "x"], mesh))
        block, before = t.local, t
        t += u
        t *= 2
        t -= a
        assert t is before
        assert t.local is block
        check(t, (a + b) * 2 - a)
        out = mc.zeros((5, 3), "f8", mc.Layout(["y", "x"], mesh))
        block = out.local
        assert np.multiply(t, u, out=out) is out
        assert out.local is block
        check(out, ((a + b) * 2 - a) * b)
        parts = tuple(mc.zeros((5, 3), "f8", mc.Layout(specs, mesh)) for specs in (["x", U], [U, "y"]))
        assert np.modf(out, out=parts) is not None
        for part, expected in zip(parts, np.modf(((a + b) * 2 - a) * b), strict=True):
            check(part, expected)
        square = mc.distribute(random(3, 3), mc.Layout([U, "x"], mesh))
        square @= mc.distribute(random(3, 3), mc.Layout(["y", U], mesh))
        check(square, random(3, 3) @ random(3, 3))
        with pytest.raises(TypeError, match="Cannot cast"):
            np.add(t, 1, out=mc.zeros((5, 3), "i4", t.layout))
        with pytest.raises(ShapeError, match=r"out has shape \(3,\), but the operands broadcast to \(5, 3\)"):
            np.add(t, 1, out=mc.zeros((3,), "f8", mc.Layout([U], mesh)))
        with pytest.raises(ShapeError, match=r"out has shape \(5, 3\), but the product has \(3, 3\)"):
            np.matmul(square, square, out=t)
        with pytest.raises(TypeError, match=r"out= must be DTensors"):
            np.add(t, 1, out=np.zeros((5, 3)))
        with pytest.raises(TypeError, match=r"out= must be DTensors"):
            a += t

    on(4, program)


# -- what raises ------------------------------------------------------------------------------------------------------


def test_errors_on_every_rank():
    def program():
        mesh, other = mesh_of(2, 2), mc.create_mesh([("x", 4)])
        t = mc.distribute(random(5, 3), mc.Layout(["x", "y"], mesh))
        far = mc.distribute(random(5, 3), mc.Layout(["x", U], other))
        cases = [
            (MeshError, "operands must be on one mesh", lambda: t + far),
            (MeshError, "operands must be on one mesh", lambda: t @ far.T),
            (ShapeError, r"shapes \(5, 3\), \(5,\) do not broadcast", lambda: t + random(5)),
            (ShapeError, r"shapes \(5, 3\), \(3, 5\) do not broadcast", lambda: t + t.T),
            (ShapeError, "has 3 elements and the first axis of the second 5", lambda: t @ t),
            (ShapeError, "tensors of 1 or 2 axes, but the second has shape", lambda: t @ random(2, 3, 4)),
            (ShapeError, "1 or 2 axes, but the first has shape", lambda: t.sum() @ t),
            (TypeError, "where= is not supported", lambda: np.add(t, t, where=np.ones((5, 3), bool))),
            (TypeError, "numpy.add.reduce is not defined for DTensors", lambda: np.add.reduce(t)),
            (TypeError, r"numpy.sort is not defined for DTensors: use t.local", lambda: np.sort(t)),
            (TypeError, "returned NotImplemented", lambda: t + None),
            (TypeError, "returned NotImplemented", lambda: t + object()),
            (TypeError, "divided over its ranks", lambda: np.asarray(t)),
            (TypeError, "numpy.sum: out=", lambda: np.sum(t, out=t)),
            (TypeError, "initial", lambda: np.sum(t, initial=3)),
            (DTypeError, "Python objects", lambda: t + np.array([None] * 3)),
            (DTypeError, "Python objects", lambda: np.frompyfunc(str, 1, 1)(t)),
            (ShapeError, "axis 2 is out of range for a tensor with 2 axes", lambda: t.sum(2)),
            (ShapeError, "axis -3 is out of range", lambda: t.max(axis=-3)),
            (ShapeError, "names an axis twice", lambda: t.mean(axis=(0, -2))),
            (ShapeError, "axis must be an integer", lambda: t.min(axis="x")),
            (ShapeError, "must have every axis", lambda: arithmetic.transpose(t, (0,))),
            (LayoutError, "sum is for DTensors, not for ndarray", lambda: arithmetic.sum(random(3))),
            (LayoutError, "one of the operands must be a DTensor", lambda: arithmetic.matmul(random(3), random(3))),
            (ShapeError, "has 15 elements; only one is an item", lambda: float(t)),
            (
                LayoutError,
                "not every rank holds the element",
                lambda: t.sum(keepdims=True).item() and elsewhere().item(),
            ),
        ]

        def elsewhere():
            return mc.ones((1, 1), "f8", t.layout)

        if hasattr(np, "vecdot"):  # NumPy 2
            cases.append((TypeError, "numpy.vecdot is not defined", lambda: np.vecdot(t, t)))
        for error, match, wrong in cases:
            with pytest.raises(error, match=match):
                wrong()
        check(t + t, random(5, 3) * 2)

    on(4, program)


@pytest.mark.parametrize("size", [2, 3])
def test_plain_arrays_must_be_replicated(size):
    def program():
        mesh = mesh_of(size)
        t = mc.distribute(random(4), mc.Layout(["x"], mesh))
        different = [
            np.full(4, mesh.rank),
            np.zeros(4, "f4" if mesh.rank else "f8"),
            np.zeros(4 if mesh.rank else 1),
            [0.0, 0, 0, mesh.rank],
        ]
        for array in different:
            with pytest.raises(CollectiveMismatch, match="a plain array must be the same on every rank"):
                t + array
        with pytest.raises(CollectiveMismatch, match=r"numpy\.matmul of a DTensor"):
            t @ different[0]
        with pytest.raises(DTypeError):
            t + (np.array([None]) if mesh.rank else np.zeros(1))  # what one rank sees
        check(t + random(4), random(4) * 2)

    on(size, program)


def test_ranks_outside_of_the_mesh():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        a = random(5, 3)
        t = mc.distribute(a, mc.Layout(["x", U], mesh))
        check((t + 1) * t.T.T - a, (a + 1) * a - a)
        check(t.sum(axis=0), a.sum(axis=0))
        check(t.mean(), a.mean())
        check(t.max(1, keepdims=True), a.max(1, keepdims=True))
        check(t @ t.T, a @ a.T, rtol=1e-9)
        check(t @ a.T, a @ a.T, rtol=1e-9)
        check(np.where(t > 0, t, [1, 2, 3]), np.where(a > 0, a, [1, 2, 3]))
        t += 1
        check(t, a + 1)
        with pytest.raises(ShapeError):
            t + random(4)
        return t.local is None

    assert on(3, program) == [False, False, True]


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_reductions_of_every_layout(sizes):
    def program():
        mesh = mesh_of(*sizes)
        for shape in [(5, 3), (2, 2), (1, 4), (7,), ()]:
            a = random(*shape)
            axes = [None, *range(-len(shape), len(shape)), tuple(range(len(shape)))]
            for layout, axis, keepdims in product(tuple_layouts(mesh, len(shape)), axes, (False, True)):
                t = mc.distribute(a, layout)
                for name in ("sum", "mean", "max", "min"):
                    result = getattr(t, name)(axis=axis, keepdims=keepdims)
                    check(result, getattr(a, name)(axis=axis, keepdims=keepdims))
                    gone = arithmetic.normalised_axes(axis, len(shape))
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


# -- transpose and matmul ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", MESHES)
def test_transpose(sizes):
    def program():
        mesh, a = mesh_of(*sizes), random(5, 3, 2)
        for layout in tuple_layouts(mesh, 3):
            t = mc.distribute(a, layout)
            check(t.T, a.T)
            check(arithmetic.transpose(t, (1, -1, 0)), a.transpose(1, -1, 0))
            assert t.T.T.layout == t.layout

    with mc.simulate(MESHES[sizes]) as world:
        world.run(program)
        assert not any(world.bytes_moved)


@pytest.mark.parametrize("sizes", MESHES)
def test_matmul_of_every_pair_of_layouts(sizes):
    def program():
        mesh = mesh_of(*sizes)
        for a, b in [
            ((5, 3), (3, 4)),
            ((3,), (3, 5)),
            ((4, 3), (3,)),
            ((5,), (5,)),
            ((1, 2), (2, 1)),
            ((2, 0), (0, 3)),
        ]:
            expected = random(*a) @ random(*b)
            pairs = list(product(tuple_layouts(mesh, len(a)), tuple_layouts(mesh, len(b))))
            for one, other in pairs[:: 1 + len(pairs) // 600]:
                check(mc.distribute(random(*a), one) @ mc.distribute(random(*b), other), expected, rtol=1e-9)

    on(MESHES[sizes], program)


@pytest.mark.parametrize(
    ("a", "b", "product", "moves"),
    [
        (["x", U], [U, "y"], ["x", "y"], False),  # rows and columns
        (["x", U], [U, U], ["x", U], False),
        (["x", "y"], ["y", U], ["x", U], True),  # partial products
        ([U, ("x", "y")], [("x", "y"), U], [U, U], True),
        (["x", U], ["x", U], ["x", U], True),
        (["x", "y"], ["x", "y"], ["x", "y"], True),
        (["x", U], [U, "x"], ["x", U], True),
    ],
)
def test_layouts_of_products(a, b, product, moves):
    def program():
        mesh = mesh_of(2, 2)
        t, u = (mc.distribute(random(6, 6), mc.Layout(specs, mesh)) for specs in (a, b))
        return (t @ u).layout.sharding_specs

    with mc.simulate(4) as world:
        assert world.run(program) == [product] * 4
        assert any(world.bytes_moved) == moves


def test_matmul_of_other_dtypes_and_plain_arrays():
    def program():
        mesh = mesh_of(2, 2)
        for one, other in (("?", "?"), ("i1", "i1"), ("f4", "i2"), ("c8", "f8"), ("f2", "f2")):
            a, b = (np.abs(random(3, 3)).astype(d) for d in (one, other))
            t = mc.distribute(a, mc.Layout([U, "x"], mesh))
            check(t @ mc.distribute(b, mc.Layout(["y", U], mesh)), a @ b, rtol=1e-2)
            check(t @ b, a @ b, rtol=1e-2)
            check(b @ t, b @ a, rtol=1e-2)
            check(arithmetic.matmul(t, b.tolist()), a @ np.array(b.tolist()), rtol=1e-2)

    on(4, program)
