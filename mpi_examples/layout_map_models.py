"""Lay out three models by one map: the subclassed, functional and sequential model of the page of LayoutMap.scope.

mpiexec -n 4 python mpi_examples/layout_map_models.py
"""

import numpy as np
from small_keras import Dense, Input, Model, Sequential

import meshcomm as mc

n_ranks = mc.create_mesh().size
mesh = mc.create_mesh([("batch", -1), ("model", 2 if n_ranks % 2 == 0 else 1)])
layout_1 = mc.Layout([mc.UNSHARDED, "model"], mesh)
layout_2 = mc.Layout(["model"], mesh)
layout_3 = mc.Layout(["model", "batch"], mesh)
layout_4 = mc.Layout([mc.UNSHARDED], mesh)

layout_map = mc.LayoutMap(mesh=mesh)
layout_map["d1.kernel"] = layout_1
layout_map["d1.bias"] = layout_2
layout_map["d2.kernel"] = layout_3
layout_map["d2.bias"] = layout_4


def check(d1, d2):
    """Check the layouts, and that each rank holds only its own blocks."""
    assert d1.kernel.layout == layout_1
    assert d1.bias.layout == layout_2
    assert d2.kernel.layout == layout_3
    assert d2.bias.layout == layout_4
    for variable in (d1.kernel, d1.bias, d2.kernel, d2.bias):
        assert variable.local.shape == variable.layout.block_shape(variable.shape, mesh.rank)


class SubclassModel(Model):
    """A model with layers as attributes, which build their variables at the first call."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.d1 = Dense(1000, seed=1)
        self.d2 = Dense(1000, seed=2)

    def call(self, inputs):
        """Return the output of both layers."""
        x = self.d1(inputs)
        return self.d2(x)


with layout_map.scope():
    subclassed = SubclassModel()
assert subclassed(np.ones((10, 10), "f4")).shape == (10, 1000)
check(subclassed.d1, subclassed.d2)

with layout_map.scope():
    inputs = Input((10,), batch_size=10)
    x = Dense(20, name="d1", seed=1)(inputs)
    output = Dense(30, name="d2", seed=2)(x)
    functional = Model(inputs, output)
check(functional.layers[1], functional.layers[2])

with layout_map.scope():
    sequential = Sequential(
        [
            Dense(20, name="d1", input_shape=(10,), seed=1),
            Dense(30, name="d2", seed=2),
        ]
    )
check(sequential.layers[0], sequential.layers[1])

# Initial values depend only on the seeds, not on the model, the layouts or the number of ranks.
kernel_1 = mc.random_normal(1, stddev=10**-0.5)((slice(0, 10), slice(0, 20)), (10, 20), "f4")
kernel_2 = mc.random_normal(2, stddev=20**-0.5)((slice(0, 20), slice(0, 30)), (20, 30), "f4")
batch = np.random.default_rng(0).normal(size=(10, 10)).astype("f4")
for model in (functional, sequential):
    assert np.array_equal(model(batch), batch @ kernel_1 @ kernel_2)

names = ["d1.bias", "d1.kernel", "d2.bias", "d2.kernel"]
for model in (subclassed, functional, sequential):
    assert [path for path, _ in model.named_variables()] == names
    assert layout_map.report(model.named_variables()).is_clean

if mesh.rank == 0:
    print(f"three models on a mesh of {dict(mesh.dims)}:")
    for path, variable in subclassed.named_variables():
        print(f"  {path:9} {variable.shape!s:12} as {variable.layout.sharding_specs}, here {variable.local.shape}")
