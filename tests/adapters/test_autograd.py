# ruff: noqa: B023 - functions made in loops are called in the same turn
"""What autograd sees: gradients through every operation against autograd on the whole arrays."""

import sys
from itertools import islice, product

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import gradients
from meshcomm.numpy.gradients import whole
from meshcomm.numpy.reductions import reductions
from support.patience import run
from support.reference import on_ranks, tuple_layouts
from support.sampling import sampled
from support.tensors import dot, numbers, on

U = mc.UNSHARDED


# -- autograd ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def autograd():
    return pytest.importorskip("autograd")


@pytest.fixture(scope="module")
def anp(autograd):
    return autograd.numpy


def check_grad(autograd, function, arrays, layouts, replaced=lambda t: t):
    """Compare the gradients of a scalar function of tensors with those of the same function of arrays.

    *function* takes tensors or arrays and what moves a tensor, which leaves an array as it is.
    """
    tensors = tuple(mc.distribute(a, layout) for a, layout in zip(arrays, layouts, strict=True))
    found = autograd.grad(lambda p: function(*p, replaced))(tensors)
    expected = autograd.grad(lambda p: function(*p, lambda t: t))(tuple(arrays))
    for grad, tensor, want in zip(found, tensors, expected, strict=True):
        assert (grad.layout, grad.shape) == (tensor.layout, tensor.shape)
        np.testing.assert_allclose(grad.to_numpy(), want, rtol=1e-9, atol=1e-12)


@on_ranks(4)
def test_the_gradient_of_a_relayout(autograd, anp):
    """As recorded of TensorFlow: the gradient of sum(u²) is 2a, in the layout of the source."""
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    for source, target in (("xu", "ux"), ("uu", "xy"), ("xy", "uu"), ("xu", "uy")):
        source, target = (mc.Layout([{"u": U}.get(s, s) for s in specs], mesh) for specs in (source, target))
        a = mc.distribute(numbers(4, 6), source)
        like = mc.zeros((1, 1), "i4", target)
        for move in (
            lambda t: mc.relayout(t, target),
            lambda t: t.relayout(target),
            lambda t: mc.relayout_like(t, like),
        ):
            grad = autograd.grad(lambda t: anp.sum(move(t) ** 2))(a)
            assert grad.layout == source
            assert np.array_equal(grad.to_numpy(), 2 * numbers(4, 6))
            second = autograd.grad(lambda t: anp.sum(autograd.grad(lambda v: anp.sum(move(v) ** 3))(t)))(a)
            assert second.layout == source
            np.testing.assert_allclose(second.to_numpy(), 6 * numbers(4, 6))


def test_the_layout_tensor_may_be_followed_too(autograd, anp):
    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        x = mc.distribute(numbers(3), layout)

        def function(x):
            z = mc.relayout_like(mc.ones((3,), "f8", mc.Layout([U], x.mesh)), x)
            assert z.layout == x.layout == layout
            return anp.sum(x * z + mc.relayout_like(x, x))

        return autograd.grad(function)(x).local.tolist()

    assert on(2, program) == [[2, 2], [2]]


CONTAINERS = ["list", "tuple", "dict"]
LAYOUTS = ["one layout", "a list", "a tuple", "a dict", "a LayoutMap"]


def layouts_as(kind, keys, layouts):
    """The *layouts* of tensors with these *keys* in each form that relayout takes."""
    if kind == "one layout":
        return layouts[0]
    if kind == "a LayoutMap":
        layout_map = mc.LayoutMap(layouts[0].mesh)
        for key, layout in zip(keys, layouts, strict=True):
            layout_map[str(key)] = layout
        return layout_map
    return {"a list": list, "a tuple": tuple}.get(kind, lambda found: dict(zip(keys, found, strict=True)))(layouts)


@pytest.mark.parametrize(
    ("container", "kind"),
    # A dict has no numbers that a list could have.
    [(c, k) for c, k in product(CONTAINERS, LAYOUTS) if c != "dict" or k not in ("a list", "a tuple")],
)
@on_ranks(4)
def test_relayouts_of_several_tensors_that_are_followed(autograd, anp, container, kind):
    """Gradients against finite differences, in the layouts of what was differentiated; also of the second order."""
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    arrays = [numbers(4, 6), numbers(4, 6, seed=1)]
    sources = [mc.Layout(specs, mesh) for specs in (["x", U], [U, "y"])]
    targets = [mc.Layout(specs, mesh) for specs in ([U, "x"], ["y", "x"])]
    keys = ["a", "b"] if container == "dict" else [0, 1]
    to = layouts_as(kind, keys, targets)

    make = {"list": list, "tuple": tuple, "dict": lambda found: dict(zip(keys, found, strict=False))}[container]

    def loss(p):
        moved = mc.relayout(p, to)
        assert type(moved) is type(make([]))
        found = [mc.fetch_layout(moved[key]) for key in keys]
        assert found == (targets if kind != "one layout" else targets[:1] * 2)
        return anp.sum(moved[keys[0]] ** 3 * anp.sin(moved[keys[1]]))

    params = make([mc.distribute(a, layout) for a, layout in zip(arrays, sources, strict=True)])
    grads = autograd.grad(loss)(params)
    assert type(grads) is type(params)
    step = 1e-6
    for number, (key, source) in enumerate(zip(keys, sources, strict=True)):
        assert grads[key].layout == source
        whole, i, j = grads[key].to_numpy(), 1 + number, 4 - number
        near = []
        for sign in (1, -1):
            shifted = [a.copy() for a in arrays]
            shifted[number][i, j] += sign * step
            near.append(np.sum(shifted[0] ** 3 * np.sin(shifted[1])))
        np.testing.assert_allclose(whole[i, j], (near[0] - near[1]) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(grads[keys[0]].to_numpy(), 3 * arrays[0] ** 2 * np.sin(arrays[1]))
    second = autograd.grad(lambda p: anp.sum(autograd.grad(loss)(p)[keys[0]]))(params)
    assert second[keys[0]].layout == sources[0]
    np.testing.assert_allclose(second[keys[0]].to_numpy(), 6 * arrays[0] * np.sin(arrays[1]), rtol=1e-9)


@pytest.mark.parametrize("whole", [False, True])
@on_ranks(2)
def test_relayouts_of_tensors_and_arrays_within_a_dict_that_is_followed(autograd, anp, whole):
    """Also as one tree."""
    mesh = mc.create_mesh([("x", 2)])
    rest = [mc.Layout([U], mesh)]
    rows, columns = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    a, b = numbers(4, 6), numbers(4, 6, seed=1)
    params = {"layer": {"kernel": mc.distribute(a, rows), "plain": b}, "rest": numbers(3)}

    def loss(p):
        if whole:
            tree = mc.relayout([p, (p["rest"],)], [{"layer": columns, "rest": mc.Layout(["x"], mesh)}, rest])
            assert type(tree[1]) is tuple
            assert mc.fetch_layout(tree[1][0]) == rest[0]
            moved = tree[0]["layer"]
        else:
            moved = mc.relayout(p["layer"], {"plain": columns, "kernel": columns})
        assert list(moved) == ["kernel", "plain"]
        assert mc.fetch_layout(moved["kernel"]) == mc.fetch_layout(moved["plain"]) == columns
        return anp.sum(moved["kernel"] ** 2 * moved["plain"])

    grads = autograd.grad(loss)(params)
    assert grads["layer"]["kernel"].layout == rows
    np.testing.assert_allclose(grads["layer"]["kernel"].to_numpy(), 2 * a * b)
    assert isinstance(grads["layer"]["plain"], np.ndarray)
    np.testing.assert_allclose(grads["layer"]["plain"], a**2)
    assert not grads["rest"].any()


FUNCTIONS = {
    "network": lambda np, a, w, b, move: np.mean(np.log(np.sum(np.exp(move(np.tanh(a @ w + b))), axis=1))),
    "stretched": lambda np, a, w, b, move: np.sum(move(a) * np.sum(w) - np.sum(b) / (a**2 + 1)),
    "extremes": lambda np, a, w, b, move: np.max(move(a @ w) * b) + np.sum(np.min(a, axis=0, keepdims=True) * a @ w),
    "ties": lambda np, a, w, b, move: np.sum(np.max(move(a @ w) * 0 + b, axis=0) * 2) + np.sum(np.min(a * 0, 1)),
    "choices": lambda np, a, w, b, move: np.sum(np.where(move(a @ w) > 0, np.maximum(a @ w, b), b * 3) * 2),
    "powers": lambda np, a, w, b, move: np.sum(np.abs(move(a @ w)) ** 1.5 + np.sqrt(np.exp(b)) - 2.0**b),
    "vectors": lambda np, a, w, b, move: (np.sum(a, 0) @ w) @ b + np.sum(move(a.T).T @ (np.dot(w, b) * 2)),
    "means": lambda np, a, w, b, move: np.sum(np.mean(move(a @ w), axis=0, keepdims=True) * b) + np.mean(a.T),
    "arrays": lambda np, a, w, b, move: np.sum((move(a) * numbers(5, 1)) @ (numbers(3, 4) + w) @ b + numbers(5)),
    "products": lambda np, a, w, b, move: (
        np.sum(np.tensordot(move(a), np.outer(w[0], b), 0) ** 2 * np.kron(b, 2.0))
        + np.sum(np.inner(a, move(w.T)) * np.tensordot(a, w, axes=([1], [0])) * np.dot(b, 3.0))
        + np.sum(np.dot(np.expand_dims(a, 1), w) ** 2) * np.trace(w)
        + np.sum(np.kron(move(a), w)[::2] ** 3)
        + np.sum(np.cross(move(a), numbers(5, 3) + np.dot(b, b)) ** 3)
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@on_ranks(4)
def test_gradients_through_arithmetic(autograd, anp, name):
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    two, one = list(tuple_layouts(mesh, 2)), list(tuple_layouts(mesh, 1))
    arrays = numbers(5, 3), numbers(3, 4, seed=1), numbers(4, seed=2)
    for layouts in sampled(islice(product(two, two, one, two), 0, None, 409), 3):
        target = layouts[-1]
        check_grad(
            autograd, lambda *p: FUNCTIONS[name](anp, *p), arrays, layouts[:3], lambda t: mc.relayout(t, target)
        )


@on_ranks(4)
def test_the_second_order(autograd, anp):
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    arrays, source = (numbers(3, 3), numbers(3, 3, seed=1)), mc.Layout([U, "x"], mesh)
    target = mc.Layout(["y", "x"], mesh)

    def inner(a, w, move):
        product = anp.tanh(move(a @ w)) * anp.max(anp.inner(a, a.T), axis=0)
        return anp.sum(product) + anp.mean(anp.where(a > 0, a * w, w) ** 3)

    def outer(a, w, move):
        of_a, of_w = autograd.grad(lambda p: inner(*p, move))((a, w))
        return anp.sum(of_a**2) + anp.sum(anp.tensordot(of_w, a, 1)) + anp.mean(anp.dot(of_w, of_a))

    check_grad(autograd, outer, arrays, (source, mc.Layout(["y", U], mesh)), lambda t: mc.relayout(t, target))


def test_inner_traces_of_ranks_that_take_turns(autograd, anp):
    """autograd counts traces for all threads together; ranks that wait inside of a trace must not be confused."""

    def program():
        mesh = mc.create_mesh([("x", 2)])
        rows, whole = mc.Layout(["x"], mesh), mc.Layout([U], mesh)

        def inner(x, y):
            return anp.sum(mc.relayout(x * y, whole) ** 2)

        def outer(y):
            for _ in range(mesh.rank):  # ranks open and close different numbers of traces
                autograd.grad(lambda z: z**2)(3.0)
            return anp.sum(autograd.grad(inner)(y, y) * y)

        return autograd.grad(outer)(mc.distribute(np.array([1.0, 2, 3]), rows)).to_numpy().tolist()

    assert on(2, program) == [[8, 64, 216]] * 2


@on_ranks(4)
def test_collectives_on_plain_arrays(autograd, anp):
    """The gradient of the sum over ranks."""
    rank = mc.create_mesh().rank
    x, weight = numbers(4, 4, seed=rank), numbers(4, 4, seed=10)
    pairs = [(0, 1), (1, 2), (2, 3)]
    for move, back in (
        (lambda v: mc.all_to_all(v, None, 0, 1, 4), lambda g: mc.all_to_all(g, None, 1, 0, 4)),
        (lambda v: mc.all_gather(v, None, 0), lambda g: gradients.all_gather_vjp(g, None, 0)),
        (lambda v: mc.reduce_scatter(v, None, 0), lambda g: gradients.reduce_scatter_vjp(g, None, 0)),
        (lambda v: mc.all_reduce(v, None), lambda g: mc.all_reduce(g, None)),
        (lambda v: mc.broadcast(v, None, 2), lambda g: gradients.broadcast_vjp(g, None, 2)),
        (lambda v: mc.collective_permute(v, pairs), lambda g: gradients.collective_permute_vjp(g, pairs)),
    ):
        grad = autograd.grad(lambda v: anp.sum(move(v) ** 3))(x)
        np.testing.assert_allclose(grad, back(3 * move(x) ** 2))
        second = autograd.grad(lambda v: anp.sum(autograd.grad(lambda u: anp.sum(move(u) ** 3))(v) * weight))(x)
        np.testing.assert_allclose(second, back(6 * move(x) * move(weight)))
    with pytest.raises(NotImplementedError, match="op 'sum' only, not for 'max'"):
        autograd.grad(lambda v: anp.sum(mc.all_reduce(v, None, "max")))(x)


@on_ranks(2)
def test_plain_inputs_get_plain_gradients(autograd, anp):
    t = mc.distribute(numbers(5, 3), mc.Layout(["x", U], mc.create_mesh([("x", 2)])))
    number = autograd.grad(lambda c: anp.sum(t * c))(2.0)
    row = autograd.grad(lambda r: anp.sum(t * r))(numbers(3))
    relaid = autograd.grad(lambda a: anp.sum(mc.relayout(a, t.layout) * t))(numbers(5, 3, seed=1))
    vector = autograd.grad(lambda v: anp.sum(t @ v))(numbers(3))
    grad = autograd.grad(lambda v: np.sum(whole(v) * numbers(5, 3)))(t)
    assert number == pytest.approx(numbers(5, 3).sum())
    np.testing.assert_allclose(row, numbers(5, 3).sum(0))
    np.testing.assert_allclose(relaid, numbers(5, 3))
    np.testing.assert_allclose(vector, numbers(5, 3).sum(0))
    assert {type(grad) for grad in (row, relaid, vector)} == {np.ndarray}
    assert grad.layout == t.layout
    np.testing.assert_allclose(grad.to_numpy(), numbers(5, 3))


@on_ranks(2)
def test_methods_and_functions_on_followed_tensors(autograd, anp):
    """NumPy's own functions and the methods of tensors work too, not only those of autograd.numpy."""
    mesh = mc.create_mesh([("x", 2)])
    rows = mc.Layout(["x", U], mesh)
    t = mc.distribute(np.abs(numbers(4, 3)), rows)
    other = mc.distribute(numbers(3, 4, seed=1), mc.Layout([U, "x"], mesh))

    def function(t):
        assert (t.shape, t.ndim, t.size, t.dtype, t.mesh) == ((4, 3), 2, 12, np.dtype("f8"), mesh)
        total = np.sum(t) + t.sum(axis=0).mean() + t.max() + t.min(axis=1).sum() + anp.amax(t) + reductions.min(t)
        total = total + reductions.sum(t, 0, None, True).sum() + reductions.mean(t) + reductions.max(t, 1).sum()
        total = total + (other @ t).sum() + (t @ other).sum() + mc.matmul(t, other).sum()
        return total + (other.T * t + t * other.T).sum() + np.where(t > 1, t, other.T).sum() + np.log(t.T).sum()

    grad = autograd.grad(function)(t)
    assert grad.layout == rows
    step = 1e-6
    direction = mc.distribute(numbers(4, 3, seed=5), rows)
    slope = float((function(t + step * direction) - function(t - step * direction)) / (2 * step))
    assert dot(grad, direction) == pytest.approx(slope, rel=1e-5)


@on_ranks(2)
def test_complex_tensors(autograd, anp):
    mesh = mc.create_mesh([("x", 2)])
    z = numbers(3, 3) + 1j * numbers(3, 3, seed=1)
    arrays = z, numbers(3, 3, seed=2)

    def function(z, w, move):
        return anp.sum(anp.real(move(z * w) * anp.conj(z)) + anp.imag(z @ w) + anp.abs(z + w))

    layouts = mc.Layout(["x", U], mesh), mc.Layout([U, "x"], mesh)
    check_grad(autograd, function, arrays, layouts, lambda t: mc.relayout(t, layouts[1]))
    holomorphic = autograd.holomorphic_grad(lambda t: anp.sum(t**2))(mc.distribute(z, layouts[0]))
    np.testing.assert_allclose(holomorphic.to_numpy(), autograd.holomorphic_grad(lambda t: anp.sum(t**2))(z))


ORDERS = {
    "autograd first": "import autograd, meshcomm as mc",
    "meshcomm first": "import meshcomm as mc, autograd",
    "late": "import meshcomm as mc\nmesh = mc.Mesh(range(1), [('x', 1)])\nimport autograd.numpy, autograd",
    "asked for": "import importlib.util, meshcomm as mc\nassert importlib.util.find_spec('autograd')\nimport autograd",
}


PROGRAM = """
import numpy as np

def program():
    rows = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
    t = mc.distribute(np.arange(3.0), rows)
    return autograd.grad(lambda v: (mc.relayout(v, mc.Layout(["unsharded"], v.mesh)) ** 2).sum())(t).local.tolist()

with mc.simulate(2) as world:
    print(world.run(program))
"""


def run_python(text):
    return run([sys.executable, "-W", "error", "-c", text])


@pytest.mark.parametrize("order", ORDERS)
def test_the_order_of_imports_does_not_matter(autograd, order):
    run = run_python(ORDERS[order] + PROGRAM)
    assert run.stdout == "[[0.0, 2.0], [4.0]]\n", run.stderr


def test_autograd_is_not_imported_for_a_program_that_does_not():
    run = run_python("import sys, meshcomm, meshcomm.gradients; print([n for n in sys.modules if 'autograd' in n])")
    assert run.stdout == "[]\n", run.stderr


WITHOUT = """
import sys

class NoAutograd:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "autograd":
            raise ImportError("No module named 'autograd' (blocked)")

sys.meta_path.insert(0, NoAutograd())
import numpy as np, meshcomm as mc
from meshcomm import gradients
try:
    import autograd
except ImportError as error:
    print(error)
with mc.simulate(2) as world:
    print(world.run(lambda: gradients.all_reduce_vjp([1], None).tolist()))
"""


def test_everything_else_works_without_autograd():
    run = run_python(WITHOUT)
    assert run.stdout == "No module named 'autograd' (blocked)\n[[2], [2]]\n", run.stderr


# -- shapes -----------------------------------------------------------------------------------------------------------

SHAPES = {
    "reshape": lambda np, t: np.reshape(t, (2, 6)),
    "ravel": lambda np, t: np.ravel(t),
    "expand_dims": lambda np, t: np.squeeze(np.expand_dims(t, 0), 0),
    "moveaxis": lambda np, t: np.moveaxis(t, 0, 1),
    "swapaxes": lambda np, t: np.swapaxes(t, 0, 1),
    "roll": lambda np, t: np.roll(t, 1, axis=0),
}


@pytest.mark.parametrize("name", SHAPES)
@on_ranks(2)
def test_gradients_of_shapes_come_back_in_the_layout_of_the_tensor(autograd, anp, name):
    mesh = mc.create_mesh([("x", 2)])
    x, w = numbers(4, 3), numbers(12, seed=1)

    def value(t, weights):
        return anp.sum(anp.reshape(SHAPES[name](anp, t), (12,)) ** 2 * weights)

    expected = autograd.grad(value)(x, w)
    for specs in (["x", U], [U, "x"], [mc.Cyclic("x", 1), U]):
        layout = mc.Layout(specs, mesh)
        weights = mc.distribute(w, mc.Layout(["x"], mesh))
        found = autograd.grad(value)(mc.distribute(x, layout), weights)
        assert found.layout == layout
        np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-12)


@on_ranks(2)
def test_gradients_of_reshape_with_a_layout(autograd, anp):
    mesh = mc.create_mesh([("x", 2)])
    t = mc.distribute(numbers(4, 3), mc.Layout(["x", U], mesh))
    columns = mc.Layout([U, "x"], mesh)
    found = autograd.grad(lambda t: anp.sum(mc.reshape(t, (2, 6), columns) ** 2))(t)
    assert found.layout == t.layout
    np.testing.assert_allclose(found.to_numpy(), 2 * numbers(4, 3))


INDICES = {
    "a list": lambda t, i, j: t[[2, 0, 2]],
    "a tensor": lambda t, i, j: t[i],
    "two arrays": lambda t, i, j: t[i, j],
    "a slice and an array": lambda t, i, j: t[1:, j],
    "a mask": lambda t, i, j: t[np.arange(20).reshape(4, 5) % 3 == 0],
    "a slice": lambda t, i, j: t[1:3, ::2],
    "an integer": lambda t, i, j: t[3],
    "take": lambda t, i, j: _taken(t, i, lambda x: x[i], axis=0),
    "take of all": lambda t, i, j: _taken(
        t, [[1, 39], [1, -2]], lambda x: x[[[0, 3], [0, 3]], [[1, 4], [1, 3]]], mode="wrap"
    ),
    "take of one": lambda t, i, j: _taken(t, 1, lambda x: x[:, 1], axis=1),
    "take_along_axis": lambda t, i, j: _taken_along(t, i, j),
}


def _taken(t, indices, of_array, **options):
    """What take gives; autograd has no gradient for arrays."""
    return sys.modules["autograd.numpy"].take(t, indices, **options) if hasattr(t, "layout") else of_array(t)


def _taken_along(t, i, j):
    rows = np.arange(4)[:, None]
    if not hasattr(t, "layout"):
        return t[rows, (i[:, None] + j) % 5]
    return sys.modules["autograd.numpy"].take_along_axis(t, (np.reshape(i, (4, 1)) + j) % 5, 1)


@pytest.mark.parametrize("name", INDICES)
@on_ranks(2)
def test_gradients_of_indexing(autograd, anp, name):
    """Elements that are taken twice count twice; to the second order."""
    mesh = mc.create_mesh([("x", 2)])
    i, j = np.array([3, 0, 3, 1]), np.array([4, 4, 2, 0])
    a = numbers(4, 5)
    for specs, cut in (["x", U], "x"), ([U, "x"], U), ([mc.Cyclic("x", 1), U], "x"):
        t = mc.distribute(a, mc.Layout(specs, mesh))
        pair = [mc.distribute(each, mc.Layout([cut], mesh)) for each in (i, j)]

        def value(x, *index):
            return anp.sum(INDICES[name](x, *index) ** 3)

        def slope(x, *index):
            return anp.sum(autograd.grad(value)(x, *index) ** 2)

        for function in (value, slope):
            grad = autograd.grad(function)(t, *pair)
            assert grad.layout == t.layout
            np.testing.assert_allclose(grad.to_numpy(), autograd.grad(function)(a, i, j), rtol=1e-9, atol=1e-12)


# -- contractions -----------------------------------------------------------------------------------------------------

SUMS = ["ij,jk->ik", "bij,bjk->bik", "ij,ij->", "i,jk->kij", "ji->ij", "ij->j", "iij,j->i", "...i,i...->..."]
SIZES = dict(zip("bijkl", (2, 3, 4, 5, 2), strict=True))


@pytest.mark.parametrize("text", [*SUMS, "ij,jk,kl,j->il", "ij,kj->ik of length 1"])
@on_ranks(4)
def test_einsum_is_linear_in_each_operand(autograd, anp, text):
    """The gradient in an operand, times a direction: the sum with the direction for it. Of the second order too."""
    mesh = mc.create_mesh([("x", 2), ("y", 2)])
    text, stretched = text.removesuffix(" of length 1"), text.endswith("1")
    terms = text.partition("->")[0].replace("...", "b").split(",")
    shapes = [tuple(SIZES[index] for index in term) for term in terms]
    shapes[0] = (*shapes[0][:-1], 1) if stretched else shapes[0]
    layouts = [list(tuple_layouts(mesh, len(shape))) for shape in shapes]
    for seed, einsum in enumerate([mc.einsum, anp.einsum, mc.einsum]):
        factor = 1 + 2j if seed == 2 else 1
        arrays, ways = ([numbers(*shape, seed=s) * factor for shape in shapes] for s in (seed, 20))
        expected = np.asarray(np.einsum(text, *arrays))
        weights = mc.distribute(numbers(*expected.shape, seed=7), mc.Layout.replicated(mesh, expected.ndim))
        chosen = [of[(37 * seed + 11) % len(of)] for of in layouts]
        tensors = tuple(map(mc.distribute, arrays, chosen))

        def loss(p):
            return anp.sum(anp.real(einsum(text, *p) * weights))

        def slope(p):
            return anp.sum(anp.real(autograd.grad(loss)(p)[0] * mc.distribute(ways[0], p[0].layout)))

        for function, known in [(loss, arrays), (slope, [ways[0], *arrays[1:]])][: len(terms)]:
            for number, (grad, tensor) in enumerate(zip(autograd.grad(function)(tensors), tensors, strict=True)):
                assert (grad.layout, grad.shape, grad.dtype) == (tensor.layout, tensor.shape, tensor.dtype)
                wanted = np.einsum(text, *known[:number], ways[number], *known[number + 1 :]) * weights.local
                wanted = 0 if function is slope and number == 0 else np.sum(wanted.real)
                assert np.sum(grad.to_numpy() * ways[number]).real == pytest.approx(wanted, rel=1e-9)
