"""Fused functions against the same functions without fusing: values, warnings, errors, and what waits."""

import math
import warnings
from collections import namedtuple

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.core.arrays._expressions import Expression
from support.fused_programs import alike, on_tensors, program
from support.sampling import sampled
from support.tensors import close, mesh_of, on
from support.waiting import all_waiting

FILE, U = __file__, mc.UNSHARDED
PIECE = 128  # elements of float64
MANY = 30 * PIECE + 7  # elements: more than one piece of any dtype


@pytest.fixture(autouse=True)
def pieces():
    """Short ones: so small operands have many of them."""
    with all_waiting(8 * PIECE):
        yield


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def chosen(x, y):
    return np.where(x > y, np.sqrt(abs(x)) * 0.5 + y, x - y**2)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sampled(range(400)))
def test_random_functions_of_arrays(seed):
    function, given = program(seed)
    with np.errstate(all="ignore"):
        expected, fused = function(*given), mc.fuse(function)
        for _ in range(2):  # the second time by what was kept
            assert alike(fused(*given), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", sampled(range(60)))
@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (2, 2)])
def test_random_functions_of_tensors(sizes, seed):
    on(math.prod(sizes), lambda: on_tensors(1000 * math.prod(sizes) + seed, mesh_of(*sizes)))


@pytest.mark.parametrize("n", [0, 1, 5, PIECE, PIECE + 1, 5 * PIECE - 1])
def test_any_length(n):
    x, y = numbers(n), numbers(n, seed=1)
    for _ in range(3):
        assert alike(mc.fuse(chosen)(x, y), chosen(x, y))


def test_operands_are_broadcast():
    x, row, column = numbers(300, 200), numbers(200, seed=1), numbers(300, 1, seed=2)
    for function in (lambda x, y: np.exp(y) * x + y, lambda x, y: (y * 2 + 1, x + y * y)):
        for other in (row, column, row[:1], np.float32(2), np.asarray(3.0), 4):
            assert alike(mc.fuse(function)(x, other), function(x, other))
    assert alike(mc.fuse(np.add)(x, row.tolist()), x + row)
    assert alike(mc.fuse(lambda x, y: (x * 2) * (y + 1))(row, column), (row * 2) * (column + 1))


def test_slices_of_one_array():
    def laplace(x):
        return x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]

    def twice(x):
        return laplace(laplace(x) * 2)

    x = numbers(200, 300)
    assert alike(mc.fuse(twice)(x), twice(x))


def test_the_order_of_the_axes_in_memory_is_that_of_numpy():
    x = numbers(50, 60, 70)
    for given in (x, x.T, np.asfortranarray(x), x.transpose(1, 0, 2), x[:, ::2], x[::-1], x.swapaxes(1, 2)):
        found, expected = mc.fuse(lambda x: x * 2 + 1)(given), given * 2 + 1
        assert alike(found, expected)
        assert found.strides == expected.strides


def test_results_are_new_arrays():
    fused, x = mc.fuse(lambda x: (x, x + 1)), numbers(MANY)
    same, more = fused(x)
    assert same is x
    assert not np.shares_memory(more, fused(x + 1)[1])
    assert alike(more, x + 1)


def test_results_of_any_form():
    Pair = namedtuple("Pair", "low high")
    x = numbers(MANY)
    for function in (
        lambda x: Pair(x - 1, [x + 1, "text"]),
        lambda x: {"y": x * 2, "none": None, "of": (x.sum() > 0, 5)},
        lambda x: divmod(x, 2),
        lambda x: None,
    ):
        found, expected = mc.fuse(function)(x), function(x)
        assert type(found) is type(expected)
        assert repr(found) == repr(expected)


def test_methods_and_numbers_by_name():
    class Model:
        scale = 2.0

        @mc.fuse
        def run(self, x, *, shift=1):
            return x * self.scale + shift

    model, x = Model(), numbers(MANY)
    assert alike(model.run(x, shift=3), x * 2 + 3)
    model.scale = 5
    assert alike(model.run(x), x * 5 + 1)
    assert mc.fuse(chosen).__name__ == "chosen"


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i4", "u1", "?", "c8"])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "min", "max", "any", "all"])
def test_reductions_are_those_of_numpy(name, dtype):
    x = (numbers(3, MANY // 3) * 0.01 + 0.5).astype(dtype)
    function = getattr(np, name)
    found, expected = mc.fuse(lambda x: function(np.conjugate(x)))(x), function(np.conjugate(x))
    assert type(found) is type(expected)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reductions_of_tensors(size):
    def function(x, y):
        total = (x * y).sum()
        return x / total, total, (x + y).max(), np.mean(x > 0), (x - y).min(axis=0), y.std() + 1

    def program():
        mesh = mesh_of(size)
        x, y = numbers(5, 7), numbers(7, seed=1)
        t, u = (mc.distribute(a, mc.Layout(specs, mesh)) for a, specs in ((x, ["x", U]), (y, ["x"])))
        for found, expected in zip(mc.fuse(function)(t, u), function(x, y), strict=True):
            close(found, expected)
        empty = mc.distribute(numbers(1), mc.Layout(["x"], mesh))
        assert float(mc.fuse(lambda x: (x - 9).max())(empty)) == numbers(1)[0] - 9
        return float(mc.fuse(lambda x: (x * x).sum())(t)).hex()

    assert len(set(on(size, program))) == 1


def test_a_total_is_a_number():
    def function(x):
        if (x * x).sum() > 1 and x.max():  # what the program does may depend on it
            return x * float(x.min()) + math.floor(x.max()), np.sqrt((x * x).sum()).item()
        return None

    x = numbers(MANY)
    (found, root), (expected, other) = mc.fuse(function)(x), function(x)
    assert alike(found, expected)
    assert math.isclose(root, other)


def test_no_elements():
    with pytest.raises(ValueError, match="zero-size array to reduction operation minimum which has no identity"):
        mc.fuse(lambda x: (x + 1).min())(np.empty(0))
    assert mc.fuse(lambda x: (x + 1).sum())(np.empty((0, 3))) == 0


# -- tensors ----------------------------------------------------------------------------------------------------------


def test_equal_layouts_move_nothing_and_others_are_aligned():
    def program():
        mesh = mesh_of(2)
        t, u = (mc.distribute(numbers(6, 4, seed=n), mc.Layout(["x", U], mesh)) for n in (1, 2))
        close(mc.fuse(chosen)(t, u), chosen(t.to_numpy(), u.to_numpy()))

    def other():
        mesh = mesh_of(2)
        t, u = (mc.distribute(numbers(6, 4, seed=n), mc.Layout(s, mesh)) for n, s in ((1, ["x", U]), (2, [U, "x"])))
        found = mc.fuse(chosen)(t, u)
        close(found, chosen(t.to_numpy(), u.to_numpy()))
        assert found.layout.sharding_specs == ["x", U]

    on(2, other)
    with mc.simulate(2) as world:
        world.run(lambda: mc.fuse(chosen)(*[mc.ones((6, 4), "f8", mc.Layout(["x", U], mesh_of(2)))] * 2))
        assert world.bytes_moved == [0] * 2


def test_each_result_has_the_layout_that_it_has_without_fusing():
    def program():
        mesh = mesh_of(2, 2)
        t, u = (mc.distribute(numbers(6, 4), mc.Layout(specs, mesh)) for specs in (["x", U], [U, "y"]))
        a = numbers(6, 4)
        function = lambda t, u, a: (t * 2, u + 1, t + u, a - 1, t - a)  # noqa: E731 - shorter
        found, expected = mc.fuse(function)(t, u, a), function(t, u, a)
        assert alike(found, expected)

    on(4, program)


def test_what_closures_hold_takes_part():
    def program():
        mesh = mesh_of(2)
        t, u = (mc.distribute(numbers(6, seed=n), mc.Layout(["x"], mesh)) for n in (1, 2))
        a = numbers(6)
        for function in (
            lambda x: u + x * a - t.sum(),
            lambda x: np.where(u > x, u, x),
            lambda x: np.where(u, x, a),
            lambda x: np.where(a, u, x),
            lambda x: x.sum() + u,
        ):
            assert alike(mc.fuse(function)(t), function(t))

    on(2, program)


def test_ranks_outside_of_the_mesh():
    def program():
        mesh = mc.create_mesh([("x", 2)], devices=[0, 1])
        t = mc.distribute(numbers(5), mc.Layout(["x"], mesh))
        found, total = mc.fuse(lambda x: (x * 2 + x, (x * 2).sum()))(t)
        close(found, numbers(5) * 3)
        assert (total.shape, total.local is None) == ((), mesh.rank is None)

    on(3, program)


def test_variables_and_autograd():
    autograd = pytest.importorskip("autograd")
    x = numbers(MANY)
    fused = mc.fuse(lambda x: (x * x * 3).sum())
    assert alike(autograd.grad(fused)(x), 6 * x)

    def program():
        t = mc.distribute(numbers(5), mc.Layout(["x"], mesh_of(2)))
        close(mc.fuse(lambda x: x + 1)(mc.Variable(t)), numbers(5) + 1)
        close(autograd.grad(fused)(t), 6 * numbers(5))

    on(2, program)


# -- warnings and errors ----------------------------------------------------------------------------------------------


def found_warnings(function, *args):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        function(*args)
    return [(each.category, str(each.message), each.filename, each.lineno) for each in found]


def several(x):
    y = 1 / x
    z = np.log(x) + np.sqrt(x - 1)
    with np.errstate(divide="ignore"):
        y = y + 1 / x
    return y, z, (x - x) / (x * 0), (x + 1).astype("f4") * 1e38 * 1e38


@pytest.mark.parametrize("n", [3, MANY])
def test_warnings_are_those_of_numpy_and_name_its_lines(n):
    x = np.zeros(n)
    expected = found_warnings(several, x)
    assert len(expected) == 5
    fused = mc.fuse(several)
    for _ in range(2):
        assert found_warnings(fused, x) == expected
    complex_numbers = numbers(n) + 1j
    cast = lambda x: (x * 2).astype("f8")  # noqa: E731 - shorter
    fused = mc.fuse(cast)
    for _ in range(2):
        assert found_warnings(fused, complex_numbers) == found_warnings(cast, complex_numbers)


class Handler(list):
    """What NumPy calls, or writes to."""

    def __call__(self, *call):
        self.append(call)

    write = list.append


def test_error_handling_is_that_of_numpy():
    x, fused = np.zeros(MANY), mc.fuse(lambda x: (x + 1) / x)
    text = "divide by zero encountered in divide"
    for _ in range(2):
        with np.errstate(all="ignore"):
            assert found_warnings(fused, x) == []
        with np.errstate(divide="raise"), pytest.raises(FloatingPointError, match=text):
            fused(x)
        for how, expected in (("call", ("divide by zero", 1)), ("log", f"Warning: {text}\n")):
            with np.errstate(divide=how, call=Handler()):
                fused(x)
                assert np.geterrcall() == [expected]


def test_warnings_of_tensors_name_the_line():
    def program():
        return mc.fuse(lambda x: 1 / x)(mc.zeros((5,), "f8", mc.Layout(["x"], mesh_of(2))))

    with mc.simulate(2) as world, warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        world.run(program)
    assert {(str(each.message), each.filename) for each in found} == {
        ("divide by zero encountered in divide", __file__)
    }


def test_what_does_not_wait_is_as_without_fusing():
    def in_place(x):
        y = x + 1
        z = y
        y += x
        y[2:4] = x[:2] * 3
        np.add(y, 1, out=y)
        y[y > 2] = 0
        x[1:] = x[:-1] * 2
        u = x * 2
        x *= 0.5
        np.copyto(x[:3], 7)
        return z, np.sort(u), x @ x, np.linalg.norm(x), y.sort(), list(y[:2]), np.array([x, u]), x.tolist()

    found, expected = numbers(MANY), numbers(MANY)
    assert repr(mc.fuse(in_place)(found)) == repr(in_place(expected))
    assert alike(found, expected)
    with pytest.raises(ValueError, match=r"truth value of an array"):
        mc.fuse(lambda x: x if x > 0 else -x)(numbers(3))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        mc.fuse(lambda x: x.nothing())(numbers(3))


def test_other_mistakes():
    with pytest.raises(ValueError, match=r"could not be broadcast together|shape mismatch"):
        mc.fuse(lambda x, y: x + y)(numbers(3), numbers(4))
    with pytest.raises(TypeError, match="ufunc 'bitwise_and' not supported for the input types"):
        mc.fuse(lambda x: x & 1)(numbers(3))
    with pytest.raises(ValueError, match="Integers to negative integer powers"):
        mc.fuse(lambda x: x**-1)(np.arange(1, MANY))
    with pytest.raises(TypeError, match="fuse takes a function, not 3"):
        mc.fuse(3)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        mc.fuse(chosen)(numbers(3))

    def program():
        one, other = mesh_of(2), mesh_of(1)
        t, u = (mc.ones((4,), "f8", mc.Layout(["x"], mesh)) for mesh in (one, other))
        with pytest.raises(mc.MeshError, match="operands must be on one mesh"):
            mc.fuse(lambda x, y: x + y)(t, u)

    on(2, program)


# -- what waits -------------------------------------------------------------------------------------------------------


def test_operations_on_arrays_wait():
    def function(x):
        y = np.where(x > 0, np.sqrt(x * x), x.clip(0, 1)).astype("f4")
        assert type(y.value) is Expression
        total = (y * 2).sum()
        assert type(y.value) is Expression, "a sum of what follows it stores nothing"
        return y / total

    x = numbers(MANY)
    y = np.where(x > 0, np.sqrt(x * x), x.clip(0, 1)).astype("f4")
    assert alike(mc.fuse(function)(x), y / (y * 2).sum())


def test_operations_wait_on_memory_that_the_program_has():
    def program():
        x = numbers(MANY)
        t, u = (mc.from_local(x, mc.Layout(["x"], mesh_of(1))) for _ in range(2))
        kept = []

        def function(t):
            y = t + 1
            assert y._waits
            kept.append(t * 3)
            z = t * 2
            u[0] = 5  # in the same memory
            assert not z._waits
            w = t - 1
            t.local[1] = 7
            assert not w._waits
            assert not (t + 1)._waits, "the program has the block now"
            return y, z, w

        results = mc.fuse(function)(t)
        before, between = numbers(MANY), numbers(MANY)
        between[0] = 5
        for result, expected in zip((*results, *kept), (before + 1, before * 2, between - 1, before * 3), strict=True):
            assert not result._waits
            close(result, expected)
        block = t.local
        assert not (t + 1)._waits
        del block

    on(1, program)


def test_numbers_that_are_arrays_are_read_in_each_call():
    fused, x = mc.fuse(lambda x, c: x * np.sqrt(c) + c), numbers(MANY)
    for c in (4.0, 9.0):
        for given in (np.asarray(c), np.float64(c)):
            assert alike(fused(x, given), x * np.sqrt(c) + c)


def test_texts_and_long_elements():
    texts = np.array(["a", "bc", "b" * 100_000] * 3)
    equal = lambda x: (x == "bc") | (x > "b")  # noqa: E731 - shorter
    assert alike(mc.fuse(equal)(texts), equal(texts))
    dates = np.arange(MANY).astype("M8[h]")
    later = lambda x: np.where(x > np.datetime64("1970-01-02"), x + np.timedelta64(1, "D"), x)  # noqa: E731 - shorter
    assert alike(mc.fuse(later)(dates), later(dates))


def test_one_array_twice_is_not_two():
    fused, x, y = mc.fuse(chosen), numbers(MANY), numbers(MANY, seed=1)
    for _ in range(2):
        assert alike(fused(x, x), chosen(x, x))
        assert alike(fused(x, y), chosen(x, y))


def test_many_kinds_of_operands():
    fused = mc.fuse(lambda x, n: x + n)
    x = numbers(MANY)
    for n in range(200):
        assert fused(x, n)[0] == x[0] + n


def test_long_functions():
    def deep(x):
        values = [x * n for n in range(40)]
        while len(values) > 1:
            values = [a + b for a, b in zip(values[::2], values[1::2], strict=False)] + values[len(values) // 2 * 2 :]
        return values[0]

    def long(x):
        for _ in range(200):
            x = x * 0.5 + 1 / (1 + abs(x).max())
        return x

    x = numbers(MANY)
    assert alike(mc.fuse(deep)(x), deep(x))
    assert alike(mc.fuse(long)(x), long(x))


def scaled(x):
    return x * 2


def test_fused_functions_within_fused_functions():
    inner = mc.fuse(scaled)
    x = numbers(MANY)
    outer = lambda x: inner(x) + inner(x[::-1])  # noqa: E731 - shorter
    assert alike(mc.fuse(outer)(x), x * 2 + x[::-1] * 2)
