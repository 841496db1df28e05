"""Views: what NumPy gives as a view is one here, in all layouts, or it refuses to be written to; no write is lost."""

import bisect
import heapq
import random as random_of_python
from itertools import permutations, product
from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Cuts, Cyclic, Layout
from meshcomm.blocks.views import abstract_array, reshaped_abstract_array
from meshcomm.core.arrays.views import memory_order
from meshcomm.numpy.indexing.indexing import getitem
from support import view_cases
from support.numpy_law import table
from support.reference import on_ranks
from support.sampling import sampled, with_seeds
from support.tensors import check, on_a_mesh
from support.view_cases import WRITES, refused, write

U = "unsharded"


@with_seeds(on_a_mesh, sampled(range(240), 40))
def test_chains_of_views_and_writes_are_numpys(random, mesh):
    view_cases.chains(random, mesh)


# -- one law for every function that returns a view in NumPy ----------------------------------------------------------

VIEWS = table("view_calls.txt")["views"]


def view_of(call, t):
    if isinstance(t, mc.DTensor):
        return eval(call, {"np": np, "t": t, "xp": mc.array_api, "broadcast_arrays": np.broadcast_arrays})
    broadcast = lambda a, b: [np.broadcast_to(a, b.shape)]  # noqa: E731 - NumPy's own warns
    return eval(call, {"np": np, "t": t, "xp": np, "broadcast_arrays": broadcast})


MESHES = {1: (1,), 2: (2,), 3: (3,), 4: (2, 2)}
CASES = 12 * len(WRITES)


def layouts_of(mesh):
    """Layouts of all kinds for a tensor of 6 x 6."""
    every = mesh.dim_names
    n = mesh.size
    last = {1: (0, 6), 2: (0, 6, 6), 3: (0, 0, 1, 6), 4: (0, 2, 2, 5, 6)}[n]
    specs = [
        [every, U],
        [U, every],
        [U, U],
        [every[0], every[1] if len(every) > 1 else U],
        [every[1] if len(every) > 1 else U, every[0]],
        [Cuts(every, last), U],
        [U, Cuts(every, last)],
        [Cuts(every[:1], (0, *[5] * (dict(mesh.dims)[every[0]] - 1), 6)), every[1:] or U],
        [Cyclic(every, 1), U],
        [U, Cyclic(every, 2)],
        [Cyclic(every, 4, offset=n - 1), U],
        [Cyclic(every[:1], 2), Cyclic(every[1:], 1) if every[1:] else U],
    ]
    return [Layout(spec, mesh) for spec in specs]


@pytest.mark.parametrize("ranks", MESHES)
@pytest.mark.parametrize("call", VIEWS)
def test_a_write_through_a_view_reaches_the_tensor(call, ranks):
    def program():
        mesh = mc.create_mesh(list(zip("xy", MESHES[ranks], strict=False)))
        was_refused = 0
        for number, (layout, way) in enumerate(sampled(product(layouts_of(mesh), WRITES), CASES)):
            x = np.arange(36).reshape(6, 6) * (1 + 2j)
            t = mc.distribute(x, layout)
            v, w = view_of(call, t), view_of(call, x)
            check(v, w)
            values = mc.distribute((np.arange(w.size).reshape(w.shape) + number).astype(w.dtype), v.layout)
            was_refused += write(way, v, w, values)
            check(v, w)
            check(t, x)
        return was_refused

    with mc.simulate(ranks) as world:
        (count,) = set(world.run(program))
    read_only = not view_of(call, np.zeros((6, 6), complex)).flags.writeable
    assert count == read_only * len(sampled(range(CASES)))


def test_views_cost_nothing_where_elements_stay():
    """Nothing moves, and nothing is copied: in the layouts where it could be so."""

    def program():
        mesh = mc.create_mesh([("x", 2), ("y", 2)])
        t = mc.distribute(np.arange(64.0).reshape(8, 8), Layout(["x", U], mesh))
        views = [t.T, t.T.T, np.flip(t, 1), t.reshape(4, 2, 8), t.ravel(), t.diagonal(), np.broadcast_to(t, (9, 8, 8))]
        both = mc.distribute(np.arange(64.0).reshape(8, 8), Layout(["x", "y"], mesh))
        views += [np.expand_dims(t, 1), t[::2, 1:].T]
        assert all(np.shares_memory(v.local, t.local) for v in views)
        assert np.shares_memory(both.diagonal().local, both.local) == (mesh.rank in (0, 3))

    with mc.simulate(4) as world:
        world.run(program)
        assert not any(world.bytes_moved)


@on_ranks(3)
def test_a_view_whose_elements_moved_is_a_view():
    mesh = mc.create_mesh([("x", 3)])
    x = np.arange(30.0).reshape(5, 6)
    t = mc.distribute(x, Layout(["x", U], mesh))
    moved, turned = t[::-1], t.T
    columns, seen = turned[:, ::-2], x.T[:, ::-2]
    t[1:3] = 50
    x[1:3] = 50
    moved *= 2
    x *= 2
    check(t, x)
    columns += 1
    seen += 1
    check(t, x)
    t[::-1, 0] -= 3
    x[::-1, 0] -= 3
    check(t, x)
    del turned
    columns += 1
    seen += 1
    assert float(moved[0, 0]) == x[4, 0]
    check(t, x)
    own = moved.copy()
    own += 1
    check(t, x)


@on_ranks(4)
def test_windows_of_windows_show_what_is_written():
    mesh = mc.create_mesh([("x", 4)])
    x = np.arange(12)
    t = mc.distribute(x, Layout([Cyclic("x", 1)], mesh))
    windows = np.lib.stride_tricks.sliding_window_view
    seen, expected = (windows(windows(a, 2), 2, axis=0)[::-1] for a in (t, x))
    t[3:7] = -1
    x[3:7] = -1
    check(seen.refresh(), expected)


@on_ranks(2)
def test_local_says_that_a_view_is_stale():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(np.arange(4), Layout(["x"], mesh))
    backward = t[::-1]
    assert backward.base is t
    t[0] = 7
    with pytest.raises(mc.StaleViewError, match=r"t.refresh\(\)"):
        backward.local  # noqa: B018
    check(backward.refresh(), [3, 2, 1, 7])
    t.local[:] += 10
    t.written()
    assert backward.tolist() == [13, 12, 11, 17]
    backward.local[:] = 0
    backward.written()
    assert t.tolist() == [0] * 4


@on_ranks(3)
def test_a_view_whose_base_nobody_has_owns_its_elements():
    """As ``x = x.reshape(4, 6)`` leaves it: then writes send nothing."""
    mesh = mc.create_mesh([("x", 3)])
    t = mc.distribute(np.arange(24.0), Layout(["x"], mesh))
    x = t.reshape(4, 6)
    assert x.base is t
    x += 1
    assert x.base is t
    rows, rank = x[::-1], mesh.rank
    held = t if rank == 1 else None  # one rank is enough
    del t
    for _ in range(4):
        rows += 1
    assert rows.base is not None
    del held
    rows += 1
    assert rows.base is not None  # x and rows share it
    x = mc.distribute(np.arange(24.0), Layout(["x"], mesh)).reshape(4, 6)
    x += 1
    assert x.base is None
    backward, flat = x[::-1], x.reshape(2, 12)[:, ::2]
    x[0] = 7
    flat[1, 0] = 5
    backward[1, 5] = 3
    expected = np.arange(24.0).reshape(4, 6) + 1
    expected[0], expected[2, 0], expected[2, 5] = 7, 5, 3
    check(x, expected)
    check(backward.refresh(), expected[::-1])


@on_ranks(2)
def test_a_row_is_fetched_only_if_it_was_written():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(np.arange(48.0).reshape(8, 6), Layout([U, "x"], mesh))
    row = t[1, ::-1]
    assert row.base is t
    for i in range(2, 8):
        t[i] = 1.0
        check(row, [11.0, 10.0, 9.0, 8.0, 7.0, 6.0])  # a stale one would raise an error
    for i in range(100):  # more than are kept
        t[2 + i % 6, 1:] += 1
    assert row.tolist() == [11, 10, 9, 8, 7, 6]


@on_ranks(2)
def test_abstract_arrays_are_numpys_views():
    """Shape, strides and flags, after each of some views; and reshapes copy where NumPy's do."""
    random, mesh = Random(4), mc.create_mesh([("x", 2)])
    for _ in range(300):
        x = np.zeros(
            [random.choice([1, 2, 3, 4, 6]) for _ in range(random.randint(1, 4))], random.choice(["i2", "c8"])
        )
        t = mc.distribute(x, Layout([random.choice(["x", U]), *[U] * x.ndim][: x.ndim], mesh))
        order, steps = random.sample(range(x.ndim), x.ndim), [random.choice([1, 1, 2, -1]) for _ in x.shape]
        index = (..., *(slice(None, None, step) for step in steps), *[None] * random.randint(0, 1))
        for view in (lambda a: a.transpose(order), lambda a: a[index], np.real, np.imag, lambda a: np.flip(a, ())):  # noqa: B023
            t, x = view(t), view(x)
            found, long = abstract_array(t), [axis for axis, n in enumerate(x.shape) if n > 1]
            assert (found.shape, found.dtype, found.flags.writeable) == (x.shape, x.dtype, x.flags.writeable)
            assert not x.size or [found.strides[axis] for axis in long] == [x.strides[axis] for axis in long]
            new = view_cases.random_shape_of(random, x.size)
            assert (reshaped_abstract_array(t, new) is not None) == np.shares_memory(x.reshape(new), x) or not x.size


def test_imaginary_parts_of_real_numbers_have_numpys_order():
    """It decides whether a reshape of them copies, and so whether that can be written to."""
    x = np.arange(60.0).reshape(3, 4, 5)
    t = mc.distribute(x, Layout([U, U, U], mc.create_mesh([("x", 1)])))
    for axes in permutations(range(3)):
        for step in (1, 2):
            v, w = t.transpose(axes)[::step].imag.reshape(-1), x.transpose(axes)[::step].imag.reshape(-1)
            assert v.local.flags.writeable == w.flags.writeable


# -- what takes blocks of any strides ---------------------------------------------------------------------------------


def awkward(t):
    """Tensors like *t*, a matrix, with blocks of all kinds of strides, and what they are of an array."""
    yield t.T, lambda x: x.T
    yield t[:, ::-1], lambda x: x[:, ::-1]
    yield t[1::2, ::2], lambda x: x[1::2, ::2]
    yield t[::-1].T[::2], lambda x: x[::-1].T[::2]
    yield np.broadcast_to(t[:1], t.shape), lambda x: np.broadcast_to(x[:1], x.shape)
    yield np.broadcast_to(t, (2, *t.shape))[1], lambda x: x
    yield (t + 1j * t).imag, lambda x: x
    yield (
        np.diagonal(np.broadcast_to(t, (4, *t.shape)), 1),
        lambda x: np.diagonal(np.broadcast_to(x, (4, *x.shape)), 1),
    )


@pytest.mark.parametrize("spec", [["x", U], [U, "x"], [U, U], [Cyclic("x", 1), U]], ids=str)
@on_ranks(3)
def test_everything_takes_blocks_of_any_strides(spec, tmp_path_factory):
    mesh = mc.create_mesh([("x", 3)])
    x = np.random.default_rng(1).integers(1, 50, (7, 6)).astype("f8")
    t = mc.distribute(x, Layout(spec, mesh))
    for v, of in awkward(t):
        w = of(x)
        check(v, w)
        assert (v.to_numpy() == w).all()
        check(v.copy(), w)
        assert v.local.size == 0 or v.copy().local.flags.c_contiguous
        for made, whole in ((v + 1, w + 1), (v * v, w * w), (-v, -w), (np.sqrt(v), np.sqrt(w)), (v > 3, w > 3)):
            check(made, whole)
            assert made.local.flags.c_contiguous
        for target in ([U, "x"], ["x", U], [U, U], [U, Cyclic("x", 2)]):
            layout = Layout(target, mesh)
            check(mc.relayout(v, layout), w)
            check(mc.relayout([v, t], layout)[0], w)
            check(mc.start_relayout(v, layout).wait(), w)
            check(mc.plan_relayout(v.shape, v.dtype, v.layout, layout).execute(v), w)
            check(mc.transpose(v, layout=layout), w.T)
        for function in (np.sum, np.max, np.mean, np.cumsum, np.sort, np.argsort, np.median, np.argmax, np.std):
            np.testing.assert_allclose(function(v, axis=0).to_numpy(), function(w, axis=0), rtol=1e-13)
            np.testing.assert_allclose(function(v, axis=1).to_numpy(), function(w, axis=1), rtol=1e-13)
        check(np.concatenate([v, v], 1), np.concatenate([w, w], 1))
        check(np.roll(v, 2, 0), np.roll(w, 2, 0))
        check(np.where(v > 9, v, 0), np.where(w > 9, w, 0))
        check(v[v > 9], w[w > 9])
        check(np.take(v, [2, 0], 1), np.take(w, [2, 0], 1))
        check(v @ v.T, w @ w.T)
        check(np.tile(v, (2, 1)), np.tile(w, (2, 1)))
        np.testing.assert_allclose(mc.fft.fft2(v).to_numpy(), np.fft.fft2(w), atol=1e-9)
        if spec[0] == "x":
            found = mc.ndimage.correlate1d(v, [1, 2, 3], 0).to_numpy()
            np.testing.assert_array_equal(found, mc.ndimage.correlate1d(v.copy(), [1, 2, 3], 0).to_numpy())


@pytest.mark.parametrize("spec", [["x", U], [U, "x"]], ids=str)
def test_files_take_views_and_are_loaded_into_views(spec, tmp_path):
    x = np.arange(48.0).reshape(6, 8)

    def program():
        mesh = mc.create_mesh([("x", 2)])
        t = mc.distribute(x, Layout(spec, mesh))
        for number, (v, of) in enumerate(awkward(t)):
            mc.save(tmp_path / f"{number}.npy", v)
            assert (mc.load(tmp_path / f"{number}.npy").to_numpy() == of(x)).all()
        mc.save(tmp_path / "x.npy", t)
        out = mc.zeros((8, 12), "f8", Layout(spec[::-1], mesh))
        whole = np.zeros((8, 12))
        mc.load(tmp_path / "x.npy", out=out.T[::2])
        whole.T[::2] = x
        check(out, whole)
        with pytest.raises(mc.LayoutError, match="assignment destination is read-only"):
            mc.load(tmp_path / "x.npy", out=np.broadcast_to(out[0, 0], (6, 8)))
        moved = out.reshape(16, 6)[:6]
        assert moved.shape == (6, 6)

    with mc.simulate(2) as world:
        world.run(program)


@on_ranks(2)
def test_results_are_written_into_views():
    mesh = mc.create_mesh([("x", 2)])
    x = np.random.default_rng(3).normal(size=(6, 8)).astype(complex)
    t = mc.distribute(x, Layout(["x", U], mesh))
    plan = mc.fft.plan((6, 8), "c16", t.layout, "same", "fftn")
    out, whole = mc.zeros((16, 6), "c16", Layout([U, "x"], mesh)), np.zeros((16, 6), complex)
    plan.forward(t, out=out.T[:, ::2])
    whole.T[:, ::2] = np.fft.fftn(x)
    np.testing.assert_allclose(out.to_numpy(), whole, atol=1e-12)
    square = mc.distribute(x[:, :6], Layout([U, U], mesh))
    mc.fft.plan((6, 6), "c16", square.layout, "same", "fftn").forward(square.T, out=square)
    np.testing.assert_allclose(square.to_numpy(), np.fft.fftn(x[:, :6].T), atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        plan.forward(t, out=np.broadcast_to(t, (6, 8)))
    real, into = mc.distribute(x.real.copy(), t.layout), mc.zeros((8, 6), "f8", Layout([U, "x"], mesh))
    mc.ndimage.correlate1d(real, [1, 2, 3], 0, output=into.T)
    np.testing.assert_array_equal(into.to_numpy().T, mc.ndimage.correlate1d(real, [1, 2, 3], 0).to_numpy())
    np.clip(real, 0, 1, out=into.T)
    np.testing.assert_array_equal(into.to_numpy().T, x.real.clip(0, 1))
    rows = into.T[::2]
    rows.sort(axis=1)
    np.testing.assert_array_equal(into.to_numpy().T[::2], np.sort(x.real.clip(0, 1)[::2], 1))
    gaps = mc.halo(real, 1).tensor()
    for made in (np.ravel(gaps), gaps.reshape(8, 6)):  # copies, as of the part of an array
        made[...] = 0
    check(gaps, x.real)


@on_ranks(2)
def test_what_is_read_only_refuses_all_writes():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.zeros((4, 4), "f8", Layout(["x", U], mesh))
    values = mc.ones((4, 4), "f8", t.layout)
    v = np.broadcast_to(t, (4, 4))
    for way in (*WRITES, lambda v, *_: v.sort(), lambda v, *_: np.clip(values, 0, 1, out=v)):
        refused(lambda way=way: way(v, v, values))
    refused(lambda: v.T.__setitem__(0, 1))
    refused(lambda: np.diagonal(t)[:2].__setitem__(0, 1))
    refused(lambda: v.__setitem__(values > 0, 1))
    with_gaps = np.broadcast_to(mc.distribute(np.arange(6) + 0j, Layout(["x"], mesh)).real, (1, 6)).reshape(2, 3)
    refused(lambda: with_gaps.__setitem__(0, 1))
    columns = mc.distribute(np.ones((3, 5)) + 0j, Layout([U, "x"], mesh))
    with pytest.raises(ValueError, match="read-only"):
        v.local[...] = 1
    assert not t.to_numpy().any()
    for own in (
        with_gaps.ravel(),
        np.ravel(np.broadcast_to(columns.real, (1, 3, 5))),
        np.broadcast_to(t, (1, 4, 4)).flatten(),
        np.ravel(np.broadcast_to(t[::-1].T, (1, 4, 4))),
    ):
        own += 1  # what is copied from it can be written to


# -- what writes element by element -----------------------------------------------------------------------------------

SHUFFLES = {
    "Generator": lambda t: np.random.default_rng(0).shuffle(t),
    "RandomState": lambda t: np.random.RandomState(0).shuffle(t),
    "random": lambda t: random_of_python.Random(0).shuffle(t),
}


@pytest.mark.filterwarnings("ignore:you are shuffling")
@pytest.mark.parametrize("name", SHUFFLES)
@pytest.mark.parametrize("spec", ["x", U, Cyclic("x", 1)], ids=str)
@on_ranks(2)
def test_shuffles(name, spec):
    mesh, shuffle = mc.create_mesh([("x", 2)]), SHUFFLES[name]
    t = mc.distribute(np.arange(6), Layout([spec], mesh))
    shuffle(t)
    assert sorted(t.to_numpy().tolist()) == list(range(6)) != t.to_numpy().tolist()
    rows = mc.distribute(np.arange(12).reshape(6, 2), Layout([spec, U], mesh))
    first, last = rows[0].copy(), rows[5].copy()
    rows[5], rows[0] = first, last
    rows[1], rows[1] = rows[1], rows[1]
    assert rows.to_numpy()[:, 0].tolist() == [10, 2, 4, 6, 8, 0]
    rows[2] = rows[3]
    assert rows.to_numpy()[2].tolist() == [6, 7]


@pytest.mark.parametrize("spec", ["x", U], ids=str)
@on_ranks(2)
def test_other_functions_that_write_one_element_after_the_other(spec):
    t = mc.distribute(np.arange(8.0), Layout([spec], mc.create_mesh([("x", 2)])))
    assert bisect.bisect(t, 3.5) == 4
    for write_to in (heapq.heapify, lambda t: heapq.heappush(t, 1)):
        with pytest.raises(TypeError, match="must be list"):
            write_to(t)
    with pytest.raises((TypeError, ValueError), match=r"cannot be written back|read-only"):
        np.nditer(t, op_flags=["readwrite"])
    check(t, np.arange(8.0))
    if spec == U:
        array = np.array(t)
        array += 1
        with pytest.raises(ValueError, match="read-only"):
            np.asarray(t)[0] = 7
        check(t, np.arange(8.0))


@on_ranks(2)
def test_sums_on_slices_of_a_swapped_axis():
    """As scipy.signal.oaconvolve adds the overlaps: ``ret`` is the view of another one."""
    mesh = mc.create_mesh([("x", 2)])
    for spec in (["x", U], [U, "x"]):
        x = np.random.default_rng(2).normal(size=(6, 9))
        t = mc.distribute(x, Layout(spec, mesh))
        for each in (t, x):
            parts = np.array_split(each.swapaxes(0, 1), [3, 6], 0)
            overlap = parts[1][:2]
            overlap += parts[2][-2:]
        check(t, x)


# -- how transposed blocks move ---------------------------------------------------------------------------------------


@on_ranks(2)
def test_the_axes_of_memory():
    mesh = mc.create_mesh([("x", 2)])
    t = mc.zeros((4, 6, 2), "c16", Layout(["x", U, U], mesh))
    for v, order in [
        (t, None),
        (t.transpose(1, 2, 0), (1, 2, 0)),
        (t.transpose(1, 2, 0).T, (0, 2, 1)),
        (np.expand_dims(t, 0).transpose(3, 0, 1, 2), (2, 3, 0, 1)),
        (t.T.real, None),
        (t[::2].T, None),
        (t[:, 1:].T, None),
        (np.flip(t, 1).T, None),
        (getitem(t, np.s_[::-1]).T, None),
    ]:
        assert memory_order(v) == order
