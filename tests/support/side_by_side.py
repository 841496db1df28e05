"""The pages of docs/coming-from: code of another system next to ours.

A page has sections, one for each task. A ``py`` block is code of the other system, a ``python`` block is ours. The
blocks of each side form one program. Variables that both sides of a section assign are its results, and have to be
equal.
"""

import ast
import re
from typing import NamedTuple

import numpy as np

import meshcomm as mc
from support.paths import DOCS

FOLDER = DOCS / "coming-from"
SYSTEMS = {
    "mpi4py": ("mpi4py",),
    "mpi4py-fft": ("mpi4py_fft",),
    "pytorch": ("torch",),
    "jax": ("jax",),
    "dask": ("dask",),
    "tensorflow": ("tensorflow", "tf_keras"),
}
"""The pages, and the modules that the code of the other side needs."""
RANKS = 4


class Section(NamedTuple):
    """A section of a page: its title, the code of the other system, and ours."""

    title: str
    theirs: str
    ours: str

    @property
    def results(self):
        """The variables that both sides assign, in a fixed order."""
        return sorted(assigned(self.theirs) & assigned(self.ours))

    @property
    def is_task(self):
        return bool(self.theirs and self.ours)


def sections(page):
    """Return the sections of a page that have code."""
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    code = re.compile(r"^```(py|python)\n(.*?)^```$|^#+ ([^\n]*)$", re.MULTILINE | re.DOTALL)
    entries = []
    for language, block, title in code.findall(text):
        if title:
            entries.append([title, "", ""])
        else:
            entries[-1][1 if language == "py" else 2] += block
    return [Section(*entry) for entry in entries if entry[1] or entry[2]]


def assigned(program):
    """Return the variables that a program assigns at its top level.

    >>> sorted(assigned("a = b = 1\\nfor i in x: c = 2\\nd, e = f\\ng[0] = 1"))
    ['a', 'b', 'd', 'e']
    """
    targets = [target for node in ast.parse(program).body if isinstance(node, ast.Assign) for target in node.targets]
    nodes = [node for target in targets for node in getattr(target, "elts", [target])]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def plain(value):
    """Return a result of any system as a NumPy array, equal on all ranks if it is global; None for other values.

    Collective for global arrays.
    """
    if isinstance(value, mc.DTensor):
        return value.to_numpy()
    module = type(value).__module__.partition(".")[0]
    if module in _PLAIN:
        return _PLAIN[module](value)
    numbers = value if isinstance(value, (tuple, list)) else [value]
    if all(isinstance(item, (np.ndarray, np.generic, int, float, str, tuple)) for item in numbers):
        return np.asarray(value)
    return None


def _of_mpi4py_fft(value):
    from mpi4py import MPI

    if not isinstance(value, np.ndarray):
        return None
    array = np.empty(value.global_shape, value.dtype)
    for slices, block in MPI.COMM_WORLD.allgather((value.local_slice(), np.array(value))):
        array[slices] = block
    return array


def _of_torch(value):
    import torch

    tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return tensor.detach().numpy() if isinstance(tensor, torch.Tensor) else None


def _of_jax(value):
    import jax
    from jax.experimental.multihost_utils import process_allgather

    if not isinstance(value, jax.Array):
        return None
    return np.asarray(value if value.is_fully_addressable else process_allgather(value, tiled=True))


def _of_dask(value):
    return np.asarray(value.compute()) if hasattr(value, "compute") else None


def _of_tensorflow(value):
    from tensorflow.experimental import dtensor

    if not hasattr(value, "numpy"):
        return None
    if dtensor.is_dtensor(value):
        layout = dtensor.fetch_layout(value)
        value = dtensor.relayout(value, dtensor.Layout.replicated(layout.mesh, len(value.shape)))
    return value.numpy()


_PLAIN = {
    "mpi4py_fft": _of_mpi4py_fft,
    "torch": _of_torch,
    "jaxlib": _of_jax,
    "jax": _of_jax,
    "dask": _of_dask,
    "tensorflow": _of_tensorflow,
}


def brief(array):
    values = np.array2string(array, threshold=20, edgeitems=2, precision=3, separator=", ").replace("\n", "")
    return f"{array.dtype} of {array.shape}: {values[:200]}"


def differences(page, rank=0):
    """Run both sides of a page, and yield a text for each difference between the sides."""
    their_variables, our_variables = {"__name__": f"theirs on rank {rank}"}, {"__name__": f"ours on rank {rank}"}
    for section in sections(page):
        title = section.title
        for code, names in (section.theirs, their_variables), (section.ours, our_variables):
            exec(compile(code, f"{page}.md, {title}", "exec"), names)
        compared = 0
        for name in section.results:
            if (their_variables[name] is None) != (our_variables[name] is None):
                yield f"{title}: {name} is {their_variables[name]!r}, and ours is {our_variables[name]!r}"
            their_array, our_array = plain(their_variables[name]), plain(our_variables[name])
            if their_array is None or our_array is None:
                continue
            compared += 1
            equal = np.allclose if their_array.dtype.kind in "fc" else np.array_equal
            if (
                their_array.dtype.kind != our_array.dtype.kind
                or their_array.shape != our_array.shape
                or not equal(their_array, our_array)
            ):
                yield f"{title}: {name} is {brief(their_array)}, and ours is {brief(our_array)}"
        if section.is_task and not compared:
            yield f"{title}: the two sides have no result in common"
