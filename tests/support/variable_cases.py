"""Modules with variables, and meshes for them."""

from hypothesis import strategies as st

import meshcomm as mc
from meshcomm import UNSHARDED, Layout, LayoutMap, Module, Variable, random_normal
from support import reference


class Layouts:
    """A mesh over all ranks, with dimensions x and y if their number is even; its layouts, and layout maps of them.

    In specs, "u" stands for an unsharded axis.
    """

    def __init__(self):
        world_mesh = mc.create_mesh()
        self.mesh = mc.create_mesh([("x", 2), ("y", -1)]) if world_mesh.size % 2 == 0 else mc.create_mesh([("x", -1)])

    def __call__(self, *specs):
        return Layout([{"u": UNSHARDED}.get(spec, spec) for spec in specs], self.mesh)

    def rules(self, rules=()):
        """Return a layout map of *rules*: patterns, and the specs of their layouts in one text."""
        layout_map = LayoutMap(self.mesh)
        layout_map.update((key, self(*specs.split())) for key, specs in dict(rules).items())
        return layout_map


def on_ranks(size):
    """Return a decorator: *size* simulated ranks run the test, and its argument *layout* is their `Layouts`."""
    return reference.on_ranks(size, layout=Layouts)


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


@st.composite
def blocks(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    slices = []
    for n in shape:
        start = draw(st.integers(0, n))
        slices.append(slice(start, draw(st.integers(start, n))))
    return shape, tuple(slices)


class Late(Module):
    """Makes its kernel in its first call, like layers that take their shape from the input."""

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
