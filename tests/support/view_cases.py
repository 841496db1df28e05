"""Chains of views of tensors, and writes through them, beside the same of NumPy's arrays: for any kind of ranks."""

from math import prod

import numpy as np
import pytest

import meshcomm as mc
from support.indexing import random_index
from support.tensors import check, layout_of, shape_of, tensor_of

MOVED = "the elements had to move, so this is a copy"


def random_shape_of(random, size):
    """A shape with so many elements."""
    lengths = []
    while size > 1 and len(lengths) < 3:
        n = random.choice([n for n in range(1, size + 1) if size % n == 0])
        lengths.append(n)
        size //= n
    lengths.append(size)
    random.shuffle(lengths)
    return tuple(lengths)


def random_view(random, shape, dtype):
    """A function that NumPy answers with a view, mostly, of an array of this shape and dtype."""
    ndim = len(shape)
    order = random.sample(range(ndim), ndim)
    kind = random.choice(
        ["slice"] * 3 + ["transpose", "T", "moveaxis", "reshape", "reshape", "ravel", "expand", "squeeze", "flip"]
        + ["part", "broadcast", "diagonal", "split", "rot90", "atleast", "same", "ellipsis"]
    )  # fmt: skip
    if kind == "slice" and ndim:
        index = random_index(random, shape)
        return lambda t: t[index]
    if kind == "transpose":
        return lambda t: t.transpose(order)
    if kind == "T":
        return lambda t: t.T
    if kind == "moveaxis" and ndim:
        return lambda t: np.moveaxis(t, order[0], order[-1])
    if kind == "reshape":
        new = random_shape_of(random, prod(shape)) if prod(shape) else (0, *shape)
        return lambda t: t.reshape(new)
    if kind == "ravel":
        return np.ravel
    if kind == "expand":
        axis = random.randint(0, ndim)
        return lambda t: np.expand_dims(t, axis)
    if kind == "squeeze":
        return np.squeeze
    if kind == "flip":
        axes = tuple(order[: random.randint(0, ndim)])
        return lambda t: np.flip(t, axes)
    if kind == "part":
        return random.choice([np.real, np.imag]) if dtype.kind == "c" or random.random() < 0.2 else np.real
    if kind == "broadcast" and random.random() < 0.3:
        new = (random.randint(1, 3), *shape)
        return lambda t: np.broadcast_to(t, new)
    if kind == "diagonal" and ndim > 1 and random.random() < 0.5:
        offset = random.randint(-shape[order[0]], shape[order[1]])
        return lambda t: t.diagonal(offset, order[0], order[1])
    if kind == "split" and ndim:
        axis = order[0]
        return lambda t: np.array_split(t, 2, axis)[1]
    if kind == "rot90" and ndim > 1:
        turns = random.randint(-1, 4)
        return lambda t: np.rot90(t, turns, order[:2])
    if kind == "atleast":
        return random.choice([np.atleast_1d, np.atleast_2d, np.atleast_3d])
    if kind == "ellipsis":
        return lambda t: t[..., None]
    return lambda t: t[...]


def shared(v, x):
    """Whether an array is a view of elements of another one."""
    return v.size == 0 or np.shares_memory(v, x)


def _number(v, w, values):
    v[...] = 7
    w[...] = 7


def _values(v, w, values):
    v[...] = values.to_numpy()
    w[...] = values.to_numpy()


def _tensor(v, w, values):
    v[...] = values
    w[...] = values.to_numpy()


def _added(v, w, values):
    v += 3
    w += 3


def _out(v, w, values):
    np.multiply(values, 2, out=v)
    np.multiply(values.to_numpy(), 2, out=w)


def _relaid(v, w, values):
    mc.relayout(values, v.layout, out=v)
    w[...] = values.to_numpy()


def _many(v, w, values):
    mc.relayout([values], [v.layout], out=[v])
    w[...] = values.to_numpy()


def _started(v, w, values):
    mc.start_relayout(values, v.layout, out=v).wait()
    w[...] = values.to_numpy()


WRITES = [_number, _values, _tensor, _added, _out, _relaid, _many, _started]


def write(write_to, v, w, arrays, values):
    """Write through a view and NumPy's; return whether it was refused, and check that it was right to do so."""
    before, error = w.copy(), None
    try:
        write_to(v, w, values)
    except ValueError as found:
        error = str(found)
    if error is None:
        return False
    assert (w == before).all()  # our write comes first
    if "read-only" in error:
        assert not w.flags.writeable
    else:
        assert MOVED in error
        assert v.mesh.size > 1
        assert any(shared(w, x) for x in arrays), f"it is a copy in NumPy, too: {v!r}"
    return True


def chains(random, mesh, count=10):
    """Chains of views, with writes after some of them."""
    for number in range(count):
        shape, dtype = shape_of(random), np.dtype(random.choice(["f8", "i4", "c16"]))
        t, x = tensor_of(random, mesh, shape, number, dtype)
        live, arrays = [(t, x)], [x]
        for step in range(random.randint(1, 6)):
            v, w = random.choice(live[-3:])
            call = random_view(random, v.shape, v.dtype)
            v, w = call(v), np.asarray(call(w))
            check(v, w)
            live.append((v, w))
            assert v._view is None or v.local is None or v.local.flags.writeable == w.flags.writeable or not v.size
            if random.random() < 0.6:
                values, _ = tensor_of(random, mesh, v.shape, step, v.dtype)
                write(random.choice(WRITES), v, w, arrays, values)
                check(t, x)
                # Copies of what NumPy has as a view do not see what was written to others.
                live = [(a, b) for a, b in live if a._view is None or not a._view.origins]
                for each in live:
                    check(*each)
            if prod(v.shape) == 0:
                break
            arrays.append(w)
        last, whole = live[-1]
        check(mc.relayout(last, layout_of(random, mesh, last.shape)), whole)


def refused(call):
    """Check that a write is refused as one to a read-only array."""
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        call()
