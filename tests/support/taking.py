"""NumPy's functions that take and write elements, over tensors in all layouts: for simulated and for real ranks."""

import numpy as np
import pytest

import meshcomm as mc
from support.indexing import check
from support.random_tensors import integers, layout_of, shape_of, tensor_of


def spread(random, mesh, array):
    """The array itself, or a tensor in some layout: twice, for the tensors and for NumPy."""
    array = np.asarray(array)
    if random.random() < 0.4:
        return array, array
    return mc.distribute(array, layout_of(random, mesh, array.shape)), array


def drawn(random, low, high, shape, dtype="i8"):
    return np.random.default_rng(random.randint(0, 999)).integers(low, max(high, low + 1), shape).astype(dtype)


def lengths_of(random, most=5):
    return tuple(random.randint(0 if random.random() < 0.1 else 1, most) for _ in range(random.randint(0, 2)))


def axis_of(random, x):
    return random.choice([None, random.randrange(-x.ndim, x.ndim)])


def some_indices(random, mesh, n, shape):
    """Indices of n elements, a mode, and the same for NumPy."""
    mode = random.choice(["raise", "wrap", "clip"])
    low, high = (-n, n) if mode == "raise" else (-2 * n, 3 * n)
    shape = shape if n else (0,)
    return *spread(random, mesh, drawn(random, low, high, shape, random.choice(["i8", "i4"]))), mode


def broadcastable(random, shape):
    return tuple(1 if random.random() < 0.2 else n for n in shape[random.randint(0, len(shape)) :])


# -- elements taken ---------------------------------------------------------------------------------------------------


def take(random, mesh, t, x):
    axis = axis_of(random, x)
    n = x.size if axis is None else x.shape[axis]
    given, index, mode = some_indices(random, mesh, n, lengths_of(random))
    expected = np.take(x, index, axis, mode=mode)
    check(np.take(t, given, axis, mode=mode), expected)
    check(t.take(given, axis, mode=mode), expected)
    out = mc.zeros(expected.shape, x.dtype, layout_of(random, mesh, expected.shape))
    assert np.take(t, given, axis, out, mode) is out
    check(out, expected)


def along_axis(random, mesh, x):
    axis = axis_of(random, x)
    if axis is None:
        return axis, (random.randint(0, 9) * (x.size > 0),), x.size
    n = x.shape[axis]
    shape = [m if random.random() < 0.8 else 1 for m in x.shape]
    shape[axis] = random.randint(0, 5) if n else 0
    return axis, tuple(shape), n


def take_along_axis(random, mesh, t, x):
    axis, shape, n = along_axis(random, mesh, x)
    given, index = spread(random, mesh, drawn(random, -n, n, shape))
    check(np.take_along_axis(t, given, axis), np.take_along_axis(x, index, axis))
    axis = random.randrange(-x.ndim, x.ndim)
    if x.dtype.kind != "c":
        check(np.take_along_axis(t, np.argsort(t, axis), axis), np.sort(x, axis))


def compress(random, mesh, t, x):
    axis = axis_of(random, x)
    n = x.size if axis is None else x.shape[axis]
    given, mask = spread(random, mesh, drawn(random, 0, 2, random.randint(0, n), random.choice(["?", "i8"])))
    check(np.compress(given, t, axis), np.compress(mask, x, axis))
    check(t.compress(given, axis), np.compress(mask, x, axis))
    shape = random.choice([x.shape, (random.randint(0, x.size),)])
    given, mask = spread(random, mesh, drawn(random, 0, 2, shape, random.choice(["?", "i8"])))
    check(np.extract(given, t), np.extract(mask, x))


def repeat(random, mesh, t, x):
    axis = axis_of(random, x)
    n = x.size if axis is None else x.shape[axis]
    given, counts = spread(random, mesh, drawn(random, 0, 4, random.choice([n, n, 1])))
    check(np.repeat(t, given, axis), np.repeat(x, counts, axis))
    check(t.repeat(given, axis), np.repeat(x, counts, axis))


def nonzero(random, mesh, t, x):
    for found, expected in zip(np.nonzero(t), np.nonzero(x), strict=True):
        check(found, expected)
    for found, expected in zip(np.where(t > 1), np.where(x > 1), strict=True):
        check(found, expected)
    check(t.nonzero()[-1], x.nonzero()[-1])
    check(np.argwhere(t), np.argwhere(x))
    check(np.flatnonzero(t), np.flatnonzero(x))
    check(t[np.nonzero(t)], x[np.nonzero(x)])


def choose(random, mesh, t, x):
    count = random.randint(1, 4)
    mode = random.choice(["raise", "wrap", "clip"])
    low, high = (0, count) if mode == "raise" else (-3, 6)
    a, b = spread(random, mesh, drawn(random, low, high, broadcastable(random, x.shape)))
    pairs = [
        (t, x),
        *(spread(random, mesh, integers(*broadcastable(random, x.shape), seed=n)) for n in range(1, count)),
    ]
    ours, theirs = zip(*pairs, strict=True)
    check(np.choose(a, ours, mode=mode), np.choose(b, theirs, mode=mode))
    picked, numbers = tensor_of(random, mesh, x.shape[1:], 3, "i8")
    if len(x) and len(x) < 32:
        check(picked.choose(t, mode="clip"), numbers.choose(list(x), mode="clip"))
    conditions = [spread(random, mesh, drawn(random, 0, 2, broadcastable(random, x.shape), "?")) for _ in pairs]
    ours_if, theirs_if = zip(*conditions, strict=True)
    check(np.select(ours_if, ours, 7), np.select(theirs_if, theirs, 7))


def flat_indices(random, mesh, t, x):
    index = drawn(random, 0, x.size, lengths_of(random) if x.size else (0,))
    given = mc.distribute(index, layout_of(random, mesh, index.shape))
    order = random.choice(["C", "F"])
    found, expected = np.unravel_index(given, x.shape, order), np.unravel_index(index, x.shape, order)
    for one, other in zip(found, expected, strict=True):
        check(one, other)
    check(np.ravel_multi_index(found, x.shape, order=order), np.ravel_multi_index(expected, x.shape, order=order))
    if x.size:
        given, wide = [each * 3 - 4 for each in found], [each * 3 - 4 for each in expected]
        mode = random.choice(["wrap", "clip"])
        check(np.ravel_multi_index(given, x.shape, mode), np.ravel_multi_index(wide, x.shape, mode))


# -- elements written -------------------------------------------------------------------------------------------------


def put(random, mesh, t, x):
    given, index, mode = some_indices(random, mesh, x.size, lengths_of(random))
    v, w = spread(random, mesh, integers(*lengths_of(random, 4), seed=random.randint(0, 9)))
    random.choice([lambda: np.put(t, given, v, mode), lambda: t.put(given, v, mode=mode)])()
    np.put(x, index, w, mode)
    check(t, x)
    axis, shape, n = along_axis(random, mesh, x)
    given, index = spread(random, mesh, drawn(random, -n, n, shape))
    taken = np.take_along_axis(x, index, axis).shape
    v, w = spread(random, mesh, integers(*broadcastable(random, taken), seed=1))
    np.put_along_axis(t, given, v, axis)
    np.put_along_axis(x, index, w, axis)
    check(t, x)


def masked(random, mesh, t, x):
    shape = random.choice([x.shape, x.shape, (x.size,)])
    given, mask = spread(random, mesh, drawn(random, 0, 2, shape, "?"))
    values = integers(random.choice([1, 2, 5, 40]), seed=random.randint(0, 9), dtype=x.dtype)
    v, w = spread(random, mesh, values)
    np.place(t, given, v)
    np.place(x, mask, w)
    check(t, x)
    values = random.choice([values, *(integers(*shape, seed=5, dtype=x.dtype) for shape in (x.shape, (x.size,)))])
    v, w = spread(random, mesh, values)
    np.putmask(t, given, v)
    np.putmask(x, mask, w)
    check(t, x)


def copyto(random, mesh, t, x):
    value = integers(*(1,) * random.choice([0, 1]), *broadcastable(random, x.shape), seed=random.randint(0, 9))
    v, w = spread(random, mesh, value)
    given, mask = spread(random, mesh, drawn(random, 0, 2, broadcastable(random, x.shape), "?"))
    np.copyto(t, v, "unsafe", where=given)
    np.copyto(x, w, "unsafe", where=mask)
    check(t, x)
    if len(x) > 1:
        try:
            np.copyto(t[1:], t[:-1])
        except ValueError as error:
            assert "had to move" in str(error)  # noqa: PT017 - which slices move is another test's subject
        else:
            np.copyto(x[1:], x[:-1])
        check(t, x)


# -- more or fewer elements -------------------------------------------------------------------------------------------


def edited(random, mesh, t, x):
    axis = axis_of(random, x)
    n = x.size if axis is None else x.shape[axis]
    number = drawn(random, -n, n, ()).item() if n else 0
    stretch = slice(*sorted(drawn(random, 0, n + 1, 2).tolist()), random.choice([None, 2]))
    several = spread(random, mesh, drawn(random, -n, n, random.randint(0, 5) if n else 0))
    mask = spread(random, mesh, drawn(random, 0, 2, n, "?"))
    objects = [(stretch, stretch), several, mask, *([(number, number)] * (n > 0))]
    for ours, theirs in random.sample(objects, 2):
        check(np.delete(t, ours, axis), np.delete(x, theirs, axis))
        after = np.insert(x, theirs, 0, axis).shape
        at = 0 if axis is None else axis % x.ndim
        count = after[at] - n
        wanted = list(x.shape) if axis is not None else [n]
        wanted[at] = random.choice([count, 1])
        values = integers(*wanted, seed=4, dtype=x.dtype)
        if np.ndim(theirs) == 0 and not isinstance(theirs, slice):
            values = np.moveaxis(values, at, 0)
        v, w = spread(random, mesh, random.choice([values, 3]))
        check(np.insert(t, ours, v, axis), np.insert(x, theirs, w, axis))
    y = integers(*x.shape, seed=8)
    v, w = spread(random, mesh, y)
    check(np.append(t, v, axis), np.append(x, w, axis))


FUNCTIONS = [
    take, take_along_axis, compress, repeat, nonzero, choose, flat_indices, put, masked, copyto, edited,
]  # fmt: skip


def program_of(function):
    """What calls a function of this module with tensors of random shapes."""

    def program(random, mesh):
        for number in range(5):
            shape = shape_of(random)
            t, x = tensor_of(random, mesh, shape, number, random.choice(["f8", "i2", "c16"]))
            function(random, mesh, t, x)

    return program


def errors(mesh, call, error, text=None):
    """All ranks raise the error, and the next call finds them together."""
    with pytest.raises(error, match=text):
        call()
    assert int(mc.ones(3, int, mc.Layout(["x"], mesh)).sum()) == 3
