"""Operands that are cut a little elsewhere: only what lies next to the cuts moves, and the values are NumPy's."""

from random import Random

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.blocks.edges import interval_exchange_for_axes
from support.sampling import sampled
from support.tensors import on


def rows(mesh, *rest):
    return mc.Layout(["x", *rest], mesh)


def test_a_shifted_sum_moves_its_edges_only():
    whole = np.arange(40.0 * 30).reshape(40, 30)

    def program():
        t = mc.distribute(whole, rows(mc.create_mesh([("x", 4)]), mc.UNSHARDED))
        with mc.count() as c:
            sums = [t[:-2] + t[2:] for _ in range(3)]
        for total in sums:
            np.testing.assert_array_equal(total.to_numpy(), whole[:-2] + whole[2:])
        return c.messages, c.bytes

    counts = np.array(on(4, program))
    assert counts.sum(0).tolist() == [3 * 3, 3 * 3 * 2 * 30 * 8], "three cuts, two rows at each"


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">c8", "<i4", [("a", ">i2"), ("b", "u1")]])
def test_several_edges_of_one_block_keep_their_byte_order(dtype):
    whole = np.zeros(16, dtype)
    whole.view("u1")[:] = np.arange(whole.nbytes)
    whole = whole.reshape(4, 4)

    def program():
        t = mc.distribute(whole, rows(mc.create_mesh([("x", 4)]), mc.UNSHARDED))
        for _ in range(2):
            for call in (lambda a: np.pad(a, ((4, 4), (0, 0)), "wrap"), lambda a: np.roll(a, 1, (0, 1))):
                assert call(t).to_numpy().tobytes() == call(whole).tobytes()

    with mc.simulate(4) as world:
        world.run(program)


def test_a_step_of_jacobi_is_numpys():
    start = np.random.default_rng(1).random((23, 17))

    def step(a, b):
        b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])

    def program():
        layout = rows(mc.create_mesh([("x", 3)]), mc.UNSHARDED)
        a, b, x, y = mc.distribute(start, layout), mc.distribute(start, layout), start.copy(), start.copy()
        with mc.count() as c:
            for _ in range(4):
                step(a, b), step(b, a)
                step(x, y), step(y, x)
        np.testing.assert_array_equal(a.to_numpy(), x)
        return c.messages, c.bytes

    edge = 15 * 8  # of one side
    assert on(3, program) == [(8, 8 * edge), (16, 16 * edge), (8, 8 * edge)]


@pytest.mark.parametrize(
    ("call", "edge_rows", "messages"),
    [
        (lambda a: np.roll(a, 1, axis=0), 4, 4),
        (lambda a: np.concatenate([a[:2], a, a[-3:]]), 3, 2),
        (lambda a: np.pad(a, 1, mode="wrap"), 2, 2),
        (lambda a: np.gradient(a, axis=0), 6, 6),
        (lambda a: np.diff(a, 2, axis=0), 6, 6),  # two differences are two calls
        (lambda a: np.lib.stride_tricks.sliding_window_view(a, 3, axis=0), 6, 3),
    ],
)
def test_rows_next_to_the_cuts_move_in_one_exchange(call, edge_rows, messages):
    whole = np.random.default_rng(2).random((40, 6))

    def program():
        t = mc.distribute(whole, rows(mc.create_mesh([("x", 4)]), mc.UNSHARDED))
        with mc.count() as c:
            result = call(t)
        np.testing.assert_array_equal(result.to_numpy(), call(whole))
        return c.messages, c.bytes

    counts = np.array(on(4, program))
    assert counts.sum(0).tolist() == [messages, edge_rows * 8 * whole.shape[1]]


def test_a_convolution_moves_what_the_kernel_reaches():
    line = np.arange(50.0)

    def program():
        t = mc.distribute(line, rows(mc.create_mesh([("x", 5)])))
        modes = ("full", "same", "valid")
        with mc.count() as c:
            results = [np.convolve(t, np.ones(3), mode) for mode in modes]
        for mode, result in zip(modes, results, strict=True):
            np.testing.assert_allclose(result.to_numpy(), np.convolve(line, np.ones(3), mode))
        return c.bytes

    assert 0 < sum(on(5, program)) <= 3 * 4 * 8 * 4


def index_of(random, n, length):
    """A slice of this length with a step of 1."""
    start = random.randint(0, n - length)
    return slice(start, start + length)


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_random_shifts(seed):
    random, rng = Random(seed), np.random.default_rng(seed)
    sizes = random.choice([(1,), (2,), (3,), (2, 2), (5,)])
    shape = tuple(random.randint(3, 14) for _ in range(2))
    cuts = random.choice([["x", mc.UNSHARDED], [mc.UNSHARDED, "x"], [*["x", "y"][: len(sizes)], mc.UNSHARDED]])[:2]
    lengths = tuple(random.randint(1, n) for n in shape)
    given = [[index_of(random, n, m) for n, m in zip(shape, lengths, strict=True)] for _ in range(4)]
    one, two, three, four = map(tuple, given)
    dtype = random.choice(["f8", "i4", "c16"])
    whole = rng.integers(0, 9, shape).astype(dtype)

    def calls(a):
        found = [a[one] + a[two], a[one] * 2 - a[three], np.multiply(a[two], a[three])]
        b = a.copy()
        b[one] = a[two]
        b[three] = b[four]  # they may overlap
        found.append(b.copy())
        b[one] += b[two]
        found.append(b.copy())
        np.add(a[one], a[three], out=b[two])
        return [*found, b]

    def program():
        mesh = mc.create_mesh(list(zip("xy", sizes, strict=False)))
        t = mc.distribute(whole, mc.Layout(cuts, mesh))
        for _ in range(2):
            for found, expected in zip(calls(t), calls(whole.copy()), strict=True):
                np.testing.assert_array_equal(found.to_numpy(), expected)

    with mc.simulate(int(np.prod(sizes))) as world:
        world.run(program)


def test_what_is_better_relaid():
    mesh = mc.Mesh(range(2), {"x": 2})
    spec = type(mc.zeros(3, layout=mc.Layout.replicated(mc.create_mesh([("x", 1)]), 1))._spec)
    of = spec(mc.Layout(["x", mc.UNSHARDED], mesh), (8, 8), np.dtype("f8"))
    assert interval_exchange_for_axes(of, ((), ("x",))) is None  # another axis
    assert interval_exchange_for_axes(of, (mc.Cuts("x", (0, 8, 8)), ())) is not None  # a half moves
    assert (
        interval_exchange_for_axes(
            spec(mc.Layout([mc.Cuts("x", (0, 0, 8)), ()], mesh), (8, 8), of.dtype), of.layout.axes
        )
        is not None
    )
    assert (
        interval_exchange_for_axes(
            spec(mc.Layout([mc.Cuts("x", (0, 0, 8)), ()], mesh), (8, 8), of.dtype), (mc.Cuts("x", (0, 8, 8)), ())
        )
        is None
    )
