"""Modules: the paths of their variables, and layouts by path."""

import dataclasses
from collections import deque

import numpy as np
import pytest

from meshcomm import Module, Variable, layout_map_scope, random_normal
from meshcomm.errors import LayoutError
from support.variable_cases import Dense, Net, on_ranks, paths

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
    *("blk.d.bias", "blk.d.kernel", "layers.3", "layers.a.0", "layers.b.bias", "layers.b.kernel", "own"),
    *(f"pairs.{i}.{j}.{name}" for i in (0, 1) for j in (0, 1) for name in ("bias", "kernel")),
]


@on_ranks(2)
def test_paths(layout):
    m = layout.rules({"pairs.1.0.bias": "x", "own": "x"})
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
def test_the_page_as_tf_keras_tests_it(layout):
    m = layout.rules({"d1.kernel": "u x", "d1.bias": "x", "d2.kernel": "x u", "d2.bias": "u"})
    with layout_map_scope(m):
        model = Net()
    assert {path: v.layout for path, v in model.named_variables()} == m
    assert model.d1.kernel is model.d1.variables()[1] is model.variables()[1]
    assert model.d1.kernel.local.shape == (4, 3)
    assert type(model.d1.kernel) is Variable


@on_ranks(2)
def test_an_empty_map_replicates(layout):
    with layout.rules().scope():
        model = Net()
    assert [v.layout for v in model.variables()] == [layout("u"), layout("u", "u")] * 2


@on_ranks(1)
def test_trainable_variables(layout):
    class Norm(Module):
        def __init__(self):
            self.gamma = Variable(1.0, (2,))
            self.moving_mean = Variable(0.0, (2,), trainable=False)

    with layout.rules().scope():
        norm = Norm()
    assert norm.variables() == [norm.gamma, norm.moving_mean]
    assert norm.trainable_variables() == [norm.gamma]


@on_ranks(1)
def test_order_of_paths(layout):
    class Many(Module):
        def __init__(self):
            self.z = [Variable(float(i), ()) for i in range(12)]
            self._cache = [self.z[3], Variable(0.0, ())]
            self.Z = Variable(0.0, ())

    with layout.rules().scope():
        many = Many()
    assert paths(many) == ["Z", "_cache.0", "_cache.1", *(f"z.{i}" for i in range(12) if i != 3)]


@on_ranks(2)
def test_a_tie_has_the_name_that_tf_keras_takes(layout):
    """tf_keras walks ``sorted(vars(module))``: capitals, names with a leading underscore, small letters."""

    class Tied(Module):
        def __init__(self):
            self.a = self._x = Dense(2, 2)
            self._y = self.B = Dense(2, 2)

    m = layout.rules({"_x.kernel": "x u", "B.kernel": "x u", "a.kernel": "u x", "_y.kernel": "u x"})
    with m.scope():
        tied = Tied()
    assert paths(tied) == ["B.bias", "B.kernel", "_x.bias", "_x.kernel"]
    assert tied.a.kernel.layout == tied.B.kernel.layout == layout("x", "u")


@on_ranks(2)
def test_deques_and_slots_are_walked(layout):
    class Slotted(Module):
        __slots__ = ("__hidden", "kernel", "nothing")

        def __init__(self):
            self.kernel, self.__hidden = Variable(0.0, (2,)), Variable(0.0, (2,))
            self.bias = Variable(0.0, (2,))

    @dataclasses.dataclass(slots=True)
    class Block(Module):
        inner: object

    m = layout.rules({"recent.1.kernel": "x"})
    with m.scope():
        net = Module()
        net.recent = deque([Variable(0.0, (2,)), Slotted()])
        net.block = Block(Variable(0.0, (2,)))
    names = ["_Slotted__hidden", "bias", "kernel"]
    assert paths(net) == ["block.inner", "recent.0", *(f"recent.1.{name}" for name in names)]
    assert net.recent[1].kernel.layout == layout("x")
    assert all(v.initialized for v in net.variables())


@on_ranks(2)
def test_ties(layout):
    class Tied(Module):
        def __init__(self):
            self.b = self.a = Dense(2, 2)
            self.embedding = Variable(random_normal(0), (4, 2))
            self.head = {"kernel": self.embedding, "again": [self.b, self.embedding]}

    m = layout.rules({"a.kernel": "x u", "b.kernel": "u x", "embedding": "u x", "head.*": "x u"})
    with m.scope():
        tied = Tied()
    assert paths(tied) == ["a.bias", "a.kernel", "embedding"]
    assert tied.b.kernel.layout == layout("x", "u")
    assert tied.head["kernel"] is tied.embedding
    assert tied.embedding.layout == layout("u", "x")


@on_ranks(1)
def test_cycles(layout):
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

    with layout.rules().scope():
        parent = Parent()
    assert paths(parent) == ["child.kernel"]
    assert parent.child.kernel.path == "child.kernel"
    assert paths(parent.child) == ["kernel"]


@on_ranks(1)
def test_keys_that_have_one_name(layout):
    module = Module()
    module.layers = {key: Variable(0.0, layout=layout()) for key in (1, "1")}
    with pytest.raises(LayoutError, match="two keys of the dict 'layers' are named '1'"):
        module.variables()


@on_ranks(1)
def test_dataclasses_are_modules(layout):
    @dataclasses.dataclass
    class Block(Module):
        kernel: Variable
        inner: list

    @dataclasses.dataclass(frozen=True)
    class Frozen(Module):
        block: Block

    with layout.rules().scope():
        frozen = Frozen(Block(Variable(0.0, ()), [Variable(1.0, ())]))
    assert paths(frozen) == ["block.inner.0", "block.kernel"]
    assert frozen.block.inner[0].path == "block.inner.0"


def test_module_takes_no_arguments_of_its_own():
    with pytest.raises(TypeError, match=r"Module\(\) takes no arguments"):
        Module(3)


@on_ranks(1)
def test_parts_name_layers(layout):
    class Named(Module):
        def __init__(self, *layers):
            self.layers = layers

        def parts(self):
            return {f"layer_{i}": layer for i, layer in enumerate(self.layers)}

    m = layout.rules({"layer_0.kernel": "x u", "layer_1.layer_0.kernel": "u x"})
    with m.scope():
        first, inner = Dense(2, 2), Named(Dense(2, 2))
        model = Named(first, inner)
    assert paths(model) == ["layer_0.bias", "layer_0.kernel", "layer_1.layer_0.bias", "layer_1.layer_0.kernel"]
    assert first.kernel.layout == layout("x", "u")
    assert inner.layers[0].kernel.layout == layout("u", "x")
