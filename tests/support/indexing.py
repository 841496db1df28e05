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
        position = random.randint(0, len(items))
        items[position : position + random.randint(0, 2)] = [...]
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
        result, expected = t[index], x[index]
        check(result, expected)
        np.testing.assert_array_equal(result.to_numpy(), expected, strict=True)
        check(result + 1, expected + 1)
        target = layout_of(random, mesh, result.shape)
        check(mc.relayout(result, target), expected)


def assignments(random, mesh):
    """Numbers, arrays and tensors assigned to slices."""
    for number in range(40):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number, random.choice(["f8", "i2"]))
        index = random_index(random, shape)
        region_shape = x[index].shape
        value_shape = tuple(
            1 if random.random() < 0.2 else n for n in region_shape[random.randint(0, len(region_shape)) :]
        )
        value_shape = (1,) * random.choice([0, 0, 1]) + value_shape
        kind = random.randrange(3)
        if kind == 0:
            t[index], x[index] = 7, 7
        elif kind == 1:
            y = integers(*value_shape, seed=number)
            t[index], x[index] = y, y if region_shape else y.item()  # NumPy takes no array with axes for one element
        else:
            v, y = tensor_of(random, mesh, value_shape, number)
            t[index], x[index] = v, y if region_shape else y.item()
        check(t, x)


def overlaps(random, mesh):
    """Assignments from a tensor to itself."""
    for number in range(30):
        shape = shape_of(random)
        t, x = tensor_of(random, mesh, shape, number)
        n = shape[0]
        shift = random.randint(0, n)
        t[shift:] = t[: n - shift]
        x[shift:] = x[: n - shift].copy()
        check(t, x)
        t[: n - shift] = t[shift:]
        x[: n - shift] = x[shift:].copy()
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
        mask_shape = shape[: random.randint(1, len(shape))]
        mask_tensor, mask = tensor_of(random, mesh, mask_shape, number + 1)
        check(t[mask_tensor > 0], x[mask > 0])
        check(t[mask > 1], x[mask > 1])
        t[mask_tensor > 1] = -1
        x[mask > 1] = -1
        check(t, x)
        values = integers(*x[mask > 0].shape, seed=number)
        t[mask_tensor > 0] = values
        x[mask > 0] = values
        check(t, x)
        t[mask_tensor > 0] = t[mask_tensor > 0] * 2
        x[mask > 0] *= 2
        check(t, x)


def random_arrays(random, mesh, shape):
    """An index with arrays, as NumPy takes it, and the same with tensors for some of them."""
    common_shape = tuple(random.randint(0 if random.random() < 0.1 else 1, 6) for _ in range(random.randint(1, 2)))
    numpy_index, tensor_index, axis = [], [], 0
    while axis < len(shape):
        n, kind = shape[axis], random.random()
        if kind < 0.1:
            numpy_index.append(random.choice([None, True, False]))
            tensor_index.append(numpy_index[-1])
            continue
        if kind < 0.4:
            index = random_index(random, (n,), new=False)
            numpy_index.append(slice(None) if isinstance(index, tuple) or index is Ellipsis else index)
            tensor_index.append(numpy_index[-1])
            axis += 1
            continue
        if kind < 0.5:
            mask_ndim = random.randint(1, len(shape) - axis)
            mask = integers(*shape[axis : axis + mask_ndim], seed=random.randint(0, 99)) > 2
            array, axis = mask, axis + mask_ndim
        else:
            lengths = common_shape[random.randint(0, len(common_shape) - 1) :] if n else (0,)
            lengths = tuple(1 if random.random() < 0.2 else length for length in lengths)
            rng = np.random.default_rng(random.randint(0, 99))
            array = rng.integers(-n, max(n, 1), lengths) if n else np.zeros(lengths, int)
            array, axis = array.astype(random.choice(["i8", "i4", "u1", "i2"])) % max(n, 1), axis + 1
            if random.random() < 0.3:
                array = np.sort(array, axis=-1)
            if random.random() < 0.5:
                array = array.astype("i8") - n * (rng.random(lengths) < 0.3) * (n > 0)
        numpy_index.append(array)
        kind = random.random()
        if kind < 0.5:
            tensor_index.append(mc.distribute(array, layout_of(random, mesh, array.shape)))
        else:
            tensor_index.append(array.tolist() if kind < 0.7 and array.size and array.dtype != bool else array)
    if random.random() < 0.2 and len(numpy_index) > 1:
        numpy_index[-1:], tensor_index[-1:] = [...], [...]
    if len(numpy_index) == 1 and random.random() < 0.5:
        return numpy_index[0], tensor_index[0]
    return tuple(numpy_index), tuple(tensor_index)


def arrays(random, mesh):
    """Index arrays of all kinds: elements taken, assigned, and summed up."""
    for number in range(12):
        shape = shape_of(random) if number % 9 else ()
        dtype = random.choice(["f8", "i2", "c16", "f4"])
        t, x = tensor_of(random, mesh, shape, number, dtype)
        numpy_index, tensor_index = random_arrays(random, mesh, shape)
        try:
            expected = np.asarray(x[numpy_index])
        except IndexError:
            with pytest.raises(IndexError):
                t[tensor_index]
            continue
        check(t[tensor_index], expected)
        lengths = [
            n if random.random() < 0.7 else 1 for n in np.shape(expected)[random.randint(0, np.ndim(expected)) :]
        ]
        value = integers(*lengths, seed=number, dtype=dtype)
        kind, tensor_value = random.random(), value
        if kind < 0.4:
            tensor_value = mc.distribute(value, layout_of(random, mesh, value.shape))
        elif kind < 0.6:
            tensor_value = value = 3
        t[tensor_index] = tensor_value
        x[numpy_index] = value
        check(t, x)
        ufunc = random.choice([np.add, np.maximum, np.subtract])
        ufunc.at(t, tensor_index, tensor_value)
        # NumPy 2.4 reads beyond a shorter value.
        ufunc.at(x, numpy_index, np.broadcast_to(value, expected.shape).copy())
        check(t, x)
