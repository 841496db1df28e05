"""The gradient of map_overlap, by autograd."""

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import meshcomm as mc


def smoothed(x):
    """Return a function of each element and its two neighbours; at the ends of a block it is another one."""
    return anp.concatenate([x[:1], anp.sin(x[1:-1]) * x[:-2] + x[2:] ** 2, x[-1:]])


@pytest.mark.parametrize("boundary", ["periodic", "reflect", "mirror", "nearest", 2.0])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gradients(boundary, ranks):
    a, weights = np.random.default_rng(0).standard_normal((2, 7))

    def value(t, w):
        return anp.sum(mc.map_overlap(smoothed, t, 1, boundary) * w)

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", ranks)]))
        t, w = mc.distribute(a, layout), mc.distribute(weights, layout)
        found = autograd.grad(value)(t, w)
        assert found.layout == layout
        np.testing.assert_array_equal(t.to_numpy(), a)
        return found.to_numpy()

    def whole(a):
        if boundary == 2.0:
            padded = np.pad(a, 1, constant_values=2.0)
        else:
            mode = {"periodic": "wrap", "reflect": "symmetric", "mirror": "reflect", "nearest": "edge"}[boundary]
            padded = np.pad(a, 1, mode)
        return (smoothed(padded)[1:-1] * weights).sum()

    with mc.simulate(ranks) as world:
        found = world.run(program)[0]
    step = 1e-6 * np.eye(7)
    expected = [(whole(a + each) - whole(a - each)) / 2e-6 for each in step]
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


def test_two_tensors_have_no_gradient_yet():
    def program():
        t = mc.ones((4,), float, mc.Layout(["x"], mc.create_mesh([("x", 2)])))
        with pytest.raises(NotImplementedError, match="for one tensor, with trim=True"):
            autograd.grad(lambda t: anp.sum(mc.map_overlap(lambda x, y: x * y, t, t, 1)))(t)

    with mc.simulate(2) as world:
        world.run(program)
