"""Elementwise arithmetic on DTensors: how operands meet, dtypes, out=; `test_numpy` compares it with NumPy."""

import gc
import weakref

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import DTypeError, ShapeError
from support.reference import on_ranks, same_numbers
from support.tensors import check, close, integers, mesh_of, numbers, on

U = mc.UNSHARDED

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
        t, u = (mc.distribute(numbers(5, 3), mc.Layout(specs, mesh)) for specs in (a, b))
        close(t + u, numbers(5, 3) * 2)
        return (t + u).layout.sharding_specs

    assert on(4, program) == [meeting] * 4


def test_an_axis_that_is_stretched_counts_as_unsharded():
    def program():
        mesh = mesh_of(2)
        t = mc.distribute(numbers(1, 3), mc.Layout(["x", U], mesh))
        u = mc.distribute(numbers(4, 1), mc.Layout([U, "x"], mesh))
        close(t * u, numbers(1, 3) * numbers(4, 1))
        return (t * u).layout.sharding_specs, (t * t).layout.sharding_specs

    assert on(2, program) == [([U, U], ["x", U])] * 2


def test_a_mesh_that_equals_another_one_is_the_same():
    def program(others):
        mesh = others[others[0].rank]  # caches of SciPy give rank 1 the first one, too, which equals its own
        t, u = (mc.distribute(np.arange(n), mc.Layout([U], each)) for n, each in ((4.0, mesh), (2.0, others[0])))
        t[np.array([0, 2])] = u
        close(t, np.array([0.0, 1, 1, 3]))

    with mc.simulate(2) as world:
        meshes = world.run(lambda: mesh_of(2))
        world.run(program, meshes)


def test_equal_layouts_move_nothing():
    def program():
        mesh = mesh_of(2, 2)
        for specs in (["x", "y"], [mc.Cuts("x", (0, 1, 4)), U], [U, mc.Cyclic("y", 1)]):
            x = mc.distribute(numbers(4, 4), mc.Layout(specs, mesh))
            z = mc.relayout_like(mc.ones((4, 4), "f8", mc.Layout([U, U], mesh)), x)  # the example of the page
            close((x + z) * 2 - np.float32(3) / x, (numbers(4, 4) + 1) * 2 - 3 / numbers(4, 4))
            assert (mc.ones((4,), "f8", mc.Layout([U], mesh)) * x).layout == (x + z).layout == x.layout

    with mc.simulate(4) as world:
        world.run(program)
        assert world.bytes_moved == [0] * 4


@on_ranks(2)
def test_powers_are_those_of_arrays():
    """Arrays have other functions than numpy.power for some numbers of Python."""

    layout = mc.Layout(["x"], mesh_of(2))
    for dtype in ("f8", "f4", "c16", "i4", "?"):
        a = integers(5, dtype=dtype)
        for exponent in (0, 1, 2, 3, -1, 0.5, 2.0, -1.0, True, np.float32(0.5)):
            try:
                with np.errstate(all="ignore"):
                    expected = a**exponent
            except ValueError:  # a negative power of integers
                continue
            with np.errstate(all="ignore"):
                check(mc.distribute(a, layout) ** exponent, expected, same_numbers)


@on_ranks(2)
def test_numbers_keep_the_promotion_of_numpy():
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


@on_ranks(4)
def test_in_place_and_out():
    mesh = mesh_of(2, 2)
    a, b = numbers(5, 3), numbers(5, 1)
    t, u = mc.distribute(a, mc.Layout(["x", U], mesh)), mc.distribute(b, mc.Layout(["y", "x"], mesh))
    block, before = t.local, t
    t += u
    t *= 2
    t -= a
    assert t is before
    assert t.local is block
    close(t, (a + b) * 2 - a)
    out = mc.zeros((5, 3), "f8", mc.Layout(["y", "x"], mesh))
    block = out.local
    assert np.multiply(t, u, out=out) is out
    assert out.local is block
    close(out, ((a + b) * 2 - a) * b)
    parts = tuple(mc.zeros((5, 3), "f8", mc.Layout(specs, mesh)) for specs in (["x", U], [U, "y"]))
    assert np.modf(out, out=parts) is not None
    for part, expected in zip(parts, np.modf(((a + b) * 2 - a) * b), strict=True):
        close(part, expected)
    square = mc.distribute(numbers(3, 3), mc.Layout([U, "x"], mesh))
    square @= mc.distribute(numbers(3, 3), mc.Layout(["y", U], mesh))
    close(square, numbers(3, 3) @ numbers(3, 3))
    with pytest.raises(TypeError, match="Cannot cast"):
        np.add(t, 1, out=mc.zeros((5, 3), "i4", t.layout))
    with pytest.raises(ShapeError, match=r"out has shape \(3,\), but the operands broadcast to \(5, 3\)"):
        np.add(t, 1, out=mc.zeros((3,), "f8", mc.Layout([U], mesh)))
    with pytest.raises(ShapeError, match=r"out has shape \(5, 3\), but the result has \(3, 3\)"):
        np.matmul(square, square, out=t)


@on_ranks(3)
def test_plain_arrays_as_out():
    mesh = mesh_of(2)  # rank 2 is outside of it
    rows = mc.Layout(["x", U], mesh)
    a = numbers(5, 3)
    t = mc.distribute(a, rows)
    if mesh.rank is None:
        with pytest.raises(TypeError, match="this rank is outside of its mesh"):
            np.add(t, 1, out=np.zeros((5, 3)))
        return
    array, one = a.copy(), np.zeros(())
    before = array
    array += t
    array *= mc.relayout(t, mc.Layout([U, U], mesh))
    one -= t.sum()
    assert array is before
    assert np.array_equal(array, (a + a) * a)
    assert one == -t.sum().item()
    single, chosen = np.zeros((5, 3), "f4"), np.ones((5, 3))
    assert np.add(t, a, out=single) is single
    assert np.array_equal(single, (a + a).astype("f4"))
    np.add(a, 1, out=chosen, where=t > 0.5)
    assert np.array_equal(chosen, np.where(a > 0.5, a + 1, 1))
    assert np.allclose(np.matmul(t, a.T, out=np.zeros((5, 5))), a @ a.T)
    both = np.zeros((5, 3)), None
    assert [type(each) for each in np.modf(t, out=both)] == [np.ndarray] * 2
    assert np.array_equal(both[0], np.modf(a)[0])
    with pytest.raises(TypeError, match="Cannot cast"):
        np.add(t, 1, out=np.zeros((5, 3), int))
    with pytest.raises(ValueError, match="non-broadcastable output operand"):
        np.add(t, 1, out=np.zeros(3))
    with pytest.raises(TypeError, match="out= must be DTensors, or plain arrays all"):
        np.modf(t, out=(np.zeros((5, 3)), t.copy()))
    with pytest.raises(TypeError, match="out= must be DTensors, or plain arrays all"):
        np.add.reduce(t, out=np.zeros(3))
    large = mc.empty((2**23 + 1, 1), float, rows)
    with pytest.raises(TypeError, match="67,108,872 bytes of at most 67,108,864"):
        np.negative(large, out=np.broadcast_to(0.0, large.shape))


# -- operands stay as they are ----------------------------------------------------------------------------------------


def everything(t, u, rows, columns):
    """Calls of every kind on two tensors; none is to change a tensor, a layout or a mesh."""
    yield from (lambda: t + u, lambda: -t, lambda: t == u, lambda: np.where(t > u, t, u), lambda: t @ u.T, lambda: t.T)
    yield from (lambda: t.sum(0), lambda: t.mean(), lambda: t.max(1, keepdims=True), lambda: t.min(), lambda: t.copy())
    yield from (lambda: mc.relayout(t, columns), lambda: mc.relayout_like(t, u), lambda: mc.relayout([t, u], rows))
    yield from (lambda: mc.relayout({"a": t}, columns), lambda: mc.relayout(t, mc.Layout(["match", U], t.mesh)))
    yield lambda: mc.start_relayout(t, columns).wait()
    yield lambda: mc.plan_relayout(t.shape, t.dtype, t.layout, columns).execute(t)
    yield from (lambda: t.to_numpy(), lambda: t.to_numpy(root=0), lambda: mc.zeros_like(t), lambda: np.real(t))
    yield from (lambda: mc.all_gather(t.local, None, 0), lambda: mc.all_reduce(t.local, None))
    yield from (lambda: mc.gradients.sum_vjp(t.sum(0), t, 0), lambda: mc.gradients.relayout_vjp(u, t), lambda: repr(t))
    yield from (lambda: mc.drop_plans(t.mesh), lambda: mc.call_with_layout(np.add, columns, t, u))


def state_of(*tensors):
    """Everything that tells a tensor, its layout and its mesh from others, and which objects they are."""
    found = []
    for t in tensors:
        layout, mesh = t.layout, t.mesh
        found += [id(t.local), t.local.tobytes(), t.local.flags.writeable, id(layout), id(mesh), t.shape, t.dtype]
        found += [
            hash(layout),
            layout.to_string(),
            layout.serialized_string(),
            hash(mesh),
            mesh.to_string(),
            mesh.rank,
        ]
        found += [mesh.world]
    return found


def test_no_operation_changes_its_operands():
    def program():
        mesh = mesh_of(2, 2)
        rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, ("y", "x")], mesh)
        t, u = mc.distribute(numbers(6, 4), rows), mc.distribute(numbers(6, 4) + 1, columns)
        calls = list(everything(t, u, rows, columns))
        before = state_of(t, u)
        for number, call in enumerate(calls):
            call()
            assert state_of(t, u) == before, number
        return len(calls)

    (count,) = set(on(4, program))
    assert count == 29


# -- what one rank sees, copies and memory ----------------------------------------------------------------------------


@on_ranks(2)
def test_an_array_of_objects_that_one_rank_passes():
    t = mc.distribute(numbers(4), mc.Layout(["x"], mesh_of(2)))
    with pytest.raises(DTypeError):
        t + (np.array([None]) if t.mesh.rank else np.zeros(1))
    close(t + numbers(4), numbers(4) * 2)


@on_ranks(2)
def test_copies_and_numbers():
    mesh = mesh_of(2)
    x = np.arange(-4, 11).reshape(5, 3)
    t = mc.distribute(x, mc.Layout(["x", U], mesh))
    assert t.astype("i8", copy=False) is t
    for copy in (t.astype("i8"), np.round(t), np.copy(t)):
        close(copy, x)
        assert not np.shares_memory(copy.local, t.local)
    close(t.astype("f4", casting="same_kind"), x.astype("f4"))
    close(np.astype(t, "c16"), x.astype("c16"))
    out = mc.zeros((5, 3), "f8", mc.Layout([U, "x"], mesh))
    assert np.clip(t, 0, 1, out=out) is out
    close(out, np.clip(x, 0, 1).astype("f8"))
    assert np.round(t, out=out) is out
    close(out, x.astype("f8"))
    assert np.result_type(t, np.complex64) == np.complex128
    assert float(out.sum()) == out.sum().item() == complex(out.sum())
    assert int(mc.full((), 3, "f8", mc.Layout([], mesh))) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(t)


def test_memory_is_not_kept():
    """What is remembered of a call holds no block."""

    def program():
        mesh = mesh_of(2)
        alive = []
        for _ in range(2):
            t = mc.distribute(numbers(4, 4), mc.Layout(["x", U], mesh))
            u = t.T @ t + t.sum(axis=0) + t.max()
            alive += [weakref.ref(t.local), weakref.ref(u.local)]
            del t, u
        gc.collect()
        return [ref() is None for ref in alive]

    assert on(2, program) == [[True] * 4] * 2
