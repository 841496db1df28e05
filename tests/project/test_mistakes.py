"""Mistakes that people make by nature meet an answer that says what to do.

Each row is what a user writes in a program of four ranks, the class of the error, and words that its message has.
The names are those of `program`. No message has the elements of a tensor in it.
"""

import builtins
import copy
import importlib
import json
import math
import pickle
import sys
from typing import NamedTuple

import numpy as np
import pytest

import meshcomm as mc


class Mistake(NamedTuple):
    """What a user writes, the name of the class of the error, and the words that its message has."""

    name: str
    written: str
    error: str
    words: tuple[str, ...]


def mistake(name, written, error, *words):
    return Mistake(name, written, error, words)


TABLE = [
    # -- misspelt names
    mistake("a misspelt mesh dimension", 'mesh["rwos"]', "MeshError", "did you mean 'rows'?"),
    mistake("one in dim_size", 'mesh.dim_size("colums")', "MeshError", "did you mean 'columns'?"),
    mistake("one in a layout", 'mc.Layout(["rwos", U], mesh)', "LayoutError", "did you mean 'rows'?", "Axis 0"),
    mistake("one in groups_along", 'mesh.groups_along("row")', "MeshError", "did you mean 'rows'?"),
    mistake("one in a list for relayout", 't.relayout([U, "colmns"])', "LayoutError", "did you mean 'columns'?"),
    mistake(
        "a misspelt UNSHARDED", 'mc.Layout(["rows", "unshared"], mesh)', "LayoutError", "did you mean 'unsharded'?"
    ),
    mistake("a misspelt operation", 'mc.all_reduce(array, None, op="summ")', "DTypeError", "did you mean 'sum'?"),
    mistake("a misspelt attribute", "t.locla", "AttributeError", "did you mean 'local'?"),
    mistake("a misspelt method", "t.relayuot(rows)", "AttributeError", "did you mean 'relayout'?"),
    mistake("a misspelt function", "mc.relyout(t, rows)", "AttributeError", "did you mean 'relayout'?"),
    mistake("a misspelt class", "mc.Layuot", "AttributeError", "did you mean 'Layout'?"),
    mistake("one of mc.fft", "mc.fft.ffft", "AttributeError", "module 'meshcomm.fft'", "did you mean 'fft'?"),
    mistake("one of mc.ndimage", "mc.ndimage.gausian_filter", "AttributeError", "did you mean 'gaussian_filter'?"),
    mistake("one of mc.gradients", "mc.gradients.sum_vpj", "AttributeError", "did you mean 'sum_vjp'?"),
    mistake("one of mc.array_api", "mc.array_api.arrange", "AttributeError", "did you mean 'arange'?"),
    mistake("one of logical_devices", "mc.logical_devices.Topolgy", "AttributeError", "did you mean 'Topology'?"),
    mistake("one of mc.linalg", "mc.linalg.scalapak", "AttributeError", "did you mean 'scalapack'?"),
    mistake("one of ScaLAPACK", "mc.linalg.scalapack.cholesy", "AttributeError", "did you mean 'cholesky'?"),
    mistake(
        "a misspelt name in a LayoutMap",
        "with_rules(['kernel'])._layout_of_variable('kernle', 2)",
        "LayoutError",
        "did you mean 'kernel'?",
    ),
    # -- names of other libraries
    mistake("of TensorFlow's eager tensors", "t.numpy()", "AttributeError", "t.to_numpy()", "Collective"),
    mistake("of NumPy", "t.setflags(write=False)", "AttributeError", "t.flags", "t.copy()"),
    mistake("of mpi4py", "t.gather()", "AttributeError", "t.to_numpy(root=0)"),
    mistake("of PyTorch", "t.redistribute(rows)", "AttributeError", "t.relayout(layout)"),
    mistake("of PyTorch: the library", "mc.torch", "AttributeError", "import meshcomm.torch", "PyTorch"),
    mistake("of PyTorch: the whole", "t.full_tensor()", "AttributeError", "t.to_numpy()"),
    mistake("of PyTorch: the block", "t.to_local()", "AttributeError", "t.local"),
    mistake("of PyTorch: the layout", "t.placements", "AttributeError", "t.layout"),
    mistake("of Dask", "t.rechunk((2, 2))", "AttributeError", "t.relayout(layout)"),
    mistake("of Dask: laziness", "t.compute()", "AttributeError", "nothing is lazy"),
    mistake("of JAX", "t.reshard(rows)", "AttributeError", "t.relayout(layout)"),
    mistake("of JAX: the layout", "t.sharding", "AttributeError", "t.layout"),
    mistake("of JAX: the blocks", "t.addressable_shards", "AttributeError", "t.local", "t.slices"),
    mistake("of NumPy: the memory", "t.data", "AttributeError", "t.local"),
    mistake("the package: gather", "mc.gather(t)", "AttributeError", "t.to_numpy(root=0)", "mc.all_gather"),
    mistake("the package: redistribute", "mc.redistribute(t, rows)", "AttributeError", "mc.relayout(t, layout)"),
    mistake("the package: shard", "mc.shard(array)", "AttributeError", "mc.distribute(array, layout)"),
    mistake("the package: array", "mc.array([1, 2])", "AttributeError", "mc.distribute(array, layout)"),
    mistake("a mesh as groups", "mc.all_reduce(array, mesh)", "GroupError", "mesh.groups_along("),
    mistake("the package: allreduce", "mc.allreduce(array)", "AttributeError", "mc.all_reduce"),
    mistake("the package: a function of NumPy", "mc.sum(t)", "AttributeError", "numpy.sum(t)"),
    mistake("from meshcomm import", "exec('from meshcomm import redistribute')", "ImportError", "redistribute"),
    # -- arguments of the wrong kind, or in the wrong order
    mistake(
        "dtype forgotten", "mc.zeros((4, 4), rows)", "DTypeError", "dtype comes before the layout", "layout=layout"
    ),
    mistake("dtype forgotten in full", "mc.full((4, 4), 1, rows)", "DTypeError", "dtype comes before the layout"),
    mistake(
        "a list as a layout",
        'mc.distribute(array, ["rows", U])',
        "LayoutError",
        "mc.Layout(['rows', 'unsharded'], mesh)",
    ),
    mistake(
        "a list as a layout of zeros", 'mc.zeros((4,), "f4", ["rows"])', "LayoutError", "mc.Layout(['rows'], mesh)"
    ),
    mistake("a mesh as a layout", "mc.distribute(array, mesh)", "LayoutError", "mc.Layout(specs, mesh)"),
    mistake("a mesh to relayout to", "mc.relayout(t, mesh)", "LayoutError", "mc.Layout(specs, mesh)"),
    mistake("a tensor to relayout to", "mc.relayout(t, u)", "LayoutError", "pass its .layout"),
    mistake("a layout for relayout_like", "mc.relayout_like(t, columns)", "LayoutError", "relayout takes a Layout"),
    mistake(
        "a plain array with specs",
        'mc.relayout(array, ["rows", U])',
        "LayoutError",
        "mc.Layout(['rows', 'unsharded'], mesh)",
    ),
    mistake(
        "too few specs for relayout",
        't.relayout(["rows"])',
        "LayoutError",
        "has 2 axes",
        "such as ['rows', UNSHARDED]",
    ),
    mistake("too many specs", "mc.zeros((4,), 'f4', rows)", "LayoutError", "has 1 axis,", "such as ['rows']"),
    mistake(
        "a shape for a seed", "mc.random_normal((4, 4), rows)", "ShapeError", "random_normal", "(seed) makes an init"
    ),
    mistake("a shape for a mean", "mc.random_normal(0, (4, 4))", "ShapeError", "mean is a number", "mc.Variable("),
    mistake("a layout for low", "mc.random_uniform(0, rows)", "ShapeError", "low is a number"),
    mistake("distribute: swapped", "mc.distribute(rows, array)", "LayoutError", "the array comes first"),
    mistake("relayout: swapped", "mc.relayout(rows, t)", "LayoutError", "pass its .layout"),
    mistake("distribute a tensor", "mc.distribute(t, rows)", "DTypeError", "use relayout"),
    mistake("Layout: swapped", 'mc.Layout(mesh, ["rows", U])', "LayoutError", "specs first, then the mesh"),
    mistake("Layout: a str", 'mc.Layout("rows", mesh)', "LayoutError", "must be a list", "['rows']"),
    mistake("Layout: a layout as specs", "mc.Layout(rows, mesh)", "LayoutError", "must be a list"),
    mistake("Layout: twice", 'mc.Layout(["rows", "rows"], mesh)', "LayoutError", "Mesh dimensions must be unique"),
    mistake("Layout: None for UNSHARDED", 'mc.Layout(["rows", None], mesh)', "LayoutError", "UNSHARDED", "axis 1"),
    mistake("Layout: no mesh", 'mc.Layout(["rows"], 4)', "LayoutError", "not a valid Mesh"),
    mistake("create_mesh of a name", 'mc.create_mesh("x")', "MeshError", "pair (name, size)", "[('x', 4)]"),
    mistake("create_mesh of names", 'mc.create_mesh(["x", "y"])', "MeshError", "pair (name, size)"),
    mistake("create_mesh of a number", "mc.create_mesh(4)", "MeshError", "pairs of a name and a size"),
    mistake("Cuts of lengths", 'mc.Cuts("rows", [2, 2])', "LayoutError", "sizes="),
    mistake("an array for a shape", "rows.block_slices(array)", "ShapeError", "pass .shape"),
    mistake("save: swapped", 'mc.save(t, "f.npy")', "TypeError", "mc.save(path, tensors)", "not DTensor of (6, 4)"),
    mistake("start_save: swapped", 'mc.start_save(t, "f.npy")', "TypeError", "mc.save(path, tensors)"),
    mistake("load: swapped", 'mc.load(rows, "f.npy")', "TypeError", "mc.load(path, layout)"),
    mistake("open a tensor", "mc.open(t)", "TypeError", "mc.open(path)"),
    mistake("Checkpoints of a tensor", "mc.Checkpoints(t)", "TypeError", "mc.Checkpoints(folder)"),
    mistake("a trace to a number", "mc.trace(3)", "TypeError", "mc.trace(path)"),
    mistake("default_mesh of a name", 'mc.default_mesh("x")', "MeshError", "'x'", "create_mesh([('x', -1)])"),
    mistake("default_mesh of a layout", "mc.default_mesh(rows)", "MeshError", "pass its .mesh"),
    mistake("default_mesh of a tensor", "mc.default_mesh(t)", "MeshError", "pass its .mesh"),
    mistake("a misspelt argument of a method", "t.sum(axsi=0)", "TypeError", "DTensor.sum()", "'axsi'"),
    mistake("one of the standard's methods", "t.to_device(mesh, steram=1)", "TypeError", "DTensor.to_device()"),
    mistake("show a tensor", "mc.show(t)", "LayoutError", "pass its .layout and its .shape"),
    mistake("None as an array", "mc.all_reduce(None, None)", "DTypeError", "None, not an array", "t.local is None"),
    mistake("coords of no device", "mesh.coords(None)", "MeshError", "mesh.rank", "outside of the mesh"),
    mistake(
        "more than memory",
        "mc.zeros((2**26, 2**23), float, rows)",
        "MemoryError",
        *("(67108864, 8388608)", "float64", "[rows, unsharded]", "2.0 PiB", "block (33554432, 8388608)"),
    ),
    mistake("a barrier on a layout", "mc.barrier(rows)", "MeshError", "a barrier is on a Mesh"),
    # -- a tensor is no plain array
    mistake("== None", "t == None", "TypeError", "t is None"),
    mistake("if t == u", "bool(t == u)", "TypeError", "t.all()", "numpy.array_equal"),
    mistake("if t", "bool(t)", "TypeError", "t.any()"),
    mistake(
        "if of a sharded element",
        "bool(mc.distribute(array[:1, 0], one))",
        "LayoutError",
        "t.to_numpy()",
        "not every rank",
    ),
    mistake("float", "float(t)", "ShapeError", "24 elements"),
    mistake("math", "math.sqrt(t)", "ShapeError", "24 elements"),
    mistake("round", "round(t)", "ShapeError", "24 elements"),
    mistake("a format of many", "f'{t:.2f}'", "ShapeError", "24 elements"),
    mistake("None in t", "None in t", "TypeError", "t is None"),
    mistake("a loop", "[x for x in mc.empty((2**24, 5), 'i1', rows)]", "TypeError", "t.local", "t.to_numpy()"),
    mistake("len of a number", "len(t.sum())", "TypeError", "no length"),
    mistake("np.asarray", "np.asarray(mc.empty((2**24, 5), 'i1', rows))", "TypeError", "t.local", "t.to_numpy()"),
    mistake("np.array", "np.array(mc.empty((2**24, 5), 'i1', rows))", "TypeError", "t.local", "t.to_numpy()"),
    mistake("a new shape", "setattr(t, 'shape', (5, 5))", "ShapeError", "as many elements"),
    mistake("another block", "setattr(t, 'local', array)", "AttributeError", "t.local[...] = block"),
    mistake("another layout", "setattr(t, 'layout', columns)", "AttributeError", "t.relayout(layout)"),
    mistake("a new attribute", "setattr(t, 'name', 'a')", "AttributeError", "cannot be given another name"),
    mistake("pickle", "pickle.dumps(t)", "TypeError", "t.local", "t.to_numpy()"),
    mistake("JSON", "json.dumps({'t': t})", "TypeError", "t.to_numpy().tolist()"),
    mistake("a key", "{t: 1}", "TypeError", "unhashable"),
    mistake("a text", "t + 'a'", "TypeError", "'add' did not contain a loop"),
    mistake("something else", "t * object()", "TypeError", "numpy.multiply", "not object"),
    mistake("shapes", "t + array[:3]", "ShapeError", "(6, 4)", "(3, 4)"),
    mistake("two meshes", "t + on_other", "MeshError", "on one mesh", "rows=2, columns=2", "x=4"),
    mistake(
        "a function of NumPy by its full name",
        "__import__('numpy.lib.recfunctions', fromlist=['_']).structured_to_unstructured(t)",
        "TypeError",
        "numpy.lib.recfunctions.structured_to_unstructured",
        "t.to_numpy()",
    ),
    mistake("another", "np.savetxt('t', t)", "TypeError", "numpy.savetxt", "mc.save(path, t)"),
    mistake(
        "a plan for another tensor",
        "mc.plan_relayout((3, 3), 'f8', rows, columns).execute(t)",
        "LayoutError",
        "(6, 4)",
    ),
    # -- Fourier transforms are called by the name that the user writes
    mistake("complex numbers for rfft", "mc.fft.rfft(t * 1j)", "DTypeError", "rfft transforms real", "use fft"),
    mistake("for rfft2", "mc.fft.rfft2(t * 1j)", "DTypeError", "rfft2 transforms real", "use fft2"),
    mistake("for numpy.fft.rfft", "np.fft.rfft(t * 1j)", "DTypeError", "rfft transforms real", "use fft"),
    mistake("for a plan", "mc.fft.plan(8, 'c16', one, kind='rfft')", "DTypeError", "rfft transforms real", "use fft"),
    mistake("dates for fft", "mc.fft.fft(t.astype('M8[s]'))", "DTypeError", "fft transforms numbers"),
    mistake("no axes", "mc.fft.irfft2(t, axes=())", "ShapeError", "transformed by irfft2"),
    mistake("a type of dct", "mc.fft.dct(t, 7)", "ShapeError", "of dct,"),
    mistake("an array for fft2", "mc.fft.fft2(array)", "LayoutError", "fft.fft2 is for DTensors"),
    mistake("a mesh in a loop", "[dim for dim in mesh]", "TypeError", "mesh.dim_names"),
    mistake("the length of a mesh", "len(mesh)", "TypeError", "len()"),
]


def with_rules(names):
    """Return a map without a mesh, with rules of these names."""
    rules = mc.LayoutMap()
    rules.update({name: mc.Layout([], mc.Mesh(range(4), {"x": 4})) for name in names})
    return rules


def program(written):
    """Return the error that what is *written* raises on this rank."""
    mesh = mc.create_mesh([("rows", 2), ("columns", 2)])
    other = mc.create_mesh([("x", 4)])
    array = np.arange(24.0).reshape(6, 4) + 0.125
    rows, columns = mc.Layout(["rows", mc.UNSHARDED], mesh), mc.Layout([mc.UNSHARDED, "columns"], mesh)
    names = {"mesh": mesh, "rows": rows, "columns": columns, "array": array, "U": mc.UNSHARDED}
    names |= {"t": mc.distribute(array, rows), "u": mc.distribute(array, columns), "one": mc.Layout(["rows"], mesh)}
    names |= {"on_other": mc.distribute(array, mc.Layout(["x", mc.UNSHARDED], other)), "with_rules": with_rules}
    names |= {"mc": mc, "np": np, "math": math, "pickle": pickle, "json": json}
    try:
        eval(written, names)
    except Exception as error:
        return error
    return None


def test_a_mistake_meets_a_good_answer():
    found = []
    for row in TABLE:
        expected = getattr(mc, row.error, None) or getattr(builtins, row.error)
        with mc.simulate(4) as world:
            errors = world.run(program, row.written)
        for error in errors:
            message = str(error)
            right = isinstance(error, expected) and all(words in message for words in row.words)
            if not right or ".125" in message or len(message) >= 500:  # .125: an element
                found.append(f"{row.name}: {error!r}")
    assert not found, "\n".join(found)


def test_the_table_is_long_and_each_mistake_is_one():
    assert len(TABLE) >= 80
    assert len({row.written for row in TABLE}) == len({row.name for row in TABLE}) == len(TABLE)


def test_what_is_missing_is_missing_for_those_who_probe():
    t = mc.zeros((4,), "f4", mc.Layout(["x"], mc.Mesh(range(1), {"x": 1})))
    for name in (
        "numpy",
        "data",
        "__array_interface__",
        "__cuda_array_interface__",
        "_repr_latex_",
        "_node",
        "nothing",
    ):
        assert not hasattr(t, name)
        assert name not in dir(t)
    assert not hasattr(mc, "gather")
    assert not hasattr(mc, "__wrapped__")
    assert str(copy.copy(t).local.tolist()) == "[0.0, 0.0, 0.0, 0.0]"
    with pytest.raises(AttributeError) as caught:
        _ = t.numpy
    assert caught.value.name == "numpy"


def test_python_prints_no_second_suggestion(capsys):
    t = mc.zeros((4,), "f4", mc.Layout(["x"], mc.Mesh(range(1), {"x": 1})))
    for written in ("t.locla", "t.relayuot", "mc.relyout", "mc.create_mehs", "mc.fft.ffft"):
        with pytest.raises(AttributeError) as caught:
            eval(written, {"t": t, "mc": mc})
        sys.__excepthook__(caught.type, caught.value, None)
        assert capsys.readouterr().err.lower().count("did you mean") == 1, written


def test_dir_has_the_public_names_only():
    assert set(dir(mc)) == {*mc._home_of, "__version__", *mc._MODULES}
    for name in mc._MODULES:
        module = importlib.import_module(f"meshcomm.{name}")
        assert dir(module) == sorted(module.__all__)
        assert all(hasattr(module, each) for each in dir(module))
    assert not hasattr(mc.linalg, "lapack")
    assert dir(mc.linalg.scalapack) == sorted(mc.linalg.scalapack.__all__)
