"""Scopes that give variables their layouts."""

import copy
import threading

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import DVariable, LayoutMap, Module, Variable
from meshcomm.errors import LayoutError
from support.variable_cases import Dense, LateNet, Net, on_ranks, paths

# -- scopes -----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_a_variable_waits_for_its_path(layout):
    m = layout.rules({"d.kernel": "x u"})
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
    assert calls == [layout("x", "u").block_slices((4, 2), layout.mesh.rank)]
    assert repr(d.kernel) == "Variable('d.kernel', (4, 2), float64, ['x', UNSHARDED])"


@on_ranks(2)
def test_a_value_is_made_when_it_is_asked_for(layout):
    m = layout.rules({"d1.kernel": "x u"})
    with m.scope():
        alone = Variable(0.0, (2,))
        other = Net()
        net = Net()
        assert net.d1.kernel.layout == layout("x", "u")
        assert net.d2.bias.initialized
        assert not other.d1.bias.initialized
        with pytest.raises(LayoutError, match="no Module made in its scope holds it"):
            _ = alone.value
        with pytest.raises(LayoutError, match="no Module made in its scope holds it"):
            alone.assign(np.ones(2))
        net.d1.kernel.assign(np.ones((4, 6)))
        del alone
    assert other.d1.bias.initialized
    assert net.d1.kernel.to_numpy().all()


class Plain:
    """Holds things, but is no module."""

    def __init__(self, held):
        self.held = held


class Outer(Module):
    def __init__(self, hidden):
        self.net = Dense(2, 2)
        self.net.hidden = hidden(Variable(0.0, (3,), name="w"))


@on_ranks(2)
def test_variables_without_a_path_are_an_error_when_the_scope_ends(layout):
    m = layout.rules()
    for hidden, where in [
        (lambda v: {v}, "net.hidden, a set"),
        (lambda v: frozenset([v]), "net.hidden, a frozenset"),
        (Plain, "net.hidden, a Plain"),
        (lambda v: [{"a": Plain([v])}], "net.hidden, a list"),
        (lambda v: lambda: v, None),
    ]:
        made = []
        with pytest.raises(LayoutError) as raised, m.scope():
            made.append(Outer(hidden))
        assert "no Module made in it holds Variable('w', (3,), float64, not yet initialized)" in str(raised.value)
        assert where is None or f"(in {where})" in str(raised.value)
        assert made[0].net.kernel.initialized
    with (
        pytest.raises(LayoutError, match=r"holds Variable\(\(1,\).*; Variable\(\(8,\).* and 4 more: without a path"),
        m.scope(),
    ):
        several = [Variable(0.0, (i + 1,)) for i in range(12)]
    del several
    with m.scope():
        net = Module()
        net.ready = {Variable(0.0, (2,), layout=layout("x"))}
        net.held, net.index = Variable(0.0, (2,)), set()
        net.index.add(net.held)
        dropped = Module()
        dropped.circle = Plain([Variable(0.0, (2,)), dropped])
        dropped.circle = net.w = Variable(0.0, (2,))
        net.w = Variable(1.0, (2,))
    assert paths(net) == ["held", "w"]


@on_ranks(2)
def test_variables_made_while_building_must_have_a_path(layout):
    m = layout.rules()
    with m.scope():
        net = Module()
    with pytest.raises(LayoutError, match=r"holds Variable\(\(2,\).* \(in cache, a set\)"), net.building():
        net.cache = {Variable(0.0, (2,))}
    with m.scope():
        with layout.rules().scope():
            kept = Variable(0.0, (2,))  # held when the outermost scope ends
        net = Module()
        net.kept = kept
    assert net.kept.layout == layout("u")


@on_ranks(1)
def test_copies_of_variables_must_have_a_path(layout):
    for make in (copy.copy, copy.deepcopy):
        copies = []
        with pytest.raises(LayoutError, match="no Module made in it holds Variable"), layout.rules().scope():
            copies.append(make(Variable(0.0, (2,))))
    assert not copies[0].initialized


@on_ranks(2)
def test_explicit_layouts_beat_the_map(layout):
    m = layout.rules({".*": "u x"})
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
def test_changes_of_the_map_change_nothing_later(layout):
    m = layout.rules({".*kernel": "x u"})
    with m.scope():
        net = Net()
    m.clear()
    m[".*kernel"] = layout("u", "x")
    assert net.d1.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_nested_scopes(layout):
    outer, inner = layout.rules({".*kernel": "x u"}), layout.rules({"head.kernel": "u x"})

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
def test_scopes_end_on_exceptions(layout):
    net = Module()

    def fail():
        net.d1 = Dense(2, 2)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), layout.rules().scope():
        fail()
    assert not net.d1.kernel.initialized
    with pytest.raises(LayoutError, match="its path is not known"):
        _ = net.d1.kernel.layout
    with pytest.raises(LayoutError, match="Neither layout nor DTensor"):
        Variable(1.0)
    with layout.rules().scope():
        with pytest.raises(ZeroDivisionError), LayoutMap().scope():
            fail()
        net = Net()
    assert net.d1.kernel.initialized


@on_ranks(1)
def test_a_scope_can_be_entered_again(layout):
    m = layout.rules()
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
        ({}, False, "no rule of the LayoutMap matches 'd1.bias', and the map has no mesh"),
        ({".*kernel": "x"}, True, "'d1.kernel' has 2 axes, but its rule '.*kernel' .* 1 axis"),
    ],
)
@on_ranks(2)
def test_errors_when_a_scope_ends(layout, rules, has_mesh, says):
    m = layout.rules(rules) if has_mesh else LayoutMap()
    with pytest.raises(LayoutError, match=says), m.scope():
        Net()
    with layout.rules().scope():
        net = Net()
    assert net.d1.kernel.initialized


@on_ranks(2)
def test_variables_made_after_the_scope(layout):
    m = layout.rules({"layers.0.kernel": "x u", "layers.1.kernel": "u x", "layers.1.inner.bias": "x"})
    with m.scope():
        net = LateNet()
    assert net.variables() == []
    assert net(6) == [(3, 4), (6, 1)]
    assert [v.path for v in net.variables()] == paths(net)
    assert net.layers[1].inner.bias.layout == layout("x")
    with layout.rules().scope():
        assert LateNet()(6) == [(6, 4), (6, 2)]
        with m.scope():
            inside = LateNet()
            assert inside(6) == [(3, 4), (6, 1)]
            assert inside.layers[1].kernel.path == "layers.1.kernel"


@on_ranks(2)
def test_the_scope_of_its_construction_counts_for_a_module(layout):
    m, other = layout.rules({"layers.0.kernel": "x u"}), layout.rules({"layers.0.kernel": "u x"})
    with m.scope():
        net = LateNet()
    with other.scope():
        net(6)
    assert net.layers[0].kernel.layout == layout("x", "u")


@on_ranks(2)
def test_a_module_that_moves_to_another_model_keeps_its_path(layout):
    m = layout.rules({"layers.0.kernel": "x u"})
    with m.scope():
        net = LateNet()
    with layout.rules().scope():
        other = Module()
        other.head = net.layers[0]
    net.layers[0](6)
    assert other.head.kernel.path == "layers.0.kernel"
    assert other.head.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_a_scope_begins_when_it_is_entered(layout):
    inner, outer = layout.rules({"a.kernel": "x u"}), layout.rules()
    scope = inner.scope()
    with outer.scope():
        net = Module()
        with scope:
            net.a = Dense(2, 2)
    assert net.a.kernel.layout == layout("x", "u")


@on_ranks(1)
def test_building_outside_of_any_scope(layout):
    module = Module()
    with module.building():
        module.kernel = Variable(1.0, (), layout=layout())
        with pytest.raises(LayoutError, match="Neither"):
            Variable(1.0)
    assert paths(module) == ["kernel"]


@on_ranks(2)
def test_copies_of_modules_are_modules_of_the_scope(layout):
    m = layout.rules({"blocks.*kernel": "x u"})
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
def test_scopes_hold_no_modules_after_their_end(layout):
    with layout.rules().scope():
        net = Net()
    assert (net._layout_scope.contents.modules, net._layout_scope.contents.variables) == ([], [])


class UsedWhileBuilding(Module):
    def build(self):
        with self.building():
            self.w = Variable(0.0, (4,))
            self.w.assign(np.ones(4))


@on_ranks(2)
def test_a_variable_used_while_its_module_is_building_keeps_its_path(layout):
    m = layout.rules({"head.w": "x", "w": "u"})
    with m.scope():
        net = Module()
        net.head = UsedWhileBuilding()
    net.head.build()
    assert net.head.w.path == "head.w"
    assert net.head.w.layout == layout("x")
