"""The models and the departures that docs/layout_map.md describes."""

import importlib

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout
from meshcomm.training.layout_map import LayoutMap
from meshcomm.training.modules import Module
from meshcomm.training.variables import DVariable, Variable
from support.paths import DOCS, EXAMPLES
from support.variable_cases import Dense, LateNet, Net, grid, grid1, on_ranks, paths

DOC = DOCS / "layout_map.md"


EXAMPLE = EXAMPLES / "layout_map_models.py"


def departures(title):
    """The first cells of the table of departures below *title*."""
    section = DOC.read_text().partition(f"## Departures from TensorFlow: {title}")[2].partition("\n## ")[0]
    return [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")][2:]


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
    "the value of a variable before its path is known": waiting_value,
    "when variables get their values": values_at_the_end,
    "one variable under two attributes": one_variable,
    "layers in a dict attribute": layers_in_a_dict,
    "a model inside of a functional model": inner_model,
    "a rule for another number of axes": lambda: scoped_error(
        "'d1.kernel' has 2 axes, but its rule '.*kernel'", ".*kernel", ".*"
    ),
    "axes that the mesh cuts unevenly": uneven,
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
