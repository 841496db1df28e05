"""Oracles in plain NumPy, and a lockstep loop that runs what every device does, without threads and without MPI."""

import inspect
from itertools import combinations, permutations, product
from math import prod
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

import meshcomm as mc
from meshcomm import UNSHARDED, Layout, Machine, Mesh, simulate
from meshcomm.core.arrays.compile import operations, target_shape
from meshcomm.core.layouts.partition import Cut
from meshcomm.core.memory.blocks import as_block, as_bytes
from meshcomm.core.transport.choose import LocalCopy
from meshcomm.core.transport.packed import Packed

# -- arrays -----------------------------------------------------------------------------------------------------------


def same_bits(a, b):
    """Return whether two arrays have the same shape, dtype and bytes: -0.0 is not 0.0, and a NaN is its payload."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def same_numbers(a, b):
    """As `same_bits`, but no bits that arithmetic leaves open: those of a NaN, and the padding of a long double."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a.dtype.kind == "c":
        return same_numbers(a.real, b.real) and same_numbers(a.imag, b.imag)
    if a.dtype.kind == "V":  # of ml_dtypes
        a, b = a.astype("f4"), b.astype("f4")
    same_sign = np.signbit(a) == np.signbit(b) if a.dtype.kind == "f" else True
    return bool(np.all(((a == b) & same_sign) | ((a != a) & (b != b))))


def as_raw(array):
    """The array as plain bytes, of which NumPy changes neither the order nor the padding."""
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
    """An array of numbers of many sizes, some of them not finite if the dtype has such."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind in "biu":
        return random_bits(shape, dtype, seed)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    values = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), values)
    return (values * (1 + 2j) if dtype.kind == "c" else values).astype(dtype)


# -- the kernel -------------------------------------------------------------------------------------------------------


def items_of(offset, strides, extents):
    """Where the items of a box begin, in row-major order."""
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
    taken = []
    for region, offset, strides, extents in boxes:
        for items in np.array_split(np.fromiter(items_of(offset, strides, extents), np.intp), rounds)[number:][:1]:
            taken += [regions[region][s : s + itemsize] for s in items]
    return np.concatenate([np.empty(0, np.uint8), *taken])


# -- relayout ---------------------------------------------------------------------------------------------------------


def mesh_of(*sizes, name=""):
    """A mesh of dimensions x, y, z of these sizes."""
    return Mesh(range(prod(sizes)), list(zip("xyzw", sizes, strict=False)), name)


def indices_along(names, length, number, blocks):
    """The indices of one block along an axis, by the sentence that defines each kind of cut.

    Names alone cut as `Cut` does, which tests/layouts/test_partition.py compares with numpy.array_split, and changes.
    """
    if isinstance(names, mc.Cuts):
        return np.arange(names.boundaries[number], names.boundaries[number + 1])
    if isinstance(names, mc.Cyclic):
        return np.flatnonzero((np.arange(length) // names.block + names.offset) % blocks == number)
    return np.arange(*Cut(length, blocks).interval(number))


def indices_of(layout, shape, device):
    """The indices along each axis that *device* holds."""
    sizes = dict(layout.mesh.dims)
    at = dict(zip(sizes, np.unravel_index(device, tuple(sizes.values())), strict=True)) if sizes else {}
    found = []
    for names, length in zip(layout.axes or [()] * len(shape), shape, strict=True):
        number, blocks = 0, 1
        for name in names:
            number, blocks = number * sizes[name] + int(at[name]), blocks * sizes[name]
        found.append(indices_along(names, length, number, blocks))
    return found


def block_of(array, layout, device):
    """What one device holds, by the one sentence that defines it."""
    if not array.ndim:
        return array.copy()
    return as_raw(array)[np.ix_(*indices_of(layout, array.shape, device))].copy(order="C").view(array.dtype)


def blocks_of(array, layout):
    """What each device holds."""
    return [block_of(array, layout, device) for device in range(layout.mesh.size)]


def elements_of(layout, shape, device):
    """The set of elements of an array that a device holds."""
    return set(block_of(numbered(shape), layout, device).ravel().tolist())


class Run(NamedTuple):
    """What all devices hold after a plan, and what was counted on each one."""

    blocks: list
    bytes_moved: list
    messages: list
    peak_bytes: list
    scratch: list


def devices_on(mesh, ranks):
    """The device of each of *ranks* in *mesh*, None for one outside."""
    return [mesh.ranks.index(rank) if rank in mesh.ranks else None for rank in ranks]


def blocks_between(array, layout, plan):
    """What each device of *plan* holds in *layout*, None where it is outside of the mesh."""
    return [None if d is None else block_of(array, layout, d) for d in devices_on(layout.mesh, plan.ranks)]


def lockstep(plan, blocks):
    """Run *plan* over MPI on the blocks of all devices, step by step, and count what they receive and hold."""
    devices = range(len(plan.ranks))
    programs = [operations(plan, SimpleNamespace(device=d, rank_set=_RankSet())) for d in devices]
    data = begin = [np.empty(0, np.uint8) if block is None else as_bytes(block) for block in blocks]
    moved, messages, peaks, scratch = ([0 for _ in devices] for _ in range(4))
    for number, made in enumerate(zip(*programs, strict=True)):
        steps = [over_mpi(operation) for operation, _ in made]
        targets = [np.full(size, 0xEE, np.uint8) for _, size in made]
        if isinstance(steps[0], LocalCopy):
            for step, block, target in zip(steps, data, targets, strict=True):
                step.run([block], [target])
        else:
            members = [[plan.ranks.index(rank) for rank in operation._group.members] for operation, _ in made]
            _exchange(steps, members, data, targets, moved, messages)
        last = number == len(programs[0]) - 1
        for d, step in enumerate(steps):
            held = len(data[d]) if number else 0  # the first step takes from the block that the caller keeps
            used = held + (0 if isinstance(step, LocalCopy) else step.scratch_bytes)
            peaks[d] = max(peaks[d], len(begin[d]) + used + len(targets[d]))
            scratch[d] = max(scratch[d], used + (0 if last else len(targets[d])))
        data = targets
    shapes = [target_shape(plan, d) for d in devices]
    ends = [None if s is None else as_block(d, s, plan.dtype) for d, s in zip(data, shapes, strict=True)]
    return Run(ends, moved, messages, peaks, scratch)


def over_mpi(operation):
    """The form over MPI of an exchange whose way is chosen when it runs."""
    return operation if isinstance(operation, LocalCopy) else operation._over_mpi()


def _exchange(steps, members, data, targets, moved, messages):
    """Run one exchange of all devices; *members* are the devices of the group of each."""
    pairs = set()
    rounds = steps[0].rounds
    for number in range(rounds):
        sent, outgoing = [], [step.send.counts(number, rounds) for step in steps]
        for step, block in zip(steps, data, strict=True):
            if step.send.packing is not None:
                buffer = np.full(step.send.buffer_bytes(rounds), 0xDD, np.uint8)
                step.send.packing.pack([block], buffer, number, rounds)
                block = buffer
            sent.append(block)
        for device, step in enumerate(steps):
            packing, into = step.receive.packing, targets[device]
            if packing is not None:
                into = np.full(step.receive.buffer_bytes(rounds), 0xCC, np.uint8)
            me = members[device].index(device)
            counts, offsets = step.receive.counts(number, rounds)
            for position, peer in enumerate(members[device]):
                its_counts, its_offsets = outgoing[peer]
                to = me if isinstance(step, Packed) else position  # a gather sends the same to all
                count = counts[position]
                assert its_counts[to] == count, (
                    f"device {peer} sends {its_counts[to]} bytes, device {device} expects {count}"
                )
                if not count:
                    continue
                into[offsets[position] : offsets[position] + count] = sent[peer][its_offsets[to] :][:count]
                if peer != device:
                    moved[device] += count
                    pairs.add((peer, device))
            if packing is not None:
                packing.unpack(into, [targets[device]], number, rounds)
    for step, block, target in zip(steps, data, targets, strict=True):
        for copies in step.own if isinstance(step, Packed) else ():
            copies.run([block], [target])
    for _, device in pairs:
        messages[device] += 1


class _RankSet:
    """A rank set of which only the groups are needed."""

    large_counts = oversubscribed = True
    machine = Machine()
    world = SimpleNamespace(takes_turns=True)

    def group(self, key, color, members):
        return SimpleNamespace(members=members, rank_set=self)


def single_name_layouts(mesh, rank):
    """Every layout of tensors of *rank* with at most one mesh dimension per axis."""
    names = mesh.dim_names
    for count in range(min(rank, len(names)) + 1):
        for axes in combinations(range(rank), count):
            for used in permutations(names, count):
                specs = [UNSHARDED] * rank
                for axis, name in zip(axes, used, strict=True):
                    specs[axis] = name
                yield Layout(specs, mesh)


def tuple_layouts(mesh, rank):
    """Every layout of tensors of *rank*, with any number of mesh dimensions per axis in any order."""
    names = mesh.dim_names
    for count in range(len(names) + 1):
        for used in permutations(names, count):
            for axes in product(range(rank), repeat=count):
                if list(axes) == sorted(axes):
                    yield Layout(
                        [tuple(n for n, a in zip(used, axes, strict=True) if a == i) for i in range(rank)], mesh
                    )


# -- programs ---------------------------------------------------------------------------------------------------------


def simulated(size, program, *args):
    """Return what ``program(rank, *args)`` returns on each rank of a simulated world."""
    with simulate(size) as world:
        return world.run(lambda: program(world.rank, *args))


def on_ranks(size, **made):
    """Return a decorator for a program: it becomes a test that so many simulated ranks run.

    Each rank makes the arguments *made* by these functions; *rank* is its number. Others are fixtures or parameters.
    """

    def decorated(program):
        arguments = inspect.signature(program).parameters.values()

        def test(**given):
            def on_rank():
                own = {"rank": lambda: world.rank, **made}
                program(**given, **{each.name: own[each.name]() for each in arguments if each.name in own})

            with simulate(size) as world:
                world.run(on_rank)

        test.__name__, test.__doc__ = program.__name__, program.__doc__
        test.__signature__ = inspect.Signature([each for each in arguments if each.name not in {"rank", *made}])
        return test

    return decorated


# -- collectives on the arrays of all ranks ---------------------------------------------------------------------------


def _by_group(rows, of_group):
    """Return the result of every rank, where *of_group* says those of the members of a row."""
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
    """The reduction one array after the other, in the order of the group and in the dtype of the arrays."""
    total = arrays[0].copy()
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            UFUNCS[op](total, array, out=total, casting="unsafe")
    return total
