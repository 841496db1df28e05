"""Programs that index tensors in layouts of all kinds, and compare with NumPy: for simulated and for real ranks."""

import numpy as np
import pytest

import meshcomm as mc
from support.tensors import check, integers, layout_of, shape_of, tensor_of


def random_index(random, shape, negative=True, new=True):
    """A basic index of any kind."""
    items = []
    for n in shape:
        kind = random.random()
        if kind < 0.2 and n:
            items.append(random.randrange(-n, n))
        elif kind < 0.4:
            items.append(slice(None))
        else:
            step = random.choice([1, 1, 1, 2, 3, None, n + 1])
            if negative and random.random() < 0.2:
                step = -(step or 1)
            ends = [random.choice([None, random.randint(-n - 2, n + 2)]) for _ in range(2)]
            items.append(slice(*ends, step))
    if random.random() < 0.3:
        at = random.randint(0, len(items))
        items[at : at + random.randint(0, 2)] = [...]
    elif items and random.random() < 0.3:
        items.pop()
    if new:
        for _ in range(random.choice([0, 0, 0, 1, 2])):
            items.insert(random.randint(0, len(items)), None)
    return items[0] if len(items) == 1 else tuple(items)


def slices(random, mesh):
    """Slices, what is computed from them, and their relayouts."""
    for number in range(40):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number, random.choice(["f8", "i2", "c16"]))
        index = random_index(random, shape)
        found, expected = t[index], x[index]
        check(found, expected)
        np.testing.assert_array_equal(found.to_numpy(), expected, strict=True)
        check(found + 1, expected + 1)
        target = layout_of(random, mesh, found.shape)
        check(mc.relayout(found, target), expected)


def assignments(random, mesh):
    """Numbers, arrays and tensors assigned to slices."""
    for number in range(40):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number, random.choice(["f8", "i2"]))
        index = random_index(random, shape)
        region = x[index].shape
        value = tuple(1 if random.random() < 0.2 else n for n in region[random.randint(0, len(region)) :])
        value = (1,) * random.choice([0, 0, 1]) + value
        kind = random.randrange(3)
        if kind == 0:
            t[index], x[index] = 7, 7
        elif kind == 1:
            y = integers(*value, seed=number)
            t[index], x[index] = y, y if region else y.item()  # NumPy takes no array with axes for one element
        else:
            v, y = tensor_of(random, mesh, value, number)
            t[index], x[index] = v, y if region else y.item()
        check(t, x)


def overlaps(random, mesh):
    """Assignments from a tensor to itself."""
    for number in range(30):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number)
        n = shape[0]
        by = random.randint(0, n)
        t[by:] = t[: n - by]
        x[by:] = x[: n - by].copy()
        check(t, x)
        t[: n - by] = t[by:]
        x[: n - by] = x[by:].copy()
        check(t, x)
        t[::-1] = t
        x[::-1] = x.copy()
        check(t, x)
        index = random_index(random, shape, new=False)
        t[index] += 1
        x[index] += 1
        check(t, x)


def masks(random, mesh):
    """Elements chosen by masks, and assignments to them."""
    for number in range(20):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number)
        some = shape[: random.randint(1, len(shape))]
        m, mask = tensor_of(random, mesh, some, number + 1)
        check(t[m > 0], x[mask > 0])
        check(t[mask > 1], x[mask > 1])
        t[m > 1] = -1
        x[mask > 1] = -1
        check(t, x)
        values = integers(*x[mask > 0].shape, seed=number)
        t[m > 0] = values
        x[mask > 0] = values
        check(t, x)
        t[m > 0] = t[m > 0] * 2
        x[mask > 0] *= 2
        check(t, x)


def random_arrays(random, mesh, shape):
    """An index with arrays, as NumPy takes it, and the same with tensors for some of them."""
    common = tuple(random.randint(0 if random.random() < 0.1 else 1, 6) for _ in range(random.randint(1, 2)))
    plain, ours, axis = [], [], 0
    while axis < len(shape):
        n, kind = shape[axis], random.random()
        if kind < 0.1:
            plain.append(random.choice([None, True, False]))
            ours.append(plain[-1])
            continue
        if kind < 0.4:
            index = random_index(random, (n,), new=False)
            plain.append(slice(None) if isinstance(index, tuple) or index is Ellipsis else index)
            ours.append(plain[-1])
            axis += 1
            continue
        if kind < 0.5:
            number = random.randint(1, len(shape) - axis)
            mask = integers(*shape[axis : axis + number], seed=random.randint(0, 99)) > 2
            array, axis = mask, axis + number
        else:
            lengths = common[random.randint(0, len(common) - 1) :] if n else (0,)
            lengths = tuple(1 if random.random() < 0.2 else length for length in lengths)
            seed = np.random.default_rng(random.randint(0, 99))
            array = seed.integers(-n, max(n, 1), lengths) if n else np.zeros(lengths, int)
            array, axis = array.astype(random.choice(["i8", "i4", "u1", "i2"])) % max(n, 1), axis + 1
            if random.random() < 0.3:
                array = np.sort(array, axis=-1)
            if random.random() < 0.5:
                array = array.astype("i8") - n * (seed.random(lengths) < 0.3) * (n > 0)
        plain.append(array)
        kind = random.random()
        if kind < 0.5:
            ours.append(mc.distribute(array, layout_of(random, mesh, array.shape)))
        else:
            ours.append(array.tolist() if kind < 0.7 and array.size and array.dtype != bool else array)
    if random.random() < 0.2 and len(plain) > 1:
        plain[-1:], ours[-1:] = [...], [...]
    if len(plain) == 1 and random.random() < 0.5:
        return plain[0], ours[0]
    return tuple(plain), tuple(ours)


def arrays(random, mesh):
    """Index arrays of all kinds: elements taken, assigned, and summed up."""
    for number in range(12):
        shape = shape_of(random) if number % 9 else ()
        dtype = random.choice(["f8", "i2", "c16", "f4"])
        t, x = tensor_of(random, mesh, shape, number, dtype)
        plain, ours = random_arrays(random, mesh, shape)
        try:
            expected = np.asarray(x[plain])
        except IndexError:
            with pytest.raises(IndexError):
                t[ours]
            continue
        check(t[ours], expected)
        lengths = [
            n if random.random() < 0.7 else 1 for n in np.shape(expected)[random.randint(0, np.ndim(expected)) :]
        ]
        value = integers(*lengths, seed=number, dtype=dtype)
        kind, given = random.random(), value
        if kind < 0.4:
            given = mc.distribute(value, layout_of(random, mesh, value.shape))
        elif kind < 0.6:
            given = value = 3
        t[ours] = given
        x[plain] = value
        check(t, x)
        ufunc = random.choice([np.add, np.maximum, np.subtract])
        ufunc.at(t, ours, given)
        ufunc.at(x, plain, np.broadcast_to(value, expected.shape).copy())  # NumPy 2.4 reads beyond a shorter value
        check(t, x)
