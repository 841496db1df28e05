"""Learn handwritten digits with a network of two layers: mpiexec -n 4 python mpi_examples/digits.py

The mesh has the dimensions batch and model, 2 x 2 with four ranks. The hidden layer is sharded over model: each rank
computes some of its units, for some of the images. For the output layer each rank needs all units, for fewer images:
one relayout, an AllToAll, moves them. Gradients go back the same way. The program runs on any number of ranks, and its
losses agree to 1e-6.
"""

from time import perf_counter

import autograd.numpy as np
from autograd import value_and_grad
from sklearn.datasets import load_digits

import meshcomm as mc

STEPS, RATE, MOMENTUM = 120, 0.5, 0.9
RECORDED = {0: 2.35220857, 20: 0.13460981, 119: 0.01280307}  # step: loss, with any number of ranks

ranks = mc.create_mesh().size
mesh = mc.create_mesh([("batch", -1), ("model", 2 if ranks % 4 == 0 else 1)])
by_batch = mc.Layout(["batch", mc.UNSHARDED], mesh)
by_all = mc.Layout([("batch", "model"), mc.UNSHARDED], mesh)

layout_map = mc.LayoutMap(mesh)  # what no rule matches is on every rank
layout_map["hidden.kernel"] = mc.Layout([mc.UNSHARDED, "model"], mesh)
layout_map["hidden.bias"] = mc.Layout(["model"], mesh)


def initial(rng):
    """Return the weights: every rank draws the same ones and keeps its blocks."""
    hidden = {"kernel": rng.normal(size=(64, 50)) / 8, "bias": np.zeros(50)}
    output = {"kernel": rng.normal(size=(50, 10)) / 7, "bias": np.zeros(10)}
    return layout_map.distribute({"hidden": hidden, "output": output})


def network(weights, images):
    """Return the score of each digit for each image."""
    hidden = np.tanh(images @ weights["hidden"]["kernel"] + weights["hidden"]["bias"])
    hidden = mc.relayout(hidden, by_all)
    return hidden @ weights["output"]["kernel"] + weights["output"]["bias"]


def loss(weights, images, labels):
    """Return the mean cross entropy; row i of *labels* has a one at the digit of image i."""
    scores = network(weights, images)
    return np.mean(np.log(np.sum(np.exp(scores), axis=1)) - np.sum(scores * labels, axis=1))


def updated(weights, velocity, gradient):
    """Return the weights and their velocity after a step. All have the layouts of the gradient, so nothing moves."""
    if not isinstance(weights, dict):
        velocity = MOMENTUM * velocity - RATE * gradient
        return weights + velocity, velocity
    pairs = {name: updated(weights[name], velocity[name], gradient[name]) for name in weights}
    return {name: w for name, (w, _) in pairs.items()}, {name: v for name, (_, v) in pairs.items()}


rng = np.random.default_rng(0)
pixels, digits = load_digits(return_X_y=True)  # 1797 images of 8 x 8 pixels from 0 to 16
order = rng.permutation(len(digits))
pixels, digits = pixels[order] / 16, digits[order]
held_out = 360
images = mc.distribute(pixels[held_out:], by_batch)
labels = mc.distribute(np.eye(10)[digits[held_out:]], by_all)
weights = initial(rng)
velocity = {layer: {name: mc.zeros_like(w) for name, w in arrays.items()} for layer, arrays in weights.items()}

start, step = perf_counter(), value_and_grad(loss)
for number in range(STEPS):
    value, gradient = step(weights, images, labels)
    weights, velocity = updated(weights, velocity, gradient)
    if number in RECORDED:
        if mesh.rank == 0:
            print(f"step {number}: loss {float(value):.8f}")
        assert abs(float(value) - RECORDED[number]) < 1e-6, (number, float(value))
seconds = perf_counter() - start

scores = network(weights, mc.distribute(pixels[:held_out], by_batch)).to_numpy()
accuracy = np.mean(scores.argmax(axis=1) == digits[:held_out])
assert accuracy >= 0.95
assert gradient["hidden"]["kernel"].layout == layout_map["hidden.kernel"]
if mesh.rank == 0:
    print(f"batch x model = {mesh.shape()}, hidden kernel in {layout_map['hidden.kernel'].sharding_specs}")
    print(f"{100 * accuracy:.1f} % of {held_out} held-out digits after {STEPS} steps, {seconds:.1f} s")
