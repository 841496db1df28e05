"""What tests of gradients share."""

import numpy as np

import meshcomm as mc


def on(size, program, *args):
    with mc.simulate(size) as world:
        return world.run(program, *args)


def random(*shape, seed=0, dtype="f8"):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def dot(a, b):
    """The product of global arrays: replicas count once."""
    return float((a * b).sum())
