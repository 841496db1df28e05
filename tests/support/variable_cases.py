"""Modules with variables, and meshes for them."""

from hypothesis import strategies as st

import meshcomm as mc
from meshcomm.layouts.layout import UNSHARDED, Layout
from meshcomm.ops.random import random_normal
from meshcomm.training.modules import Module
from meshcomm.training.variables import Variable


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


@st.composite
def blocks(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=4)))
    slices = []
    for n in shape:
        start = draw(st.integers(0, n))
        slices.append(slice(start, draw(st.integers(start, n))))
    return shape, tuple(slices)


def grid1():
    mesh = mc.create_mesh([("x", 1)])
    return mesh, lambda *specs: Layout([{"u": UNSHARDED}.get(spec, spec) for spec in specs], mesh)


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
