"""The models and the departures that docs/layout_map.md describes."""

import importlib

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DVariable, LayoutMap, Module, Variable
from meshcomm.errors import LayoutError
from support.departures import departures, refuses
from support.paths import DOCS, EXAMPLES
from support.tensors import on
from support.variable_cases import Dense, LateNet, Layouts, Net, on_ranks, paths

DOC = DOCS / "layout_map.md"
EXAMPLE = EXAMPLES / "layout_map_models.py"


# -- the models of the page -------------------------------------------------------------------------------------------


@pytest.fixture
def keras(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    return importlib.import_module("small_keras")


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
        m = Layouts().rules({"d1.kernel": "u x", "d1.bias": "x", "d2.kernel": "x y", "d2.bias": "u"})
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

    assert len(set(on(size, program))) == 1


@on_ranks(1)
def test_a_layer_called_before_its_model_gets_its_path_from_the_model(layout):
    m = layout.rules({"layers.0.kernel": "x u"})
    with m.scope():
        net = LateNet()
    net.layers[0](6)
    assert net.layers[0].kernel.path == "layers.0.kernel"
    assert net.layers[0].kernel.layout == layout("x", "u")


# -- documentation ----------------------------------------------------------------------------------------------------


@on_ranks(4)
def test_examples_of_the_documentation(layout):
    blocks = DOC.read_text().split("```python\n")[1:]
    names = {}
    for block in blocks:
        exec(block.partition("```")[0], names)
    assert names["layout_map"].get_default_mesh().shape() == [2, 2]
    assert names["model"].d1.kernel.layout == names["layout_map"]["d1.kernel"]
    assert names["model"].d2.kernel.layout.is_fully_replicated()


# -- departures -------------------------------------------------------------------------------------------------------


def waiting_value():
    with Layouts().rules().scope():
        return refuses(LayoutError, lambda: Variable(0.0).value, says="no Module made in its scope holds it")


def values_at_the_end():
    with Layouts().rules().scope():
        net = Net()
    return all(v.initialized for v in net.variables())


def one_variable():
    with Layouts().rules().scope():
        net = Module()
        net.a = net.b = Variable(0.0, (2,))
    net.b.assign(np.ones(2))
    return net.a.to_numpy().tolist() == [1, 1] and len(net.variables()) == 1


def layers_in_a_dict():
    with Layouts().rules().scope():
        net = Module()
        net.layers = {"a": Dense(1, 1)}
    return net.layers["a"].kernel.path == "layers.a.kernel"


def inner_model():
    with Layouts().rules().scope():
        inner, outer = Net(), Module()
        outer.inner = inner
    return inner.d1.kernel.path == "inner.d1.kernel"


def scoped_error(says, *rules):
    m = Layouts().rules(dict.fromkeys(rules, "x")) if rules else LayoutMap()

    def build():
        with m.scope():
            Net()

    return refuses(LayoutError, build, says=says)


def uneven():
    return on(2, lambda: DVariable(np.ones(3), Layouts()("x")).local.shape) == [(2,), (1,)]


def assigned(method, value):
    v = DVariable(np.ones(3), Layouts()("x"))
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
        assert on(1, PROOFS[case]) == [True]


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
        m = Layouts().rules({rule: "x"})
        with m.scope():
            net = _Net()
        assert net.head.w.path == "head.w"
        assert net.head.w.layout == m[rule]

    if rule == ".*w":
        on(2, program)
    else:
        refuses(LayoutError, on, 2, program, says=r"before its path 'head.w' was known")


@pytest.mark.parametrize("ranks", [1, 3])
def test_operators_of_variables_are_those_of_their_values(ranks):
    def program():
        v, array = DVariable(np.arange(8.0), Layouts()("x")), np.arange(8.0)
        for made, right in ((v + 1, array + 1), (-v, -array), (np.exp(v), np.exp(array))):
            assert isinstance(made, mc.DTensor)
            assert np.array_equal(made.to_numpy(), right)
        assert float(np.sum(v)) == 28
        same = v
        v += 1
        assert v is same
        assert np.array_equal(v.to_numpy(), array + 1)

    on(ranks, program)


AS_VALUES = {
    "equal": lambda v: v == 2,
    "not equal": lambda v: v != 2,
    "numbers first": lambda v: 2 == v,  # noqa: SIM300
    "where": lambda v: np.where(v == 0, 1, v),
    "concatenate": lambda v: np.concatenate([v, v[1:]]),
    "matmul": lambda v: v @ v,
    "slice": lambda v: v[::2],
    "mask": lambda v: v[v > 2],
    "index array": lambda v: v[[3, 0]],
    "sum": lambda v: v.sum(),
    "reshape": lambda v: v.reshape(4, 2),
    "transpose": lambda v: v.T,
    "ndim": lambda v: (v.ndim, v.size, len(v)),
    "astype": lambda v: v.astype("f4"),
    "in": lambda v: (3 in v, 9 in v),
    "number": lambda v: float(v[3:4].sum()) + int(v.sum()),
    "clip": lambda v: np.clip(v, v.min(), 4),
}


@on_ranks(3)
def test_variables_are_used_as_their_values():
    array, layout = np.arange(8.0), Layouts()("x")
    for name, use in AS_VALUES.items():
        found, expected = use(DVariable(array, layout)), use(array)
        assert np.array_equal(found.to_numpy() if isinstance(found, mc.DTensor) else found, expected), name


@on_ranks(3)
def test_elements_of_variables_are_assigned():
    array, layout = np.arange(8.0), Layouts()("x")
    v = Variable(array, layout=layout)
    w = DVariable(v.value)
    for x in (v, array):
        x[0] = 5
        x[1:3] = [6, 7]
        x[3:6] += 1
        x[x > 6] = 0
        x *= 2
        x -= 1
        np.add(x, 1, out=x)
        np.cumsum(x, out=x)
        x.sort()
    assert type(v) is Variable
    assert np.array_equal(v.to_numpy(), array)
    assert np.array_equal(w.to_numpy(), np.arange(8.0)), "another variable has a block of its own"
    assert np.add(v, 1, out=v) is v
    before = v.value
    v *= 2
    assert np.array_equal(v.to_numpy(), before.to_numpy() * 2), "an assignment makes a new tensor"
    integers = Variable(np.arange(8), layout=layout)
    with pytest.raises(mc.DTypeError, match="would lose"):
        integers /= 2


@on_ranks(2)
def test_variables_are_keys_by_identity():
    layout = Layouts()("x")
    v, w = Variable(np.zeros(4), layout=layout), Variable(np.zeros(4), layout=layout)
    slots = {v: "v", w: "w"}
    assert (slots[v], slots[w], len({v, w, v})) == ("v", "w", 2)
    assert [v, w].index(v) == 0
    with pytest.raises(ValueError, match="the truth of"):
        [v].index(w)
    assert v.__array_namespace__() is v.value.__array_namespace__()
    assert not hasattr(v, "__array_interface__")
    with pytest.raises(AttributeError, match="nothing"):
        getattr(v, "nothing")  # noqa: B009
