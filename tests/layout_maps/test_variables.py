"""Variables: the cases of TensorFlow's variable_test, and initial values."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import meshcomm as mc
from meshcomm import DVariable, Layout, LayoutMap, Variable, default_mesh, random_normal, random_uniform
from meshcomm.errors import DTypeError, LayoutError, MeshError, ShapeError
from support.departures import refuses
from support.sampling import examples
from support.tensors import on
from support.variable_cases import Layouts, Net, blocks, on_ranks

REPEATABLE = settings(derandomize=True, database=None, deadline=None)


# -- DVariable: TensorFlow's variable_test.py -------------------------------------------------------------------------


@on_ranks(4)
def test_neither_layout_nor_dtensor():
    for make in (DVariable, Variable):
        refuses(LayoutError, make, np.ones(3), says="Neither layout nor DTensor initial value are provided")


@on_ranks(2)
def test_the_initial_value_as_tensorflow_names_it(layout):
    rows = layout("x", "u")
    t = mc.ones((4, 2), "f4", rows)
    assert DVariable(initial_value=t).layout == DVariable(initial=t).layout == rows
    v = DVariable(initial_value=np.arange(8.0).reshape(4, 2), dtype="f4", layout=rows)
    np.testing.assert_array_equal(v.to_numpy(), np.arange(8.0).reshape(4, 2))
    assert v.dtype == np.float32
    with pytest.raises(LayoutError, match="Neither layout nor DTensor initial value are provided"):
        DVariable(initial_value=1.0)
    for none_or_two in ({}, {"initial": t, "initial_value": t}):
        with pytest.raises(TypeError, match="takes one initial value"):
            DVariable(layout=rows, **none_or_two)


@on_ranks(4)
def test_the_default_mesh(layout):
    with default_mesh(layout.mesh):
        v = Variable(random_normal(0), (2, 3))
        assert v.layout == layout("u", "u")
        with LayoutMap().scope():
            assert not Variable(1.0).initialized
        with pytest.raises(LayoutError, match="Neither layout nor DTensor"):
            DVariable(1.0)


@on_ranks(4)
def test_conflicting_layout(layout):
    t = mc.ones((4, 4), "f4", layout("x", "u"))
    with pytest.raises(LayoutError, match="Conflicting layout are provided for initial value layout"):
        DVariable(t, layout=layout("u", "x"))
    assert DVariable(t, layout=layout("x", "u")).layout == t.layout


@on_ranks(4)
def test_variable_follows_its_initial_value(layout):
    t = mc.distribute(np.arange(6.0).reshape(2, 3), layout("x", "y"))
    v = DVariable(t, name="v", trainable=False)
    assert (v.layout, v.shape, v.dtype, v.mesh) == (t.layout, (2, 3), np.float64, t.mesh)
    assert (v.name, v.trainable, v.path, v.initialized) == ("v", False, None, True)
    t.local[...] = 9
    np.testing.assert_array_equal(v.to_numpy(), np.arange(6.0).reshape(2, 3))
    assert DVariable(v.value, dtype="f4").dtype == np.float32
    assert DVariable(v).layout == v.layout


@on_ranks(4)
def test_layouts_of_initial_values(layout):
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
def test_an_initializer_is_called_for_the_block_only(layout):
    calls = []

    def initial(slices, shape, dtype):
        calls.append((slices, shape, dtype))
        return np.zeros([s.stop - s.start for s in slices], dtype)

    v = Variable(initial, (5, 4), "f4", layout=layout("x", "u"))
    rank = v.mesh.rank
    assert calls == [(v.layout.block_slices((5, 4), rank), (5, 4), np.dtype("f4"))]


@on_ranks(4)
def test_assign_keeps_the_layout(layout):
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
def test_what_is_assigned_is_copied(layout):
    v = DVariable(np.zeros(4), layout("x"))
    for value in (np.ones(4), mc.ones(4, "f8", layout("x")), mc.ones(4, "f8", layout("u"))):
        v.assign(value)
        (value if isinstance(value, np.ndarray) else value.local)[...] = 5
        np.testing.assert_array_equal(v.to_numpy(), np.ones(4))
    w = DVariable(np.zeros(4), layout("x")).assign(v)
    v.local[...] = 7
    np.testing.assert_array_equal(w.to_numpy(), np.ones(4))


@on_ranks(4)
def test_assign_add_and_assign_sub(layout):
    v = DVariable(np.arange(6.0, dtype="f4").reshape(2, 3), layout("x", "y"))
    assert v.assign_add(np.ones((2, 3))) is v
    assert v.assign_sub(mc.full((2, 3), 2.0, "f8", layout("u", "x"))) is v
    v.assign_add(10).assign_sub(np.float64(0.5)).assign_add(v)
    np.testing.assert_array_equal(v.to_numpy(), 2 * (np.arange(6.0).reshape(2, 3) + 8.5))
    assert (v.layout, v.dtype) == (layout("x", "y"), np.float32)


@on_ranks(4)
def test_assign_add_to_a_scalar(layout):
    v = DVariable(1, layout()).assign_add(2).assign_sub(mc.ones((), "i4", layout()))
    assert (v.to_numpy().tolist(), v.dtype, v.local.shape) == (2, np.int64, ())


@pytest.mark.parametrize("method", ["assign", "assign_add", "assign_sub"])
def test_what_cannot_be_assigned(method):
    def program():
        layout = Layouts()
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
        assert v.mesh is layout.mesh

    with mc.simulate(4):
        foreign = mc.create_mesh([("x", 4)])
    on(4, program)


@on_ranks(4)
def test_values_on_another_mesh_are_relaid(layout):
    v = DVariable(np.ones((2, 3), "i4"), layout("x", "u"))
    other = mc.create_mesh([("x", 3)], devices=[3, 2, 1])
    v.assign(mc.distribute(np.arange(6, dtype="i4").reshape(2, 3), Layout(["unsharded", "x"], other)))
    v.assign_add(mc.distribute(np.full((2, 3), 10, "i4"), Layout(["x", "unsharded"], other)))
    assert v.mesh is layout.mesh
    assert v.to_numpy().tolist() == [[10, 11, 12], [13, 14, 15]]


@on_ranks(4)
def test_a_number_of_another_kind_is_not_added(layout):
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
        (random_normal(0), {}, ShapeError, "give the variable shape="),
        (np.ones(3), {"shape": (4,)}, ShapeError, r"has shape \(3,\), but the variable has shape \(4,\)"),
        (0.5, {"shape": 3, "dtype": "i4"}, DTypeError, "float64 for a variable of dtype int32"),
        (np.ones(3), {"dtype": object}, DTypeError, "object"),
        (random_normal(0), {"shape": 3, "dtype": "i4"}, DTypeError, "floating point"),
        (lambda slices, shape, dtype: np.ones(9), {"shape": 3}, ShapeError, "must return a block of shape"),
        (lambda slices, shape, dtype: np.ones(1, complex), {"shape": 1}, DTypeError, "complex"),
        (np.ones((2, 2)), {}, LayoutError, "has 2 axes, but its layout is for 1"),
        (np.ones(3), {"shape": -1}, ShapeError, "-1"),
    ],
)
@on_ranks(2)
def test_what_makes_no_variable(layout, initial, kwargs, error, says):
    with pytest.raises(error, match=says):
        Variable(initial, layout=layout("u"), **kwargs)
    with pytest.raises(ShapeError, match="does not fill shape"):
        Variable(mc.ones((), "f4", layout()), shape=(3,))


@on_ranks(4)
def test_variables_as_arrays(layout):
    np.testing.assert_array_equal(np.asarray(DVariable(np.arange(3), layout("u"))), np.arange(3))
    np.testing.assert_array_equal(np.asarray(DVariable(np.arange(3), layout("x"))), np.arange(3))
    assert repr(DVariable(np.arange(3), layout("x"), name="v")) == "DVariable('v', (3,), int64, ['x'])"


def test_ranks_outside_of_the_mesh():
    def program():
        mesh = mc.create_mesh([("x", 2)])
        v = DVariable(np.arange(3), Layout(["x"], mesh)).assign_add(1)
        v.assign(np.zeros(3, int)).assign_sub(np.ones(3, int))
        for change in (0.5, np.ones(3)):
            with pytest.raises(DTypeError):
                v.assign_add(change)
        return v.shape, None if v.local is None else v.local.tolist()

    assert on(3, program) == [((3,), [-1, -1]), ((3,), [-1]), ((3,), None)]


# -- initial values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initializer", [random_normal(3, 1.0, 2.0), random_uniform(3, -1.0, 5.0)])
@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", ">f8", "c8"])
@settings(REPEATABLE, max_examples=examples(60))
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


def test_values_are_those_of_a_generator():
    """A seed means what it means to mc.random, in an array of several tiles, too."""

    def program(seed, shape):
        rows = Layout(["x", mc.UNSHARDED], mc.create_mesh([("x", 2)]))
        made = [
            Variable(made, shape, "f8", layout=rows).value
            for made in (random_uniform(seed, -1.0, 3.0), random_normal(seed, 3.0, 2.0))
        ]
        generators = [mc.random.default_rng(seed) for _ in made]
        expected = [
            generators[0].uniform(-1.0, 3.0, shape, layout=rows),
            generators[1].normal(3.0, 2.0, shape, layout=rows),
        ]
        return [(x.local, y.local) for x, y in zip(made, expected, strict=True)]

    for found in on(2, program, 11, (300, 70)):
        for made, expected in found:
            np.testing.assert_allclose(made, expected, rtol=1e-15)


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


def test_what_is_no_seed_or_no_dtype_of_random_numbers():
    for initializer, seed in itertools.product((random_normal, random_uniform), (-1, 2**128, 1.5, None, True)):
        refuses(ShapeError, initializer, seed, says="seed")
    for dtype in ("i4", "?", "u1", "S3", "M8[s]"):
        refuses(DTypeError, random_uniform(0), (slice(0, 2),), (2,), dtype, says="floating point")


def test_random_numbers_of_foreign_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    block = random_uniform(0)((slice(1, 3),), (4,), ml_dtypes.bfloat16)
    assert block.dtype == ml_dtypes.bfloat16
    assert block.tolist() == random_uniform(0)((slice(0, 4),), (4,), "f8").astype(block.dtype)[1:3].tolist()


def test_initial_values_do_not_depend_on_layout_and_number_of_ranks():
    def program(specs):
        layout = Layouts()
        with layout.rules({"d1.kernel": specs.replace("y", layout.mesh.dim_names[-1])}).scope():
            net = Net()
        return [v.to_numpy().tobytes() for v in net.variables()]

    values = [on(size, program, specs) for size in (1, 2, 3, 4, 6) for specs in ("x u", "u y", "u u")]
    assert all(value == values[0][0] for of_ranks in values for value in of_ranks)
