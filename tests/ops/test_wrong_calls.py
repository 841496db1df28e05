"""Wrong calls of NumPy's functions, transforms and linear algebra: all ranks raise, and are in step after it."""

import builtins

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.numpy.reductions import reductions
from support.numpy_law import evaluated, table
from support.reference import on_ranks

TABLE = table("wrong_calls.txt")
DIFFERENT = TABLE.pop("calls that differ between ranks")


def tensors(mesh, other):
    """What makes operands, and other names of the table."""

    def cut(array, axis, mesh):
        specs = [mc.UNSHARDED] * array.ndim
        specs[axis] = mesh.dim_names[0]
        return mc.distribute(array, mc.Layout(specs, mesh))

    return {
        "rows": lambda array: cut(array, 0, mesh),
        "columns": lambda array: cut(array, -1, mesh),
        "elsewhere": lambda array: cut(array, 0, other),
        "np": np,
        "mc": mc,
        "Layout": mc.Layout,
        "Cuts": mc.Cuts,
        "U": mc.UNSHARDED,
        "reductions": reductions,
    }


def class_of(name):
    return getattr(mc.errors, name, None) or vars(builtins).get(name) or getattr(np.linalg, name)


def forms(title, call):
    """The call, and assignments if it is an index."""
    values = ("1", "np.ones(1)") if title.startswith("indices") else ()
    return [call, *(f"t.__setitem__(np.s_{call[1:]}, {value})" for value in values)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("title", TABLE)
@on_ranks(3)
def test_all_ranks_raise_and_nothing_is_written(title):
    if "NumPy 2.2" in title and not hasattr(np, "vecmat"):
        return
    mesh = mc.create_mesh([("x", 3)])
    names = tensors(mesh, mc.create_mesh([("y", 3)]))
    for line in TABLE[title]:
        call, arrow, error = line.partition("->")
        if not arrow:
            exec(line, names)
            continue
        kind, _, text = error.strip().partition(": ")
        given = {name: value.local.tobytes() for name, value in names.items() if isinstance(value, mc.DTensor)}
        for each in forms(title, call.strip()):
            with pytest.raises(class_of(kind)) as found:
                evaluated(each, dict(names))
            assert all(part in str(found.value) for part in text.split(".*")), f"{each}: {found.value}"
            assert int(mc.ones(3, int, mc.Layout(["x"], mesh)).sum()) == 3, "the next call finds the ranks together"
            assert all(names[name].local.tobytes() == block for name, block in given.items()), each


@pytest.mark.parametrize("line", DIFFERENT)
def test_ranks_notice_calls_that_differ(line):
    call, _, text = line.partition("->")

    def program():
        mesh = mc.create_mesh([("x", 3)])
        t = tensors(mesh, mesh)["rows"](np.arange(24.0).reshape(6, 4))
        eval(call.strip(), {"np": np, "t": t, "rank": int(mesh.rank == 1)})

    with mc.simulate(3) as world, pytest.raises(mc.CollectiveMismatch) as found:
        world.run(program)
    assert text.strip() in str(found.value)
