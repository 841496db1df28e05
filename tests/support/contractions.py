"""Expressions of einsum over tensors in layouts of all kinds, random ones and those of opt_einsum, against NumPy.

For simulated and for real ranks. ``PYTHONPATH=tests python -m support.contractions 5000`` tries 5,000 in worlds of up
to 24 ranks and prints those that fail; ``... -m support.contractions 1 1234`` tries number 1234 again.
"""

import json
import re
import sys
import zlib
from math import prod
from random import Random
from string import ascii_lowercase, ascii_uppercase

import numpy as np
import pytest

import meshcomm as mc
from meshcomm import Layout
from meshcomm.core.layouts.specs import free_names
from support.paths import DATA
from support.reference import block_of
from support.tensors import check, layout_of, tensor_of

U = mc.UNSHARDED
LETTERS = ascii_uppercase + ascii_lowercase  # in the order in which NumPy sorts them, and numbers them
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "c8", "c16"]
LENGTHS = (1, 2, 2, 3, 3, 4, 5, 5, 6, 8, 11, 13)
MAX_PRODUCTS = 20_000  # the most products in one expression, so that NumPy's loops are fast
MESHES = [(1,), (2,), (3,), (2, 2), (4,), (2, 3), (2, 1, 2), (5,), (2, 2, 2), (3, 4), (2, 3, 4), (24,)]


# -- expressions ------------------------------------------------------------------------------------------------------


def random_expression(random):
    """Return the terms of a random expression, its output, and the shapes of its operands.

    A term is a list of letters and ``...``. An output of None is implicit.
    """
    while True:
        letters = random.sample(LETTERS, random.randint(1, 5))
        sizes = {letter: random.choice(LENGTHS) for letter in letters}
        extra = [random.choice(LENGTHS) for _ in range(random.choice([0, 0, 0, 1, 2]))]
        if random.random() < 0.06:
            sizes[letters[0]] = 0
        if prod(sizes.values()) * prod(extra) > MAX_PRODUCTS:
            continue
        terms, shapes = [], []
        for _ in range(random.choice([1, 2, 2, 2, 2, 3, 3, 4])):
            term = random.sample(letters, random.randint(0, min(3, len(letters))))
            if term and random.random() < 0.15:
                term.insert(random.randint(0, len(term)), random.choice(term))
            shape = [1 if random.random() < 0.06 else sizes[letter] for letter in term]
            if extra and random.random() < 0.8:
                position = random.randint(0, len(term))
                ellipsis_lengths = extra[random.randint(0, len(extra)) :]
                shape[position:position] = [1 if random.random() < 0.15 else n for n in ellipsis_lengths]
                term.insert(position, ...)
            terms.append(term)
            shapes.append(tuple(shape))
        used_letters = sorted({letter for term in terms for letter in term if letter is not ...})
        output = (
            random.sample(used_letters, random.randint(0, min(4, len(used_letters))))
            if random.random() < 0.7
            else None
        )
        if output is not None and any(... in term for term in terms):
            output.insert(random.randint(0, len(output)), ...)
        return terms, output, shapes


def values(random, shape, dtype, all_whole):
    """Return an array of *dtype*: any integers if *all_whole*, else numbers with small products."""
    rng, dtype = np.random.default_rng(random.getrandbits(32)), np.dtype(dtype)
    if dtype.kind in "biu":
        limits = (0, 1) if dtype.kind == "b" else (-2 * (dtype.kind == "i"), 2)
        if all_whole and dtype.kind != "b":
            limits = np.iinfo(dtype).min, np.iinfo(dtype).max
        return np.asarray(rng.integers(*limits, shape, np.int64, endpoint=True).astype(dtype))
    real, imaginary = (rng.choice([-1, 1], shape) * rng.uniform(0.25, 1, shape) for _ in range(2))
    return np.asarray(real + 1j * imaginary if dtype.kind == "c" else real).astype(dtype)


def operand_of(random, mesh, array, is_tensor):
    """Return an operand equal to *array*: a tensor or a view of one, or, unless *is_tensor*, an array or a number."""
    if not is_tensor and random.random() < 0.35:
        return array.item() if array.ndim == 0 and array.dtype.char in "?ldD" and random.random() < 0.7 else array
    order = random.sample(range(array.ndim), array.ndim) if random.random() < 0.3 else list(range(array.ndim))
    transposed = array.transpose(order)
    return mc.distribute(transposed, layout_of(random, mesh, transposed.shape)).transpose(np.argsort(order).tolist())


def written(random, terms, output):
    """Return a function from operands to the arguments of einsum, in one of the two forms of einsum."""
    if random.random() < 0.3:
        numbers = [[x if x is ... else LETTERS.index(x) for x in term] for term in [*terms, output or []]]
        output_numbers = [] if output is None else numbers[-1:]
        return lambda operands: [x for pair in zip(operands, numbers, strict=False) for x in pair] + output_numbers
    space = random.choice(["", "", " "])
    texts = [space.join("..." if x is ... else x for x in term) for term in [*terms, output or []]]
    text = f",{space}".join(texts[:-1]) + ("" if output is None else f"{space}->{space}{texts[-1]}")
    return lambda operands: [text, *operands]


# -- the law ----------------------------------------------------------------------------------------------------------


def contraction(number, mesh):
    """Compare expression *number* with NumPy: values, dtype, layout, and the bits of replicas and of a second run."""
    random = Random(number)
    terms, output, shapes = random_expression(random)
    dtypes = random.choices(DTYPES, k=len(terms)) if random.random() < 0.6 else random.choices(DTYPES) * len(terms)
    all_integers = np.result_type(*dtypes).kind in "biu"
    arrays = [values(random, *shape_and_dtype, all_integers) for shape_and_dtype in zip(shapes, dtypes, strict=True)]
    tensor_index = random.randrange(len(arrays))
    operands = [operand_of(random, mesh, array, index == tensor_index) for index, array in enumerate(arrays)]
    if len(arrays) > 1 and random.random() < 0.15:  # as in a.T @ a: one tensor twice
        second_index = (tensor_index + 1) % len(arrays)
        operands[second_index], arrays[second_index] = operands[tensor_index], arrays[tensor_index]
        terms[second_index] = random.sample(terms[tensor_index], len(terms[tensor_index]))
    arguments = written(random, terms, output)
    numpy_operands = [
        x if type(x) in (bool, int, float, complex) else a for x, a in zip(operands, arrays, strict=True)
    ]
    options = (
        {"dtype": np.result_type(*numpy_operands, random.choice(["f8", "c16", "i8"]))} if random.random() < 0.1 else {}
    )
    notes = [f"expression {number} on {mesh}: {arguments(list(map(text_of, operands)))} {options}"]
    try:
        compare_with_numpy(random, mesh, terms, output, operands, numpy_operands, arguments, options, notes)
    except Exception as error:
        error.add_note(", ".join(map(str, notes)))
        raise


def compare_with_numpy(random, mesh, terms, output, operands, numpy_operands, arguments, options, notes):
    """Compare an expression with NumPy; append to *notes* the texts that are needed to repeat it."""
    try:
        expected = np.einsum(*arguments(numpy_operands), **options)
    except ValueError:
        with pytest.raises(mc.ShapeError):
            mc.einsum(*arguments(operands), **options)
        return
    expected = np.asarray(expected, options.get("dtype"))  # a view has that of its operand
    call, layout = ways(random, mesh, arguments(operands), expected, options, notes)
    operand_bytes = [x.local.tobytes() if isinstance(x, mc.DTensor) and x.local is not None else b"" for x in operands]
    result = call()
    compare(
        result,
        expected,
        layout or default_layout(mesh, terms, output, operands, expected.shape),
        arguments,
        numpy_operands,
    )
    second_block = call().local
    assert second_block is None or second_block.tobytes() == result.local.tobytes(), "a second run has other bits"
    for x, bits in zip(operands, operand_bytes, strict=True):
        assert not bits or x.local.tobytes() == bits, "an operand has changed"


def text_of(x):
    if isinstance(x, mc.DTensor):
        return f"{x.dtype}{x.shape} {x.layout.sharding_specs}"
    return f"{x.dtype}{x.shape}" if isinstance(x, np.ndarray) else x


def ways(random, mesh, arguments, expected, options, notes):
    """Return a random call of einsum, and the layout that it asks for, or None.

    The call is NumPy's or ours, with or without out=, and may limit the scratch memory.
    """
    layout = layout_of(random, mesh, expected.shape) if random.random() < 0.4 else None
    notes.append(f"layout {layout and layout.sharding_specs}")
    if random.random() < 0.3:
        notes.append("by NumPy")
        if layout is not None:
            options = options | {"out": mc.zeros(expected.shape, expected.dtype, layout)}
        elif random.random() < 0.5:
            options = options | {"optimize": random.choice([True, False, "greedy", "optimal"])}
        return lambda: np.einsum(*arguments, **options), layout
    options = options | {"layout": layout}
    scratch = random.choice([None, None, None, 0, 1000])
    if scratch is not None:
        scratch = max(scratch, least_scratch(lambda: mc.einsum(*arguments, max_scratch_bytes=0, **options)))
    notes.append(f"scratch {scratch}")
    return lambda: mc.einsum(*arguments, max_scratch_bytes=scratch, **options), layout


def least_scratch(call):
    """Return the minimum of scratch bytes that an error names if *call* gets none; 0 if it needs none."""
    try:
        call()
    except mc.ShapeError as error:
        return int(re.search(r"minimum is ([\d,_]+) bytes", str(error))[1])
    return 0


def compare(result, expected, layout, arguments, numpy_operands):
    """Compare a result with NumPy's: integers exactly, others up to the rounding of sums in any order."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert result.layout == layout, f"{result.layout.sharding_specs} is not {layout.sharding_specs}"
    if result.local is None:
        return
    if expected.dtype.kind in "biu":
        error, allowed = np.asarray(result.local != block_of(expected, layout, result.mesh.rank)), 0
    else:
        wide_operands = [np.asarray(x).astype("c16" if np.iscomplexobj(x) else "f8") for x in numpy_operands]
        exact, sizes, counts = (
            np.asarray(np.einsum(*arguments([function(x) for x in wide_operands])))
            for function in (np.array, np.abs, np.ones_like)
        )
        rounding = np.finfo(expected.dtype).eps * (16 + 4 * np.sqrt(np.abs(counts)))
        error = np.abs(result.local - block_of(exact, layout, result.mesh.rank))
        allowed = block_of(sizes * rounding, layout, result.mesh.rank)
    assert np.all(error <= allowed), f"{result.local} is not {block_of(expected, layout, result.mesh.rank)}"
    same_on_replicas(result)


def same_on_replicas(tensor):
    """Check that devices with the same block hold the same bits."""
    mesh, digest = tensor.mesh, np.array([zlib.crc32(tensor.local.tobytes())])
    digests = mc.from_local(digest, Layout([tuple(mesh.dim_names)], mesh), (mesh.size,)).to_numpy()
    digest_of_block = {}
    for device, block_digest in enumerate(digests.tolist()):
        assert digest_of_block.setdefault(tensor.layout.block_numbers(device), block_digest) == block_digest, (
            "replicas differ"
        )


def default_layout(mesh, terms, output, operands, shape):
    """Return the layout of a result by its documented rule; diagonals are cut as those of numpy.diagonal.

    Each axis is cut as in the first operand that cuts it, by the mesh dimensions that are unused so far. Mesh
    dimensions that cut operands, but no axis of the result, then cut its longest axis that is not cut; if all axes are
    cut, they cut the axis with the longest blocks.
    """
    if output is None:
        letters = [x for term in terms for x in term if x is not ...]
        output = [...] * any(... in term for term in terms) + sorted(x for x in letters if letters.count(x) == 1)
    result_labels = labels(output, len(shape))
    cutting = [cuts_of(term, x) for term, x in zip(terms, operands, strict=True) if isinstance(x, mc.DTensor)]
    specs, used_dims = [], set()
    for label, length in zip(result_labels, shape, strict=True):
        free_dims = (free_names(cuts.get((label, length), ()), used_dims) for cuts in cutting)
        specs.append(next(filter(None, free_dims), ()))
        used_dims |= set(specs[-1])
    unused_dims = {name for cuts in cutting for names in cuts.values() for name in names} - used_dims
    unused_dims = tuple(name for name, size in mesh.dims if name in unused_dims and size > 1)
    blocks = [n / prod(mesh.dim_size(name) for name in names) for n, names in zip(shape, specs, strict=True)]
    candidate_axes = [axis for axis, names in enumerate(specs) if shape[axis] > 1 and type(names) is tuple]
    uncut = [axis for axis in candidate_axes if blocks[axis] == shape[axis]]
    if unused_dims and candidate_axes:
        axis = max(uncut or candidate_axes, key=blocks.__getitem__)
        specs[axis] = (*specs[axis], *unused_dims)
    return Layout(specs, mesh)


def cuts_of(term, tensor):
    """Return the specs of the axes of a tensor by (index, length): the length tells axes that are stretched from 1."""
    indices = labels(term, tensor.ndim)
    while repeated := next((i for i in indices if indices.count(i) > 1), None):
        first_axis, second_axis = [axis for axis, i in enumerate(indices) if i == repeated][:2]
        tensor = np.diagonal(tensor, 0, first_axis, second_axis)
        indices = [i for axis, i in enumerate(indices) if axis not in (first_axis, second_axis)] + [repeated]
    return dict(zip(zip(indices, tensor.shape, strict=True), tensor.layout.axes, strict=True))


def labels(term, ndim):
    """Return the indices of the axes of an operand: letters, and for the axes of an ellipsis numbers up to -1."""
    ellipsis_index = term.index(...) if ... in term else len(term)
    return [*term[:ellipsis_index], *range(len(term) - (... in term) - ndim, 0), *term[ellipsis_index + 1 :]]


# -- expressions of opt_einsum ----------------------------------------------------------------------------------------


def of_opt_einsum():
    """Return the expressions of opt_einsum's tests, and the size of each index."""
    recorded = json.loads((DATA / "opt_einsum.json").read_text("utf-8"))
    return [(text, recorded["sizes"]) for text in recorded["expressions"]] + recorded["random equations"]


def as_numpy(random, mesh, text, sizes):
    """Compare an expression of opt_einsum with NumPy. The operands have small integers, so results are equal."""
    dtype, terms = random.choice(["f8", "f8", "i8", "c16"]), text.partition("->")[0].split(",")
    shapes = [tuple(sizes[index] for index in term) for term in terms]
    pairs = [tensor_of(random, mesh, shape, seed, dtype) for seed, shape in enumerate(shapes)]
    tensors, arrays = zip(*pairs, strict=True)
    expected = np.asarray(np.einsum(text, *arrays, optimize=True))
    check(np.einsum(text, *tensors, optimize=random.choice([True, False])), expected)
    layout = layout_of(random, mesh, expected.shape)
    result = mc.einsum(text, *tensors, layout=layout)
    assert result.layout == layout
    check(result, expected)


# -- worlds -----------------------------------------------------------------------------------------------------------


def mesh_for(number, ranks=None):
    """Return the dimensions of the mesh for expression *number*, its devices, and the number of ranks of the world."""
    random = Random(f"mesh {number}")
    sizes = random.choice([mesh_sizes for mesh_sizes in MESHES if ranks is None or prod(mesh_sizes) <= ranks])
    outside_count = ranks - prod(sizes) if ranks is not None else random.random() < 0.1
    count = prod(sizes) + outside_count
    devices = random.sample(range(count), prod(sizes)) if random.random() < 0.3 else range(prod(sizes))
    return list(zip("xyz", sizes, strict=False)), list(devices), count


def in_a_world(number):
    """Run expression *number* on the simulated ranks of a mesh of its own."""
    dims, devices, ranks = mesh_for(number)
    with mc.simulate(ranks) as world:
        world.run(lambda: contraction(number, mc.create_mesh(dims, devices=devices)))


def main(count, first_number=0):
    """Run *count* expressions from number *first_number* on, and print those that fail."""
    failures = 0
    for number in range(int(first_number), int(first_number) + int(count)):
        try:
            in_a_world(number)
        except Exception as error:
            failures += 1
            print(repr(error)[:500], *getattr(error, "__notes__", []), sep="\n    ")
    print(f"{failures} of {count} failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
