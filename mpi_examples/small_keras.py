"""A few small layers like those of Keras, for the examples only; the library does not have them.

A layer makes its variables at its first call, when it learns the shape of its input. A functional or sequential model
names its variables by its layer names, a subclassed model by its attributes.
"""

from collections import Counter

import numpy as np

import meshcomm as mc


class Symbol:
    """The shape of a future array, the layer that will compute it, and the symbol of its input."""

    def __init__(self, shape, layer, source=None):
        self.shape, self.layer, self.source = shape, layer, source


class Layer(mc.Module):
    """Compute an array from another: ``build`` makes the variables, ``call`` uses them."""

    def __init__(self, name=None):
        self.name = name or type(self).__name__.lower()
        self.is_built = False

    def __call__(self, x):
        """Return the output for an array, or the Symbol of the output for a Symbol."""
        if not self.is_built:
            with self.building():
                self.build(x.shape)
            self.is_built = True
        return Symbol(self.output_shape(x.shape), self, x) if isinstance(x, Symbol) else self.call(x)


class Dense(Layer):
    """``x @ kernel + bias``. Collective: each call gathers the weights, as in fully sharded data parallel."""

    def __init__(self, units, name=None, input_shape=None, seed=0):
        super().__init__(name)
        self.units, self.input_shape, self.seed = units, input_shape, seed

    def build(self, shape):
        """Make a kernel for inputs of *shape*."""
        n = shape[-1]
        self.kernel = mc.Variable(mc.random_normal(self.seed, stddev=n**-0.5), (n, self.units), "f4")
        self.bias = mc.Variable(0.0, (self.units,), "f4")

    def call(self, x):
        """Return the output, the same on all ranks."""
        return x @ self.kernel.to_numpy() + self.bias.to_numpy()

    def output_shape(self, shape):
        """Return the shape of the output."""
        return (*shape[:-1], self.units)


class InputLayer(Layer):
    """The first layer of a functional model."""


def Input(shape, batch_size=None, name=None):  # noqa: N802
    """Return the Symbol of an input."""
    layer = InputLayer(name or "input")
    layer.is_built = True
    return Symbol((batch_size, *shape), layer)


class Model(Layer):
    """A subclass with a method ``call``, or the layers between the Symbols of an input and an output."""

    def __init__(self, inputs=None, outputs=None, name=None):
        super().__init__(name)
        self.is_built = True
        self.layers = [] if outputs is None else _on_the_way(outputs)

    def parts(self):
        """Return the layers by name, or the attributes of a subclass."""
        return _by_name(self.layers) if type(self) is Model else super().parts()

    def call(self, x):
        """Call the layers one after the other."""
        for layer in self.layers:
            x = x if isinstance(layer, InputLayer) else layer(x)
        return x


class Sequential(Model):
    """Layers one after the other. They are built at once if the first has an ``input_shape``."""

    def __init__(self, layers, name=None):
        super().__init__(name=name)
        self.layers = list(layers)
        if self.layers and getattr(self.layers[0], "input_shape", None):
            self.call(Input(self.layers[0].input_shape))

    def parts(self):
        """Return the layers by name."""
        return _by_name(self.layers)


def _on_the_way(output):
    """Return the layers from the input to *output*."""
    return [*(_on_the_way(output.source) if output.source else []), output.layer]


def _by_name(layers):
    """Return layers by name, with a number after each repeated name."""
    seen, named = Counter(), {}
    for layer in layers:
        number = seen[layer.name]
        named[f"{layer.name}_{number}" if number else layer.name] = layer
        seen[layer.name] += 1
    return named


def main():
    """Build a model with a sharded kernel, and compare its output with NumPy's."""
    mesh = mc.create_mesh([("x", -1)])
    layout_map = mc.LayoutMap(mesh)
    layout_map["dense.kernel"] = mc.Layout([mc.UNSHARDED, "x"], mesh)
    with layout_map.scope():
        model = Sequential([Dense(6, input_shape=(None, 4)), Dense(2)])
    x = np.ones((3, 4), "f4")
    expected = x
    for layer in model.layers:
        expected = expected @ layer.kernel.to_numpy() + layer.bias.to_numpy()
    assert np.array_equal(model(x), expected)
    kernel = model.layers[0].kernel
    if mesh.rank == 0:
        print(f"a model of 2 layers on {mesh.size} ranks; the first kernel is {kernel.shape} in {kernel.layout}")


if __name__ == "__main__":
    main()
