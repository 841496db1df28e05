"""Variables, modules and scopes: the cases of TensorFlow's variable_test and layout_map_test, and our rules."""

import copy
import dataclasses
import importlib
import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshcomm as mc
from meshcomm.context import default_mesh
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from meshcomm.initializers import random_normal, random_uniform
from meshcomm.layout import UNSHARDED, Layout
from meshcomm.layout_map import LayoutMap, layout_map_scope
from meshcomm.variables import DVariable, Module, Variable

DOC = Path(__file__).parent.parent / "docs" / "layout_map.md"
EXAMPLE = Path(__file__).parent.parent / "mpi_examples" / "layout_map_models.py"
REPEATABLE = settings(derandomize=True, database=None, deadline=None)


def departures(title):
    """The first cells of the table of departures below *title*."""
    section = DOC.read_text().partition(f"## Departures from TensorFlow: {title}")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]


def on_ranks(size):
    """Run the test on every rank of a simulated world of *size* ranks."""

    def decorate(test):
        def run():
            with mc.simulate(size) as world:
                world.run(test)

        run.__name__ = test.__name__
        return run

    return decorate


def grid():
    """A mesh over all ranks, x by y, and layouts on it."""
    mesh = mc.create_mesh([("x", 2), ("y", -1)])
    return mesh, lambda *specs: Layout([{"u": UNSHARDED}.get(spec, spec) for spec in specs], mesh)


class Dense(Module):
    def __init__(self, n, m, seed=0):
        self.kernel = Variable(random_normal(seed), (n, m), "f4")
        self.bias = Variable(0.0, (m,), "f4")


class Net(Module):
    def __init__(self):
        self.d1 = Dense(4, 6, seed=1)
        self.d2 = Dense(6, 2, seed=2)


def paths(module):
    return [path for path, _ in module.named_variables()]


# -- DVariable: TensorFlow's variable_test.py -------------------------------------------------------------------------


@on_ranks(4)
def test_neither_layout_nor_dtensor():
    with pytest.raises(LayoutError, match="Neither layout nor DTensor initial value are provided"):
        DVariable(np.ones(3))
    with pytest.raises(LayoutError, match="Neither layout nor DTensor initial value are provided"):
        Variable(np.ones(3))


@on_ranks(4)
def test_the_default_mesh():
    mesh, layout = grid()
    with default_mesh(mesh):
        v = Variable(random_normal(0), (2, 3))
        assert v.layout == layout("u", "u")
        with LayoutMap().scope():
            assert not Variable(1.0).initialized
        with pytest.raises(LayoutError, match="Neither layout nor DTensor"):
            DVariable(1.0)


@on_ranks(4)
def test_conflicting_layout():
    _, layout = grid()
    t = mc.ones((4, 4), "f4", layout("x", "u"))
    with pytest.raises(LayoutError, match="Conflicting layout are provided for initial value layout"):
        DVariable(t, layout=layout("u", "x"))
    assert DVariable(t, layout=layout("x", "u")).layout == t.layout


@on_ranks(4)
def test_variable_follows_its_initial_value():
    _, layout = grid()
    t = mc.distribute(np.arange(6.0).reshape(2, 3), layout("x", "y"))
    v = DVariable(t, name="v", trainable=False)
    assert (v.layout, v.shape, v.dtype, v.mesh) == (t.layout, (2, 3), np.float64, t.mesh)
    assert (v.name, v.trainable, v.path, v.initialized) == ("v", False, None, True)
    t.local[...] = 9
    np.testing.assert_array_equal(v.to_numpy(), np.arange(6.0).reshape(2, 3))
    assert DVariable(v.value, dtype="f4").dtype == np.float32
    assert DVariable(v).layout == v.layout


@on_ranks(4)
def test_layouts_of_initial_values():
    _, layout = grid()
    array = np.arange(15, dtype="i2").reshape(3, 5)
    for specs in itertools.permutations(["x", "y", "u"], 2):
        v = DVariable(array, layout(*specs))
        assert v.dtype == np.int16
        np.testing.assert_array_equal(v.to_numpy(), array)
    v = DVariable(lambda slices, shape, dtype: array[slices], layout("x", "y"), shape=array.shape)
    assert v.dtype == np.float64
    np.testing.assert_array_equal(v.to_numpy(), array)
    np.testing.assert_array_equal(DVariable(7, layout("y"), shape=3).to_numpy(), [7, 7, 7])
    assert DVariable(7, layout()).to_numpy().shape == ()


@on_ranks(4)
def test_an_initializer_is_called_for_the_block_only():
    _, layout = grid()
    calls = []

    def initial(slices, shape, dtype):
        calls.append((slices, shape, dtype))
        return np.zeros([s.stop - s.start for s in slices], dtype)

    v = Variable(initial, (5, 4), "f4", layout=layout("x", "u"))
    rank = v.mesh.rank
    assert calls == [(v.layout.block_slices((5, 4), rank), (5, 4), np.dtype("f4"))]


@on_ranks(4)
def test_assign_keeps_the_layout():
    _, layout = grid()
    v = DVariable(np.zeros((4, 5), "f4"), layout("x", "u"))
    before = v.value
    new = np.arange(20.0).reshape(4, 5)
    for value in (new, mc.distribute(new, layout("u", "y")), mc.distribute(new, layout("x", "u")), new.tolist()):
        assert v.assign(np.zeros((4, 5))) is v
        assert v.assign(value) is v
        assert (v.layout, v.dtype) == (layout("x", "u"), np.float32)
        np.testing.assert_array_equal(v.to_numpy(), new)
    np.testing.assert_array_equal(before.to_numpy(), np.zeros((4, 5)))


@on_ranks(4)
def test_what_is_assigned_is_copied():
    _, layout = grid()
    v = DVariable(np.zeros(4), layout("x"))
    for value in (np.ones(4), mc.ones(4, "f8", layout("x")), mc.ones(4, "f8", layout("u"))):
        v.assign(value)
        (value if isinstance(value, np.ndarray) else value.local)[...] = 5
        np.testing.assert_array_equal(v.to_numpy(), np.ones(4))
    w = DVariable(np.zeros(4), layout("x")).assign(v)
    v.local[...] = 7
    np.testing.assert_array_equal(w.to_numpy(), np.ones(4))


@on_ranks(4)
def test_assign_add_and_assign_sub():
    _, layout = grid()
    v = DVariable(np.arange(6.0, dtype="f4").reshape(2, 3), layout("x", "y"))
    assert v.assign_add(np.ones((2, 3))) is v
    assert v.assign_sub(mc.full((2, 3), 2.0, "f8", layout("u", "x"))) is v
    v.assign_add(10).assign_sub(np.float64(0.5)).assign_add(v)
    np.testing.assert_array_equal(v.to_numpy(), 2 * (np.arange(6.0).reshape(2, 3) + 8.5))
    assert (v.layout, v.dtype) == (layout("x", "y"), np.float32)


@on_ranks(4)
def test_assign_add_to_a_scalar():
    _, layout = grid()
    v = DVariable(1, layout()).assign_add(2).assign_sub(mc.ones((), "i4", layout()))
    assert (v.to_numpy().tolist(), v.dtype, v.local.shape) == (2, np.int64, ())


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_what_cannot_be_assigned(method):
    def program():
        mesh, layout = grid()
        v = DVariable(np.zeros((2, 3), "i4"), layout("x", "u"))
        change = getattr(v, method)
        for value in (np.zeros((3, 2)), np.zeros((1, 3)), np.zeros(()), mc.zeros((2, 2), "i4", layout("x", "u"))):
            with pytest.raises(ShapeError, match=r"Shape mismatch: DVariable.* has shape \(2, 3\)"):
                change(value)
        for value in (np.zeros((2, 3)), mc.zeros((2, 3), "f4", layout("x", "u")), np.full((2, 3), None)):
            with pytest.raises(DTypeError):
                change(value)
        with pytest.raises(MeshError, match="simulated world"):
            change(mc.zeros((2, 3), "i4", Layout.replicated(foreign, 2)))
        assert v.to_numpy().tolist() == [[0] * 3] * 2
        assert v.mesh is mesh

    with mc.simulate(4):
        foreign = mc.create_mesh([("x", 4)])
    with mc.simulate(4) as world:
        world.run(program)


@on_ranks(4)
def test_values_on_another_mesh_are_relaid():
    mesh, layout = grid()
    v = DVariable(np.ones((2, 3), "i4"), layout("x", "u"))
    other = mc.create_mesh([("x", 3)], devices=[3, 2, 1])
    v.assign(mc.distribute(np.arange(6, dtype="i4").reshape(2, 3), Layout(["unsharded", "x"], other)))
    v.assign_add(mc.distribute(np.full((2, 3), 10, "i4"), Layout(["x", "unsharded"], other)))
    assert v.mesh is mesh
    assert v.to_numpy().tolist() == [[10, 11, 12], [13, 14, 15]]


@on_ranks(4)
def test_a_number_of_another_kind_is_not_added():
    _, layout = grid()
    v = DVariable(np.zeros(3, "i4"), layout("x"))
    with pytest.raises(DTypeError, match="float64 for a variable of dtype int32"):
        v.assign_add(0.5)
    with pytest.raises(ShapeError, match="Shape mismatch"):
        v.assign(0)
    for v, delta in (
        (DVariable(np.zeros(3, "i1"), layout("x")), 300),
        (DVariable(np.zeros(3, "?"), layout("x")), True),
    ):
        with pytest.raises(DTypeError, match=r"subtract does not work on DVariable\(\(3,\), (int8|bool)"):
            v.assign_sub(delta)


@pytest.mark.parametrize(
    ("initial", "kwargs", "error", "says"),
    [
        (random_normal(0), {}, ShapeError, "which needs shape="),
        (np.ones(3), {"shape": (4,)}, ShapeError, r"has shape \(3,\), but the variable is to have shape \(4,\)"),
        (0.5, {"shape": 3, "dtype": "i4"}, DTypeError, "float64 for a variable of dtype int32"),
        (np.ones(3), {"dtype": object}, DTypeError, "object"),
        (random_normal(0), {"shape": 3, "dtype": "i4"}, DTypeError, "floating point"),
        (lambda slices, shape, dtype: np.ones(9), {"shape": 3}, ShapeError, "must return a block of shape"),
        (lambda slices, shape, dtype: np.ones(1, complex), {"shape": 1}, DTypeError, "complex"),
        (np.ones((2, 2)), {}, LayoutError, "rank 2"),
        (np.ones(3), {"shape": -1}, ShapeError, "-1"),
    ],
)
def test_what_makes_no_variable(initial, kwargs, error, says):
    def program():
        _, layout = grid()
        with pytest.raises(error, match=says):
            Variable(initial, layout=layout("u"), **kwargs)

    with mc.simulate(2) as world:
        world.run(program)


@on_ranks(2)
def test_a_dtensor_does_not_fill_a_shape():
    _, layout = grid()
    with pytest.raises(ShapeError, match="does not fill shape"):
        Variable(mc.ones((), "f4", layout()), shape=(3,))


@on_ranks(4)
def test_variables_as_arrays():
    _, layout = grid()
    np.testing.assert_array_equal(np.asarray(DVariable(np.arange(3), layout("u"))), np.arange(3))
    with pytest.raises(TypeError, match="divided over its ranks"):
        np.asarray(DVariable(np.arange(3), layout("x")))
    assert repr(DVariable(np.arange(3), layout("x"), name="v")) == "DVariable('v', (3,), int64, ['x'])"


def test_ranks_outside_of_the_mesh():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        v = (
            DVariable(np.arange(3), Layout(["x"], mesh))
            .assign_add(1)
            .assign(np.zeros(3, int))
            .assign_sub(np.ones(3, int))
        )
        for change in (0.5, np.ones(3)):
            with pytest.raises(DTypeError):
                v.assign_add(change)
        return v.shape, None if v.local is None else v.local.tolist()

    with mc.simulate(3) as world:
        assert world.run(program) == [((3,), [-1, -1]), ((3,), [-1]), ((3,), None)]


# -- initial values ---------------------------------------------------------------------------------------------------


@st.composite
def blocks(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    slices = []
    for n in shape:
        start = draw(st.integers(0, n))
        slices.append(slice(start, draw(st.integers(start, n))))
    return shape, tuple(slices)


@pytest.mark.parametrize("initializer", [random_normal(3, 1.0, 2.0), random_uniform(3, -1.0, 5.0)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "c8"])
@settings(REPEATABLE, max_examples=60)
@given(blocks())
def test_every_block_is_cut_from_the_same_array(initializer, dtype, case):
    shape, slices = case
    whole = initializer(tuple(slice(0, n) for n in shape), shape, dtype)
    block = initializer(slices, shape, dtype)
    assert (whole.shape, whole.dtype) == (shape, np.dtype(dtype))
    assert block.dtype == np.dtype(dtype)
    assert block.tobytes() == whole[..., *slices].tobytes()


@pytest.mark.parametrize("shape", [(200_000,), (7, 40_001), (70_000, 3), (300, 400)])
def test_long_blocks_are_cut_from_the_same_array(shape):
    normal = random_normal(5)
    whole = normal(tuple(slice(0, n) for n in shape), shape, "f8")
    for lower, upper in itertools.product([0, 0.31], [0.77, 1]):
        slices = tuple(slice(int(n * lower), int(n * upper)) for n in shape)
        np.testing.assert_array_equal(normal(slices, shape, "f8"), whole[slices])


def test_values_are_those_of_philox():
    bits = np.random.Philox(key=11).random_raw(24)
    expected = (bits >> np.uint64(11)) * 2.0**-53
    whole = (slice(0, 24),)
    np.testing.assert_array_equal(random_uniform(11)(whole, (24,), "f8"), expected)
    radius, angle = np.sqrt(-2 * np.log1p(-expected[::2])), 2 * np.pi * expected[1::2]
    np.testing.assert_allclose(random_normal(11)((slice(0, 12),), (12,), "f8"), radius * np.cos(angle), rtol=1e-14)


def test_distributions():
    shape, whole = (400, 500), (slice(0, 400), slice(0, 500))
    normal = random_normal(1, mean=3.0, stddev=2.0)(whole, shape, "f8")
    assert abs(normal.mean() - 3) < 0.03
    assert abs(normal.std() - 2) < 0.03
    assert abs(np.mean(np.abs(normal - 3) < 2) - 0.6827) < 0.005
    uniform = random_uniform(1, low=-1.0, high=3.0)(whole, shape, "f8")
    assert -1 <= uniform.min() < -0.999
    assert 2.999 < uniform.max() < 3
    assert abs(uniform.mean() - 1) < 0.02
    assert abs(np.corrcoef(uniform[:, :-1].ravel(), uniform[:, 1:].ravel())[0, 1]) < 0.01


def test_seeds_are_independent():
    a, b = (random_normal(seed)((slice(0, 9),), (9,), "f8") for seed in (0, 2**128 - 1))
    assert not np.isclose(a, b).any()
    assert random_normal(np.int64(0)) == random_normal(0)


@pytest.mark.parametrize("seed", [-1, 2**128, 1.5, None, True])
@pytest.mark.parametrize("initializer", [random_normal, random_uniform])
def test_what_is_no_seed(initializer, seed):
    with pytest.raises(ShapeError, match="seed"):
        initializer(seed)


@pytest.mark.parametrize("dtype", ["i4", "?", "u1", "S3", "M8[s]"])
def test_dtypes_without_random_numbers(dtype):
    with pytest.raises(DTypeError, match="floating point"):
        random_uniform(0)((slice(0, 2),), (2,), dtype)


def test_random_numbers_of_foreign_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    block = random_uniform(0)((slice(1, 3),), (4,), ml_dtypes.bfloat16)
    assert block.dtype == ml_dtypes.bfloat16
    assert block.tolist() == random_uniform(0)((slice(0, 4),), (4,), "f8").astype(block.dtype)[1:3].tolist()


def test_initial_values_do_not_depend_on_layout_and_number_of_ranks():
    def program(specs):
        mesh = mc.create_mesh([("x", 2), ("y", -1)]) if mc.create_mesh().size % 2 == 0 else mc.create_mesh([("x", -1)])
        m = LayoutMap(mesh)
        names = mesh.dim_names
        m["d1.kernel"] = Layout([names[-1] if spec == "y" else spec for spec in specs], mesh)
        with m.scope():
            net = Net()
        return [v.to_numpy().tobytes() for v in net.variables()]

    values = []
    for size in (1, 2, 3, 4, 6):
        for specs in (("x", UNSHARDED), (UNSHARDED, "y"), (UNSHARDED, UNSHARDED)):
            with mc.simulate(size) as world:
                values += world.run(program, specs)
    assert all(value == values[0] for value in values)


# -- paths ------------------------------------------------------------------------------------------------------------


class Tree(Module):
    """What the specification lists, and more."""

    def __init__(self):
        self.pairs = [(Dense(2, 2), Dense(2, 2)), (Dense(2, 2), Dense(2, 2))]
        self.blk = Module.__new__(Module)
        self.blk.d = Dense(2, 2)
        self.own = Variable(1.0, (3,))
        self.layers = {"b": Dense(2, 2), "a": [Variable(2.0, (1,))], 3: Variable(3.0, ())}
        self.number, self.text, self.nothing, self.array = 1, "text", None, np.ones(2)


TREE_PATHS = [
    "blk.d.bias",
    "blk.d.kernel",
    "layers.3",
    "layers.a.0",
    "layers.b.bias",
    "layers.b.kernel",
    "own",
    *(f"pairs.{i}.{j}.{name}" for i in (0, 1) for j in (0, 1) for name in ("bias", "kernel")),
]


@on_ranks(2)
def test_paths():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["pairs.1.0.bias"] = layout("x")
    m["own"] = layout("x")
    with m.scope():
        tree = Tree()
    assert paths(tree) == TREE_PATHS == [v.path for v in tree.variables()]
    assert tree.pairs[1][0].bias.layout == tree.own.layout == layout("x")
    assert all(v.initialized for v in tree.variables())
    sharded = [path for path, v in tree.named_variables() if not v.layout.is_fully_replicated()]
    assert sharded == ["own", "pairs.1.0.bias"]
    assert paths(tree.blk) == ["d.bias", "d.kernel"]
    assert len(m.report(tree.named_variables()).unmatched) == len(TREE_PATHS) - 2


@on_ranks(2)
def test_the_page_as_tf_keras_tests_it():
    mesh, layout = grid()
    m = LayoutMap(mesh=mesh)
    m["d1.kernel"], m["d1.bias"] = layout("u", "x"), layout("x")
    m["d2.kernel"], m["d2.bias"] = layout("x", "u"), layout("u")
    with layout_map_scope(m):
        model = Net()
    assert model.d1.kernel.layout == m["d1.kernel"]
    assert model.d1.bias.layout == m["d1.bias"]
    assert model.d2.kernel.layout == m["d2.kernel"]
    assert model.d2.bias.layout == m["d2.bias"]
    assert model.d1.kernel is model.d1.variables()[1] is model.variables()[1]
    assert model.d1.kernel.local.shape == (4, 3)
    assert type(model.d1.kernel) is Variable


@on_ranks(2)
def test_an_empty_map_replicates():
    mesh, layout = grid()
    with LayoutMap(mesh).scope():
        model = Net()
    assert [v.layout for v in model.variables()] == [layout("u"), layout("u", "u")] * 2


@on_ranks(1)
def test_trainable_variables():
    mesh, _ = grid1()

    class Norm(Module):
        def __init__(self):
            self.gamma = Variable(1.0, (2,))
            self.moving_mean = Variable(0.0, (2,), trainable=False)

    with LayoutMap(mesh).scope():
        norm = Norm()
    assert norm.variables() == [norm.gamma, norm.moving_mean]
    assert norm.trainable_variables() == [norm.gamma]


def grid1():
    mesh = mc.create_mesh([("x", 1)])
    return mesh, lambda *specs: Layout([{"u": UNSHARDED}.get(spec, spec) for spec in specs], mesh)


@on_ranks(1)
def test_order_of_paths():
    class Many(Module):
        def __init__(self):
            self.z = [Variable(float(i), ()) for i in range(12)]
            self._cache = [self.z[3], Variable(0.0, ())]
            self.Z = Variable(0.0, ())

    with LayoutMap(grid1()[0]).scope():
        many = Many()
    assert paths(many) == ["Z", *(f"z.{i}" for i in range(12)), "_cache.1"]


@on_ranks(2)
def test_ties():
    mesh, layout = grid()

    class Tied(Module):
        def __init__(self):
            self.b = self.a = Dense(2, 2)
            self.embedding = Variable(random_normal(0), (4, 2))
            self.head = {"kernel": self.embedding, "again": [self.b, self.embedding]}

    m = LayoutMap(mesh)
    m["a.kernel"], m["b.kernel"] = layout("x", "u"), layout("u", "x")
    m["embedding"], m["head.*"] = layout("u", "x"), layout("x", "u")
    with m.scope():
        tied = Tied()
    assert paths(tied) == ["a.bias", "a.kernel", "embedding"]
    assert tied.b.kernel.layout == layout("x", "u")
    assert tied.head["kernel"] is tied.embedding
    assert tied.embedding.layout == layout("u", "x")


@on_ranks(1)
def test_cycles():
    class Child(Module):
        def __init__(self, parent):
            self.parent = parent
            self.kernel = Variable(0.0, ())
            self.knot = [self.kernel]
            self.knot.append(self.knot)

    class Parent(Module):
        def __init__(self):
            self.child = Child(self)
            self.itself = self

    with LayoutMap(grid1()[0]).scope():
        parent = Parent()
    assert paths(parent) == ["child.kernel"]
    assert parent.child.kernel.path == "child.kernel"
    assert paths(parent.child) == ["kernel"]


@on_ranks(1)
def test_keys_that_have_one_name():
    module, layout = Module(), grid1()[1]()
    module.layers = {1: Variable(0.0, layout=layout), "1": Variable(0.0, layout=layout)}
    with pytest.raises(LayoutError, match="two keys of the dict 'layers' are named '1'"):
        module.variables()


@on_ranks(1)
def test_dataclasses_are_modules():
    @dataclasses.dataclass
    class Block(Module):
        kernel: Variable
        inner: list

    @dataclasses.dataclass(frozen=True)
    class Frozen(Module):
        block: Block

    with LayoutMap(grid1()[0]).scope():
        frozen = Frozen(Block(Variable(0.0, ()), [Variable(1.0, ())]))
    assert paths(frozen) == ["block.inner.0", "block.kernel"]
    assert frozen.block.inner[0].path == "block.inner.0"


def test_module_takes_no_arguments_of_its_own():
    with pytest.raises(TypeError, match=r"Module\(\) takes no arguments"):
        Module(3)


@on_ranks(1)
def test_parts_name_layers():
    mesh, layout = grid1()

    class Named(Module):
        def __init__(self, *layers):
            self.layers = layers

        def parts(self):
            return {f"layer_{i}": layer for i, layer in enumerate(self.layers)}

    m = LayoutMap(mesh)
    m["layer_0.kernel"], m["layer_1.layer_0.kernel"] = layout("x", "u"), layout("u", "x")
    with m.scope():
        first, inner = Dense(2, 2), Named(Dense(2, 2))
        model = Named(first, inner)
    assert paths(model) == ["layer_0.bias", "layer_0.kernel", "layer_1.layer_0.bias", "layer_1.layer_0.kernel"]
    assert first.kernel.layout == layout("x", "u")
    assert inner.layers[0].kernel.layout == layout("u", "x")


# -- scopes -----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_variable_waits_for_its_path():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["d.kernel"] = layout("x", "u")
    calls = []

    def initial(slices, shape, dtype):
        calls.append(slices)
        return np.zeros([s.stop - s.start for s in slices])

    with m.scope():
        net, d = Module(), Module()
        d.kernel = Variable(initial, (4, 2), name="k")
        assert not d.kernel.initialized
        assert repr(d.kernel) == "Variable('k', (4, 2), float64, not yet initialized)"
        assert (d.kernel.shape, d.kernel.dtype, d.kernel.name) == ((4, 2), np.float64, "k")
        net.d = d
        assert not calls
    assert calls == [layout("x", "u").block_slices((4, 2), mesh.rank)]
    assert repr(d.kernel) == "Variable('d.kernel', (4, 2), float64, ['x', 'unsharded'])"


@on_ranks(2)
def test_a_value_is_made_when_it_is_asked_for():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["d1.kernel"] = layout("x", "u")
    with m.scope():
        alone = Variable(0.0, (2,))
        other = Net()
        net = Net()
        assert net.d1.kernel.layout == layout("x", "u")
        assert net.d2.bias.initialized
        assert not other.d1.bias.initialized
        with pytest.raises(LayoutError, match="no Module made in its scope holds it"):
            _ = alone.value
        net.d1.kernel.assign(np.ones((4, 6)))
    assert other.d1.bias.initialized
    assert net.d1.kernel.to_numpy().all()
    with pytest.raises(LayoutError, match="no Module made in its scope holds it"):
        alone.assign(np.ones(2))


@on_ranks(2)
def test_explicit_layouts_beat_the_map():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m[".*"] = layout("u", "x")
    with m.scope():
        net = Module()
        net.a = Variable(0.0, (2, 2), layout=layout("x", "u"))
        net.b = Variable(mc.ones((2, 2), "f4", layout("y", "u")))
        net.c = Variable(0.0, (2, 2))
        net.d = DVariable(np.ones((2, 2)), layout("x", "u"))
        assert net.a.initialized
    specs = [v.layout.sharding_specs for v in net.variables()]
    assert specs == [["x", "unsharded"], ["y", "unsharded"], ["unsharded", "x"], ["x", "unsharded"]]
    assert [v.path for v in net.variables()] == ["a", "b", "c", "d"]


@on_ranks(2)
def test_changes_of_the_map_change_nothing_later():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m[".*kernel"] = layout("x", "u")
    with m.scope():
        net = Net()
    m.clear()
    m[".*kernel"] = layout("u", "x")
    assert net.d1.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_nested_scopes():
    mesh, layout = grid()
    outer, inner = LayoutMap(mesh), LayoutMap(mesh)
    outer[".*kernel"], inner["head.kernel"] = layout("x", "u"), layout("u", "x")

    class Nested(Module):
        def __init__(self):
            self.d1 = Dense(2, 2)
            with inner.scope():
                self.head = Dense(2, 2)
            assert self.head.kernel.initialized
            assert not self.d1.kernel.initialized
            self.d2 = Dense(2, 2)

    with outer.scope():
        net = Nested()
    assert net.head.kernel.layout == layout("u", "x")
    assert net.d1.kernel.layout == net.d2.kernel.layout == layout("x", "u")
    with inner.scope(), outer.scope():
        other = Net()
    assert other.d1.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_scopes_end_on_exceptions():
    mesh, _ = grid()
    net = Module()

    def fail():
        net.d1 = Dense(2, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), LayoutMap(mesh).scope():
        fail()
    assert not net.d1.kernel.initialized
    with pytest.raises(LayoutError, match="its path is not known"):
        _ = net.d1.kernel.layout
    with pytest.raises(LayoutError, match="Neither layout nor DTensor"):
        Variable(1.0)
    with LayoutMap(mesh).scope():
        with pytest.raises(ZeroDivisionError), LayoutMap().scope():
            fail()
        net = Net()
    assert net.d1.kernel.initialized


@on_ranks(1)
def test_a_scope_can_be_entered_again():
    mesh, _ = grid1()
    m = LayoutMap(mesh)
    nets = []
    for _ in range(2):
        with m.scope():
            nets.append(Net())
    assert [net.d1.kernel.path for net in nets] == ["d1.kernel"] * 2


def test_scopes_belong_to_a_thread():
    errors = []

    def elsewhere():
        try:
            Variable(1.0)
        except LayoutError as error:
            errors.append(error)

    with LayoutMap().scope():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        Variable(1.0)
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("rules", "has_mesh", "says"),
    [
        ({}, False, "no rule of the LayoutMap matches 'd1.bias', and it has no mesh"),
        ({".*kernel": "x"}, True, "'d1.kernel' has rank 2, but the rule '.*kernel' .* rank 1"),
    ],
)
def test_errors_when_a_scope_ends(rules, has_mesh, says):
    def program():
        mesh, layout = grid()
        m = LayoutMap(mesh if has_mesh else None)
        m.update({key: layout(spec) for key, spec in rules.items()})
        with pytest.raises(LayoutError, match=says), m.scope():
            Net()
        with LayoutMap(mesh).scope():
            net = Net()
        return net.d1.kernel.initialized

    with mc.simulate(2) as world:
        assert world.run(program) == [True, True]


class Late(Module):
    """Makes its kernel when it is first called, as layers do that learn their shape from the input."""

    def __init__(self, units):
        self.units = units
        self.kernel = None

    def __call__(self, n):
        if self.kernel is None:
            with self.building():
                self.kernel = Variable(random_normal(0), (n, self.units))
                self.inner = Module()
                self.inner.bias = Variable(0.0, (self.units,))
        return self.kernel.local.shape


class LateNet(Module):
    def __init__(self):
        self.layers = [Late(4), Late(2)]

    def __call__(self, n):
        return [layer(6) for layer in self.layers]


@on_ranks(2)
def test_variables_made_after_the_scope():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["layers.0.kernel"], m["layers.1.kernel"] = layout("x", "u"), layout("u", "x")
    m["layers.1.inner.bias"] = layout("x")
    with m.scope():
        net = LateNet()
    assert net.variables() == []
    assert net(6) == [(3, 4), (6, 1)]
    assert [v.path for v in net.variables()] == paths(net)
    assert net.layers[1].inner.bias.layout == layout("x")
    with LayoutMap(mesh).scope():
        assert LateNet()(6) == [(6, 4), (6, 2)]
        with m.scope():
            inside = LateNet()
            assert inside(6) == [(3, 4), (6, 1)]
            assert inside.layers[1].kernel.path == "layers.1.kernel"


@on_ranks(2)
def test_the_scope_of_its_construction_counts_for_a_module():
    mesh, layout = grid()
    m, other = LayoutMap(mesh), LayoutMap(mesh)
    m["layers.0.kernel"], other["layers.0.kernel"] = layout("x", "u"), layout("u", "x")
    with m.scope():
        net = LateNet()
    with other.scope():
        net(6)
    assert net.layers[0].kernel.layout == layout("x", "u")


@on_ranks(2)
def test_a_module_that_moves_to_another_model_keeps_its_path():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["layers.0.kernel"] = layout("x", "u")
    with m.scope():
        net = LateNet()
    with LayoutMap(mesh).scope():
        other = Module()
        other.head = net.layers[0]
    net.layers[0](6)
    assert other.head.kernel.path == "layers.0.kernel"
    assert other.head.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_a_scope_begins_when_it_is_entered():
    mesh, layout = grid()
    inner, outer = LayoutMap(mesh), LayoutMap(mesh)
    inner["a.kernel"] = layout("x", "u")
    scope = inner.scope()
    with outer.scope():
        net = Module()
        with scope:
            net.a = Dense(2, 2)
    assert net.a.kernel.layout == layout("x", "u")


@on_ranks(1)
def test_building_outside_of_any_scope():
    _, layout = grid1()
    module = Module()
    with module.building():
        module.kernel = Variable(1.0, (), layout=layout())
        with pytest.raises(LayoutError, match="Neither"):
            Variable(1.0)
    assert paths(module) == ["kernel"]


@on_ranks(2)
def test_copies_of_modules_are_modules_of_the_scope():
    mesh, layout = grid()
    m = LayoutMap(mesh)
    m["blocks.*kernel"] = layout("x", "u")
    with m.scope():
        net, block = Module(), Dense(2, 2)
        net.blocks = [copy.deepcopy(block) for _ in range(3)]
    assert len(net.variables()) == 6
    assert net.blocks[2].kernel.path == "blocks.2.kernel"
    assert net.blocks[2].kernel.layout == layout("x", "u")
    assert block.kernel.path == "kernel"
    copied = copy.deepcopy(net)
    copied.blocks[0].kernel.assign(np.zeros((2, 2)))
    assert net.blocks[0].kernel.to_numpy().any()
    assert not copied.blocks[0].kernel.to_numpy().any()


@on_ranks(1)
def test_scopes_hold_no_modules_after_their_end():
    with LayoutMap(grid1()[0]).scope():
        net = Net()
    assert net._layout_scope.modules == []


# -- the models of the page -------------------------------------------------------------------------------------------


@pytest.fixture
def keras(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module("small_keras")


def page_map():
    mesh, layout = grid()
    m = LayoutMap(mesh=mesh)
    m["d1.kernel"], m["d1.bias"] = layout("u", "x"), layout("x")
    m["d2.kernel"], m["d2.bias"] = layout("x", "y"), layout("u")
    return m


def subclassed(keras):
    class SubclassModel(keras.Model):
        def __init__(self, name=None):
            super().__init__(name=name)
            self.d1 = keras.Dense(20, seed=1)
            self.d2 = keras.Dense(30, seed=2)

        def call(self, inputs):
            return self.d2(self.d1(inputs))

    model = SubclassModel()
    return model, lambda: (model.d1, model.d2)


def functional(keras):
    inputs = keras.Input((10,), batch_size=10)
    x = keras.Dense(20, name="d1", seed=1)(inputs)
    model = keras.Model(inputs, keras.Dense(30, name="d2", seed=2)(x))
    return model, lambda: model.layers[1:]


def sequential(keras, **kwargs):
    model = keras.Sequential([keras.Dense(20, name="d1", seed=1, **kwargs), keras.Dense(30, name="d2", seed=2)])
    return model, lambda: model.layers


def built_sequential(keras):
    return sequential(keras, input_shape=(10,))


@pytest.mark.parametrize("is_called_inside", [True, False])
@pytest.mark.parametrize("make", [subclassed, functional, sequential, built_sequential])
@pytest.mark.parametrize("size", [2, 4])
def test_models_of_the_page(keras, size, make, is_called_inside):
    def program():
        m = page_map()
        batch = np.arange(100, dtype="f4").reshape(10, 10)
        with m.scope():
            model, layers = make(keras)
            if is_called_inside:
                model(batch)
        assert all(v.initialized for v in model.variables())
        result = model(batch)
        assert paths(model) == ["d1.bias", "d1.kernel", "d2.bias", "d2.kernel"] == [v.path for v in model.variables()]
        d1, d2 = layers()
        assert [d1.kernel.layout, d1.bias.layout, d2.kernel.layout, d2.bias.layout] == list(m.values())
        return result.tobytes()

    with mc.simulate(size) as world:
        assert len(set(world.run(program))) == 1


@on_ranks(1)
def test_a_layer_called_before_its_model_gets_its_path_from_the_model():
    mesh, layout = grid1()
    m = LayoutMap(mesh)
    m["layers.0.kernel"] = layout("x", "u")
    with m.scope():
        net = LateNet()
    net.layers[0](6)
    assert net.layers[0].kernel.path == "layers.0.kernel"
    assert net.layers[0].kernel.layout == layout("x", "u")


# -- documentation ----------------------------------------------------------------------------------------------------


@on_ranks(4)
def test_examples_of_the_documentation():
    blocks = DOC.read_text().split("```python\n")[1:]
    names = {}
    for block in blocks:
        exec(block.partition("```")[0], names)
    assert names["layout_map"].get_default_mesh().shape() == [2, 2]
    assert names["model"].d1.kernel.layout == names["layout_map"]["d1.kernel"]
    assert names["model"].d2.kernel.layout.is_fully_replicated()


# -- departures -------------------------------------------------------------------------------------------------------


def raises(error, says, function):
    with pytest.raises(error, match=says):
        function()
    return True


def waiting_value():
    with LayoutMap(grid1()[0]).scope():
        return raises(LayoutError, "no Module made in its scope holds it", lambda: Variable(0.0).value)


def values_at_the_end():
    with LayoutMap(grid1()[0]).scope():
        net = Net()
    return all(v.initialized for v in net.variables())


def one_variable():
    with LayoutMap(grid1()[0]).scope():
        net = Module()
        net.a = net.b = Variable(0.0, (2,))
    net.b.assign(np.ones(2))
    return net.a.to_numpy().tolist() == [1, 1] and len(net.variables()) == 1


def layers_in_a_dict():
    with LayoutMap(grid1()[0]).scope():
        net = Module()
        net.layers = {"a": Dense(1, 1)}
    return net.layers["a"].kernel.path == "layers.a.kernel"


def inner_model():
    with LayoutMap(grid1()[0]).scope():
        inner, outer = Net(), Module()
        outer.inner = inner
    return inner.d1.kernel.path == "inner.d1.kernel"


def scoped_error(says, *rules):
    mesh, layout = grid1()
    m = LayoutMap(mesh if rules else None)
    m.update((rule, layout("x")) for rule in rules)

    def build():
        with m.scope():
            Net()

    return raises(LayoutError, says, build)


def uneven():
    with mc.simulate(2) as world:
        return world.run(lambda: DVariable(np.ones(3), Layout(["x"], grid()[0])).local.shape) == [(2,), (1,)]


def assigned(method, value):
    v = DVariable(np.ones(3), grid1()[1]("x"))
    return getattr(v, method)(value).to_numpy().tolist() == [2, 2, 2]


PROOFS = {
    "the value of a variable that waits for its path": waiting_value,
    "when variables get their values": values_at_the_end,
    "one variable under two attributes": one_variable,
    "layers in a dict attribute": layers_in_a_dict,
    "a model inside of a functional model": inner_model,
    "a rule for another rank": lambda: scoped_error(
        "'d1.kernel' has rank 2, but the rule '.*kernel'", ".*kernel", ".*"
    ),
    "axes that the mesh does not divide": uneven,
    "no rule and no mesh": lambda: scoped_error("no rule of the LayoutMap matches 'd1.bias'"),
    "assign(array)": lambda: assigned("assign", np.full(3, 2)),
    "assign_add(number)": lambda: assigned("assign_add", 1.0),
    "the page's functional and sequential examples": lambda: "d2.kernel.layout == layout_3" in EXAMPLE.read_text(),
}


@pytest.mark.parametrize("case", PROOFS)
def test_departure(case):
    if case.startswith("axes"):
        assert PROOFS[case]()
    else:
        with mc.simulate(1) as world:
            assert world.run(PROOFS[case]) == [True]


def test_departures_are_documented():
    assert departures("scopes and variables") == list(PROOFS)


class _Head(mc.Module):
    def __init__(self):
        self.w = mc.Variable(0.0, (8,))
        self.w.assign(np.ones(8))


class _Net(mc.Module):
    def __init__(self):
        self.head = _Head()


@pytest.mark.parametrize("rule", ["head.w", "w", ".*w"])
def test_a_variable_used_before_its_path_is_known_keeps_the_layout_of_the_final_path_or_raises(rule):
    def program():
        mesh = mc.create_mesh([("x", 2)])
        layout_map = mc.LayoutMap(mesh)
        layout_map[rule] = mc.Layout(["x"], mesh)
        with layout_map.scope():
            net = _Net()
        assert net.head.w.path == "head.w"
        assert net.head.w.layout == layout_map[rule]

    with mc.simulate(2) as world:
        if rule == ".*w":
            world.run(program)
        else:
            with pytest.raises(LayoutError, match=r"before its path 'head.w' was known"):
                world.run(program)


@pytest.mark.parametrize("ranks", [1, 3])
def test_operators_of_variables_are_those_of_their_values(ranks):
    def program():
        mesh = mc.create_mesh([("x", ranks)])
        v = mc.DVariable(np.arange(8.0), layout=mc.Layout(["x"], mesh))
        for made, right in ((v + 1, np.arange(8.0) + 1), (-v, -np.arange(8.0)), (np.exp(v), np.exp(np.arange(8.0)))):
            assert isinstance(made, mc.DTensor)
            assert np.array_equal(made.to_numpy(), right)
        assert float(np.sum(v)) == 28
        assert (v == v, v == mc.DVariable(v.value), len({v, v})) == (True, False, 1)
        same = v
        v += 1
        assert v is same
        assert np.array_equal(v.to_numpy(), np.arange(8.0) + 1)

    with mc.simulate(ranks) as world:
        world.run(program)
