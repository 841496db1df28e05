"""A block of a transformer, sharded as Megatron does it: mpiexec -n 4 python mpi_examples/transformer.py

The mesh has the dimensions data and model, 2 x 2 with four ranks. The batch is cut over data. Over model, attention is
cut by heads, and the layers after it by hidden features. Between them the tokens are cut, so layer norms and sums need
no exchange. An einsum from tokens to heads or features moves tokens to the ranks that have the weights. One that goes
back adds up what these ranks have, and each rank keeps the sums of its tokens; the program prints the plan of one. The
same function runs on NumPy's arrays, and the results are compared. The program runs on any number of ranks.
"""

import sys

import numpy as np

import meshcomm as mc

BATCH, TOKENS, WIDTH, HEADS, HIDDEN = 4, 64, 128, 8, 512
HEAD = WIDTH // HEADS

ranks = mc.create_mesh().size
mesh = mc.create_mesh([("data", -1), ("model", 2 if ranks % 2 == 0 else 1)])
U = mc.UNSHARDED
by_tokens = mc.Layout(["data", "model", U], mesh)  # batch, token, width
by_heads = mc.Layout(["data", U, "model", U], mesh)  # batch, token, head, width of a head
by_features = mc.Layout(["data", U, "model"], mesh)  # batch, token, feature

layout_map = mc.LayoutMap(mesh)  # what no rule matches is on every rank
layout_map["query|key|value"] = mc.Layout([U, "model", U], mesh)
layout_map["join"] = mc.Layout(["model", U, U], mesh)
layout_map["up"] = mc.Layout([U, "model"], mesh)
layout_map["down"] = mc.Layout(["model", U], mesh)


def initial(rng):
    """Return the weights."""
    shapes = {"query": (WIDTH, HEADS, HEAD), "key": (WIDTH, HEADS, HEAD), "value": (WIDTH, HEADS, HEAD)}
    shapes |= {"join": (HEADS, HEAD, WIDTH), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    shapes |= {"gain 1": (WIDTH,), "shift 1": (WIDTH,), "gain 2": (WIDTH,), "shift 2": (WIDTH,)}
    return {name: rng.normal(size=shape) / np.sqrt(WIDTH) for name, shape in shapes.items()}


def einsum(subscripts, a, b, layout):
    """Return the contraction of two tensors in a layout, or of two arrays."""
    return mc.einsum(subscripts, a, b, layout=layout) if isinstance(a, mc.DTensor) else np.einsum(subscripts, a, b)


def normed(x, gain, shift):
    """Return each token with mean 0 and variance 1, scaled and shifted."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * gain + shift


def attention(x, weights):
    """Return what each token takes from itself and from the tokens before it."""
    query, key, value = (einsum("btw,whd->bthd", x, weights[name], by_heads) for name in ("query", "key", "value"))
    scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(HEAD)
    scores = np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf)
    scores = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    scores = scores / np.sum(scores, axis=-1, keepdims=True)
    heads = np.einsum("bhqk,bkhd->bqhd", scores, value)
    return einsum("bthd,hdw->btw", heads, weights["join"], by_tokens)


def feed_forward(x, weights):
    """Return two layers with a GELU between them."""
    hidden = einsum("btw,wf->btf", x, weights["up"], by_features)
    hidden = hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
    return einsum("btf,fw->btw", hidden, weights["down"], by_tokens)


def block(x, weights):
    """Return the tokens after the block."""
    x = x + attention(normed(x, weights["gain 1"], weights["shift 1"]), weights)
    return x + feed_forward(normed(x, weights["gain 2"], weights["shift 2"]), weights)


def main():
    """Run the block on tensors and on arrays. Return whether they agree, the same on every rank."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(BATCH, TOKENS, WIDTH)), initial(rng)
    sharded = layout_map.distribute(weights)
    result = block(mc.distribute(x, by_tokens), sharded)
    hidden = (BATCH, TOKENS, HIDDEN), x.dtype, by_features
    plan = mc.plan_einsum("btf,fw->btw", hidden, sharded["down"], layout=by_tokens)
    error = abs(result.to_numpy() - block(x, weights)).max()
    if mesh.rank == 0:
        print(f"data x model = {mesh.shape()}; {result.shape} in {result.layout.sharding_specs}")
        print(f"from hidden features back to tokens:\n{plan}")
        print(f"the largest difference from NumPy: {error:.1e}")
    return result.layout == by_tokens and error < 1e-12


if __name__ == "__main__":
    sys.exit(not main())
