"""Wrong calls of NumPy's functions, transforms and linear algebra, from a table: all ranks raise one error.

For simulated and for real ranks.
"""

import builtins
import functools

import numpy as np
import pytest

import meshcomm as mc
from meshcomm.numpy.reductions import reductions
from support.numpy_law import evaluated, table

CALLS = table("wrong_calls.txt")
DIFFERENT = CALLS.pop("calls that differ between ranks")
if not hasattr(np, "vecmat"):
    CALLS.pop("products since NumPy 2.2")


def names_on(mesh, other_mesh):
    """Return the functions that make operands, and the other names of the table."""

    def cut(array, axis, mesh):
        specs = [mc.UNSHARDED] * array.ndim
        specs[axis] = mesh.dim_names[0]
        return mc.distribute(array, mc.Layout(specs, mesh))

    names = {name: getattr(mc, name) for name in ("Layout", "Cuts")}
    names |= {"np": np, "mc": mc, "functools": functools, "U": mc.UNSHARDED, "reductions": reductions}
    names["rank"] = mesh.rank
    names["rows"], names["columns"] = lambda array: cut(array, 0, mesh), lambda array: cut(array, -1, mesh)
    names["elsewhere"] = lambda array: cut(array, 0, other_mesh)
    return names


def class_of(name):
    return getattr(mc.errors, name, None) or vars(builtins).get(name) or getattr(np.linalg, name)


def forms(title, call):
    """Return the call and, if it is an index, assignments to it."""
    values = ("1", "np.ones(1)") if title.startswith("indices") else ()
    return [call, *(f"t.__setitem__(np.s_{call[1:]}, {value})" for value in values)]


def wrong(title, mesh, other_mesh):
    """Check the calls of group *title* on a mesh: they raise, write nothing, and the next call works."""
    names = names_on(mesh, other_mesh)
    for line in CALLS[title]:
        call, arrow, error = line.partition("-> ")
        if not arrow:
            exec(line, names)
            continue
        kind, _, text = error.partition(": ")
        blocks = {name: value.local.tobytes() for name, value in names.items() if isinstance(value, mc.DTensor)}
        for form in forms(title, call.strip()):
            with mc.count() as traffic, pytest.raises(class_of(kind)) as raised:
                evaluated(form, dict(names))
            assert all(fragment in str(raised.value) for fragment in text.split(".*")), f"{form}: {raised.value}"
            assert not traffic.bytes or "before data moves" not in title, form
            total = mc.ones(3, int, mc.Layout([mesh.dim_names[0]], mesh)).sum()
            assert int(total) == 3, "the next call finds the ranks together"
            assert all(names[name].local.tobytes() == block for name, block in blocks.items()), form
