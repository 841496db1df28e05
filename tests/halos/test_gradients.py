"""Gradients of map_overlap and of halo, by autograd."""

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import meshcomm as mc
from support.reference import on_ranks


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


@on_ranks(2)
def test_a_gradient_without_elements():
    t = mc.zeros((0,), float, mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    found = autograd.grad(lambda t: anp.sum(mc.map_overlap(lambda x: x * 2, t, 1, "periodic")))(t)
    assert (found.layout, found.shape) == (t.layout, (0,))


@on_ranks(2)
def test_two_tensors_have_no_gradient_yet():
    t = mc.ones((4,), float, mc.Layout(["x"], mc.create_mesh([("x", 2)])))
    with pytest.raises(NotImplementedError, match="for one tensor, with trim=True"):
        autograd.grad(lambda t: anp.sum(mc.map_overlap(lambda x, y: x * y, t, t, 1)))(t)


# -- halo -------------------------------------------------------------------------------------------------------------


MESHES = {1: [("x", 1), ("y", 1)], 2: [("x", 2), ("y", 1)], 3: [("x", 1), ("y", 3)], 4: [("x", 2), ("y", 2)]}


def weighed(t, width, boundary, corners):
    """Return a sum over all elements and ghosts of all ranks, each with a weight of its own; by `from_local`."""
    h = mc.halo(t, width, boundary, corners=corners)
    weights = np.random.default_rng(t.mesh.rank).standard_normal(h.local.shape)
    mine = anp.sum(weights * anp.sin(h.local) * h.local) + anp.sum(h.inner**3)
    return anp.sum(mc.from_local(anp.reshape(mine, (1,)), mc.Layout([("x", "y")], h.mesh), (h.mesh.size,)))


@pytest.mark.parametrize("boundary", ["none", "periodic", "reflect", "mirror", "nearest", 2.0, ["periodic", 0.5]])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_gradient_of_a_halo_is_that_of_finite_differences(ranks, boundary):
    a, direction = np.random.default_rng(1).standard_normal((2, 5, 6))
    widths = [[(2, 1), (0, 3)], {1: 4}]

    def program(width, corners):
        layout = mc.Layout(["x", "y"], mc.create_mesh(MESHES[ranks]))

        def value(t):
            return weighed(t, width, boundary, corners)

        def at(a):
            return float(value(mc.distribute(a, layout)))

        gradient = autograd.grad(value)(mc.distribute(a, layout))
        assert gradient.layout == layout
        whole = gradient.to_numpy()
        change = (at(a + 1e-5 * direction) - at(a - 1e-5 * direction)) / 2e-5
        assert (whole * direction).sum() == pytest.approx(change, rel=1e-6, abs=1e-6)

    with mc.simulate(ranks) as world:
        world.run(program, widths[0], True)
        world.run(program, widths[1], ranks % 2 == 0)


def test_a_step_of_a_program_and_its_second_derivative():
    """A stencil on `local`, and the tensor of what it makes: the Hessian of a sum of squared differences."""

    def energy(t):
        h = mc.halo(t, {0: (0, 1)}, "periodic")
        difference = mc.from_local(h.local[1:] - h.local[:-1], h.layout, h.shape)
        return anp.sum(difference**2) / 2

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 3)]))
        t, v = (mc.distribute(values, layout) for values in np.random.default_rng(2).standard_normal((2, 8)))
        product = autograd.grad(lambda t: anp.sum(autograd.grad(energy)(t) * v))(t)
        return autograd.grad(energy)(t).to_numpy(), product.to_numpy(), t.to_numpy(), v.to_numpy()

    def laplacian(a):
        return 2 * a - np.roll(a, 1) - np.roll(a, -1)

    with mc.simulate(3) as world:
        gradient, product, t, v = world.run(program)[0]
    np.testing.assert_allclose(gradient, laplacian(t), atol=1e-12)
    np.testing.assert_allclose(product, laplacian(v), atol=1e-12)


def test_the_second_derivative_of_a_halo_is_linear_in_ghosts():
    """Beyond an edge with a constant, the gradient is zero, not the constant."""

    def energy(t):
        h = mc.halo(t, 1, 5.0)
        return anp.sum(mc.from_local(anp.sum(h.local**3, keepdims=True), h.layout, (2,)))

    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        t, v = (mc.distribute(np.array(values), layout) for values in ([1.0, 2, 3, 4], [1.0, 1, 1, 1]))
        return autograd.grad(lambda t: anp.sum(autograd.grad(energy)(t) * v))(t).to_numpy()

    with mc.simulate(2) as world:
        np.testing.assert_allclose(world.run(program)[0], [6, 24, 36, 24])  # twice where a ghost is


def test_what_a_followed_halo_is():
    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)]))
        t = mc.distribute(np.arange(6.0), layout)

        def value(t):
            h = mc.halo(t, 1, "periodic")
            assert (h.shape, h.layout, h.width, h.boundary) == ((6,), layout, ((1, 1),), ("periodic",))
            assert h.inner_slices == (slice(1, 4),)
            assert h.local.shape == (5,)
            assert "Halo of" in repr(h)
            for call in (h.update, h.start_update, h.reduce, lambda: mc.update_halos([h])):
                with pytest.raises(NotImplementedError, match="make another halo"):
                    call()
            return anp.sum(h.tensor() ** 2)

        return autograd.grad(value)(t).to_numpy().tolist()

    with mc.simulate(2) as world:
        assert world.run(program)[0] == [0, 2, 4, 6, 8, 10]


def test_ranks_outside_of_the_mesh():
    def program():
        layout = mc.Layout(["x"], mc.create_mesh([("x", 2)], devices=[0, 2]))
        t = mc.distribute(np.arange(4.0), layout)

        def value(t):
            h = mc.halo(t, 1)
            if h.local is None:
                return anp.sum(t) * 0
            return anp.sum(mc.from_local(h.local[h.inner_slices] ** 2, h.layout, h.shape))

        gradient = autograd.grad(value)(t)
        return None if gradient.local is None else gradient.local.tolist()

    with mc.simulate(3) as world:
        assert world.run(program) == [[0, 2], None, [4, 6]]
