"""Views of views of tensors, and writes through them, compared with NumPy's: for any kind of ranks."""

from math import prod

import numpy as np
import pytest

import meshcomm as mc
from support.indexing import random_index
from support.tensors import check, layout_of, shape_of, tensor_of


def random_shape_of(random, size):
    """A random shape with *size* elements."""
    lengths = []
    while size > 1 and len(lengths) < 3:
        n = random.choice([n for n in range(1, size + 1) if size % n == 0])
        lengths.append(n)
        size //= n
    lengths.append(size)
    random.shuffle(lengths)
    return tuple(lengths)


def random_view(random, shape, dtype):
    """A function that in most cases returns a view in NumPy, for arrays of this shape and dtype."""
    ndim, size = len(shape), prod(shape)
    axis_order, index = random.sample(range(ndim), ndim), random_index(random, shape) if ndim else ...
    axes, new_shape = (
        tuple(axis_order[: random.randint(0, ndim)]),
        random_shape_of(random, size) if size else (0, *shape),
    )
    axis, broadcast_shape, quarter_turns = (
        random.randint(0, ndim),
        (random.randint(1, 3), *shape),
        random.randint(-1, 4),
    )
    views = 3 * [lambda t: t[index]] + 2 * [lambda t: t.reshape(new_shape)]
    views += [np.ravel, np.squeeze, np.real, np.atleast_1d, np.atleast_2d, np.atleast_3d, lambda t: t[..., None]]
    views += [lambda t: t.T, lambda t: t.transpose(axis_order), lambda t: np.flip(t, axes)]
    views += [lambda t: np.expand_dims(t, axis)]
    if ndim:
        views += [
            lambda t: np.moveaxis(t, axis_order[0], axis_order[-1]),
            lambda t: np.array_split(t, 2, axis_order[0])[1],
        ]
    if ndim > 1:
        offset = random.randint(-shape[axis_order[0]], shape[axis_order[1]])
        views += [
            lambda t: t.diagonal(offset, axis_order[0], axis_order[1]),
            lambda t: np.rot90(t, quarter_turns, axis_order[:2]),
        ]
    if dtype.kind == "c" or random.random() < 0.2:
        views.append(np.imag)
    if random.random() < 0.3:
        views.append(lambda t: np.broadcast_to(t, broadcast_shape))
    return random.choice(views)


def _writes(tensor_code, array_code="v[...] = values"):
    """Return a function that writes *values*, a tensor, to a view, and their array to NumPy's view."""

    def write_to(v, w, values):
        exec(tensor_code, {"mc": mc, "np": np, "v": v, "values": values})
        exec(array_code, {"np": np, "v": w, "values": values.to_numpy()})

    return write_to


WRITES = [
    *(_writes(text, text) for text in ("v[...] = 7", "v[...] = values", "v += 3", "np.multiply(values, 2, out=v)")),
    _writes("v[...] = values.to_numpy()"),
    _writes("mc.relayout(values, v.layout, out=v)"),
    _writes("mc.relayout([values], [v.layout], out=[v])"),
    _writes("mc.start_relayout(values, v.layout, out=v).wait()"),
]


def write(write_to, v, w, values):
    """Write through a view and NumPy's; return whether both refused it."""
    old_values, error = w.copy(), None
    try:
        write_to(v, w, values)
    except ValueError as raised:
        error = str(raised)
    if error is None:
        return False
    assert (w == old_values).all()  # our write comes first
    assert "read-only" in error
    assert not w.flags.writeable
    return True


def chains(random, mesh, count=10):
    """Check views of views, with writes after some of them."""
    for number in range(count):
        shape, dtype = shape_of(random), np.dtype(random.choice(["f8", "i4", "c16"]))
        t, x = tensor_of(random, mesh, shape, number, dtype)
        views = [(t, x)]
        for step in range(random.randint(1, 6)):
            v, w = random.choice(views[-3:])
            call = random_view(random, v.shape, v.dtype)
            v, w = call(v), np.asarray(call(w))
            check(v, w)
            views.append((v, w))
            assert v._view is None or v.local is None or v.local.flags.writeable == w.flags.writeable or not v.size
            if random.random() < 0.6:
                values, _ = tensor_of(random, mesh, v.shape, step, v.dtype)
                write(random.choice(WRITES), v, w, values)
                for tensor, array in views:
                    check(tensor.refresh(), array)
            if prod(v.shape) == 0:
                break
        last_tensor, last_array = views[-1]
        check(mc.relayout(last_tensor, layout_of(random, mesh, last_tensor.shape)), last_array)


def refused(call):
    """Check that a write is refused as one to a read-only array."""
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        call()
