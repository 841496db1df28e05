"""A few layers in the manner of Keras, as small as the examples need them; not part of the library.

Layers make their variables at their first call, when they learn the shape of their input. A functional or sequential
model names its variables by the names of its layers, a subclassed one by its attributes.
"""

from collections import Counter

import meshcomm as mc


class Symbol:
    """The shape of an array that is not there yet, and the layer that will make it from another one."""

    def __init__(self, shape, layer, source=None):
        self.shape, self.layer, self.source = shape, layer, source


class Layer(mc.Module):
    """What takes an array to another: ``build`` makes the variables, ``call`` uses them."""

    def __init__(self, name=None):
        self.name = name or type(self).__name__.lower()
        self.is_built = False

    def __call__(self, x):
        """Return the output for an array, or for a Symbol the Symbol of the output."""
        if not self.is_built:
            with self.building():
                self.build(x.shape)
            self.is_built = True
        return Symbol(self.output_shape(x.shape), self, x) if isinstance(x, Symbol) else self.call(x)


class Dense(Layer):
    """``x @ kernel + bias``. Collective: the weights are gathered for each use, as in fully sharded data parallel."""

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
    """Where a functional model begins."""


def Input(shape, batch_size=None, name=None):  # noqa: N802
    """Return the Symbol of an input."""
    layer = InputLayer(name or "input")
    layer.is_built = True
    return Symbol((batch_size, *shape), layer)


class Model(Layer):
    """A model: a subclass with a method ``call``, or the layers between the Symbols of an input and an output."""

    def __init__(self, inputs=None, outputs=None, name=None):
        super().__init__(name)
        self.is_built = True
        self.layers = [] if outputs is None else _on_the_way(outputs)

    def parts(self):
        """Name the parts by layer name if the model is not a subclass."""
        return _by_name(self.layers) if type(self) is Model else super().parts()

    def call(self, x):
        """Call the layers one after the other."""
        for layer in self.layers:
            x = x if isinstance(layer, InputLayer) else layer(x)
        return x


class Sequential(Model):
    """Layers one after the other; built at once if the first one has an ``input_shape``."""

    def __init__(self, layers, name=None):
        super().__init__(name=name)
        self.layers = list(layers)
        if self.layers and getattr(self.layers[0], "input_shape", None):
            self.call(Input(self.layers[0].input_shape))

    def parts(self):
        """Name the parts by layer name."""
        return _by_name(self.layers)


def _on_the_way(output):
    """Return the layers from the input to *output*."""
    return [*(_on_the_way(output.source) if output.source else []), output.layer]


def _by_name(layers):
    """Return layers by name, with numbers after names that come again."""
    seen, named = Counter(), {}
    for layer in layers:
        number = seen[layer.name]
        named[f"{layer.name}_{number}" if number else layer.name] = layer
        seen[layer.name] += 1
    return named
