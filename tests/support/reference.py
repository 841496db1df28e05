"""Oracles in plain NumPy for blocks and for results of collectives; and programs on simulated ranks."""

import inspect
from itertools import combinations, permutations, product
from math import prod

import numpy as np

import meshcomm as mc
from meshcomm import UNSHARDED, Layout, Mesh, simulate

# -- arrays -----------------------------------------------------------------------------------------------------------


def same_bits(a, b):
    """Return whether two arrays have the same shape, dtype and bytes: -0.0 is not 0.0, and a NaN is its payload."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def same_numbers(a, b):
    """As `same_bits`, but ignore bits that arithmetic does not define: NaN payloads and padding of long doubles."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.dtype.kind == "c":
        return same_numbers(a.real, b.real) and same_numbers(a.imag, b.imag)
    if a.dtype.kind == "V":  # of ml_dtypes
        a, b = a.astype("f4"), b.astype("f4")
    same_sign = np.signbit(a) == np.signbit(b) if a.dtype.kind == "f" else True
    return bool(np.all(((a == b) & same_sign) | ((a != a) & (b != b))))


def as_raw(array):
    """Return the array with elements of plain bytes, so that NumPy changes neither byte order nor padding."""
    return array.view(f"V{array.dtype.itemsize}")


def repeated(array, axis, times):
    """The array *times* times, one after the other along *axis*."""
    return np.concatenate([as_raw(array)] * times, axis).view(array.dtype)


def numbered(shape, dtype="i8"):
    """An array in which every element differs from all others, as far as the dtype allows."""
    return np.arange(prod(shape)).reshape(shape).astype(dtype)


def random_bits(shape, dtype, seed=0):
    """An array of random bits: any NaN, any padding. A bool has only two values that NumPy understands."""
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind == "U":  # not every number is a character
        return rng.integers(97, 123, (*shape, dtype.itemsize // 4), np.uint32).view(dtype).reshape(shape)
    data = rng.integers(0, 256, prod(shape) * dtype.itemsize, np.uint8)
    return np.ndarray(shape, dtype, data)


def random_numbers(shape, dtype, seed=0):
    """An array of numbers of many magnitudes, some of them not finite if the dtype allows that."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind in "biu":
        return random_bits(shape, dtype, seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    values = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), values)
    return (values * (1 + 2j) if dtype.kind == "c" else values).astype(dtype)


# -- the kernel -------------------------------------------------------------------------------------------------------


def items_of(offset, strides, extents):
    """Yield the offset of each item of a box, in row-major order."""
    for index in product(*(range(n) for n in extents)):
        yield offset + sum(i * stride for i, stride in zip(index, strides, strict=True))


def box_copies(sources, targets, itemsize, boxes):
    """The twin of `BoxCopies`: copy boxes (source, offset, strides, target, offset, strides, extents) item by item."""
    for source, source_offset, source_strides, target, target_offset, target_strides, extents in boxes:
        items = zip(
            items_of(source_offset, source_strides, extents),
            items_of(target_offset, target_strides, extents),
            strict=True,
        )
        for s, t in items:
            targets[target][t : t + itemsize] = sources[source][s : s + itemsize]


def packed(regions, itemsize, boxes, number=0, rounds=1):
    """The twin of `Packing`: the bytes of round *number* of boxes (region, offset, strides, extents)."""
    chunks = []
    for region, offset, strides, extents in boxes:
        for items in np.array_split(np.fromiter(items_of(offset, strides, extents), np.intp), rounds)[number:][:1]:
            chunks += [regions[region][s : s + itemsize] for s in items]
    return np.concatenate([np.empty(0, np.uint8), *chunks])


# -- relayout ---------------------------------------------------------------------------------------------------------


def mesh_of(*sizes, name=""):
    """A mesh of dimensions x, y, z of these sizes."""
    return Mesh(range(prod(sizes)), list(zip("xyzw", sizes, strict=False)), name)


def even_pieces(length, blocks):
    """The indices of each block along an axis that is cut evenly; test_partition.py checks it by another rule."""
    return np.array_split(np.arange(length), blocks)


def indices_along(names, length, number, blocks):
    """The indices of one block along an axis, by the definition of each kind of cut."""
    if isinstance(names, mc.Cuts):
        return np.arange(names.boundaries[number], names.boundaries[number + 1])
    if isinstance(names, mc.Cyclic):
        return np.flatnonzero((np.arange(length) // names.block + names.offset) % blocks == number)
    return even_pieces(length, blocks)[number]


def indices_of(layout, shape, device):
    """The indices along each axis that *device* holds."""
    sizes = dict(layout.mesh.dims)
    coordinates = dict(zip(sizes, np.unravel_index(device, tuple(sizes.values())), strict=True)) if sizes else {}
    indices = []
    for names, length in zip(layout.axes or [()] * len(shape), shape, strict=True):
        number, blocks = 0, 1
        for name in names:
            number, blocks = number * sizes[name] + int(coordinates[name]), blocks * sizes[name]
        indices.append(indices_along(names, length, number, blocks))
    return indices


def block_of(array, layout, device):
    """The block of one device, by its definition."""
    if not array.ndim:
        return array.copy()
    return as_raw(array)[np.ix_(*indices_of(layout, array.shape, device))].copy(order="C").view(array.dtype)


def blocks_of(array, layout):
    """The blocks of all devices."""
    return [block_of(array, layout, device) for device in range(layout.mesh.size)]


def elements_of(layout, shape, device):
    """The set of elements of an array that a device holds."""
    return set(block_of(numbered(shape), layout, device).ravel().tolist())


def single_name_layouts(mesh, rank):
    """Every layout of tensors of *rank* with at most one mesh dimension per axis."""
    names = mesh.dim_names
    for count in range(min(rank, len(names)) + 1):
        for axes in combinations(range(rank), count):
            for chosen_names in permutations(names, count):
                specs = [UNSHARDED] * rank
                for axis, name in zip(axes, chosen_names, strict=True):
                    specs[axis] = name
                yield Layout(specs, mesh)


def tuple_layouts(mesh, rank):
    """Every layout of tensors of *rank*, with any number of mesh dimensions per axis in any order."""
    names = mesh.dim_names
    for count in range(len(names) + 1):
        for chosen_names in permutations(names, count):
            for axes in product(range(rank), repeat=count):
                if list(axes) == sorted(axes):
                    yield Layout(
                        [tuple(n for n, a in zip(chosen_names, axes, strict=True) if a == i) for i in range(rank)],
                        mesh,
                    )


# -- programs ---------------------------------------------------------------------------------------------------------


def simulated(size, program, *args):
    """Return what ``program(rank, *args)`` returns on each rank of a simulated world."""
    with simulate(size) as world:
        return world.run(lambda: program(world.rank, *args))


def on_ranks(size, **makers):
    """Return a decorator that turns a program into a test, which *size* simulated ranks run.

    Each rank calls *makers* for the arguments of these names; the argument *rank* is its number. Other arguments are
    fixtures or parameters of pytest.
    """

    def decorated(program):
        arguments = inspect.signature(program).parameters.values()

        def test(**fixtures):
            def on_rank():
                rank_makers = {"rank": lambda: world.rank, **makers}
                program(
                    **fixtures,
                    **{
                        parameter.name: rank_makers[parameter.name]()
                        for parameter in arguments
                        if parameter.name in rank_makers
                    },
                )

            with simulate(size) as world:
                world.run(on_rank)

        test.__name__, test.__doc__ = program.__name__, program.__doc__
        test.__signature__ = inspect.Signature(
            [parameter for parameter in arguments if parameter.name not in {"rank", *makers}]
        )
        return test

    return decorated


# -- collectives on the arrays of all ranks ---------------------------------------------------------------------------


def _by_group(rows, of_group):
    """Return the results of all ranks; *of_group* returns the results of the members of a row."""
    results = {}
    for row in rows:
        results.update(zip(row, of_group(row), strict=True))
    return [results[rank] for rank in sorted(results)]


def all_to_all(xs, rows, concat, split, count):
    def of_group(row):
        blocks = [np.split(xs[rank], count, split) for rank in row]
        return [np.concatenate([blocks[i][j] for i in range(count)], concat) for j in range(count)]

    return _by_group(rows, of_group)


def all_gather(xs, rows, dimension):
    return _by_group(rows, lambda row: [np.concatenate([xs[rank] for rank in row], dimension)] * len(row))


def broadcast(xs, rows, root):
    return _by_group(rows, lambda row: [xs[row[root]]] * len(row))


def all_reduce(xs, rows, op):
    return _by_group(rows, lambda row: [reduced([xs[rank] for rank in row], op)] * len(row))


def reduce_scatter(xs, rows, dimension, op):
    return _by_group(rows, lambda row: np.split(reduced([xs[rank] for rank in row], op), len(row), dimension))


def collective_permute(xs, pairs):
    source_of = {target: source for source, target in pairs}
    return [xs[source_of[rank]] if rank in source_of else np.zeros_like(xs[rank]) for rank in range(len(xs))]


UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def reduced(arrays, op):
    """Reduce one array after the other, in the order of the group and in the dtype of the arrays."""
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            UFUNCS[op](total, array, out=total, casting="unsafe")
    return total
