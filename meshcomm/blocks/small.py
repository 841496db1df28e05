"""What is small: gathered to all ranks, looked up by one of them, or computed by each and compared.

Row loops take numbers and short rows of a tensor, each at another index. Each would be a relayout that the ranks plan
and agree on, which takes longer than to send it. `everywhere` needs no plan. Each rank sends one message, with a
header that says which call it makes: so calls that differ are found at once, as always.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._tracing import Value
from meshcomm.core._tuning import SMALL_MESHES, SMALL_MESSAGE
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.create import told_by_root
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.layout_text import specs_text
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cyclic
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.memory.copies import contiguous, opaque
from meshcomm.core.ranks.agreement import agree, fingerprint
from meshcomm.core.ranks.calls import collective, exchanging, made_by_all


def gathered(name: str, x: DTensor | ArrayLike) -> Array:
    """Return all elements of a small operand on every rank. Collective over its mesh. *name* is the operation."""
    tensor = unwrapped(x)
    if not isinstance(tensor, DTensor):
        return np.asarray(tensor)
    with collective(name, tensor.mesh):
        found = tensor.to_numpy()
    return np.zeros(tensor.shape, tensor.dtype) if found is None else found  # on a rank outside of the mesh


together = made_by_all
"""``together(operation, mesh, call, make)`` returns what *make* makes of what this rank has: `made_by_all`.

What it raises on one rank, all ranks raise. Collective over the mesh.
"""


def looked_up(operation: str, mesh: Mesh, call: str, look: Callable[[], object], root: int = 0) -> Value:
    """Return what *look* returns on device *root*, as JSON holds it; None outside of the mesh. Collective over it.

    What it raises there, all ranks raise.

    Parameters
    ----------
    operation: what messages and the watchdog call it
    mesh: that of *root*
    call: what the ranks compare before it
    look: returns what JSON can hold; runs on *root* only
    root: the device that looks
    """
    with collective(operation, mesh) as here:
        return None if here is None else told_by_root(root, look, call, mesh, here)


_HEADER = np.dtype(np.int64)
_ROOM = SMALL_MESSAGE - _HEADER.itemsize


def is_small(tensor: DTensor) -> bool:
    """Return whether `everywhere` takes a tensor."""
    dealt = any(isinstance(names, Cyclic) for names in tensor.layout.axes)
    return 0 < tensor.nbytes <= _ROOM and tensor.mesh.size <= SMALL_MESHES and not dealt


def everywhere(tensor: DTensor, name: str) -> DTensor:
    """Return a small tensor with all of it on each device. Collective over the mesh. *name* is the operation."""
    spec, mesh, dtype = tensor._spec, tensor.mesh, tensor.dtype
    target = tensor.layout._recut(((),) * tensor.ndim)
    with collective(name, mesh) as here:
        if here is None:
            return DTensor(None, target, spec.shape, dtype)
        team, parts = here.team, _parts(spec)
        message, came = np.zeros(SMALL_MESSAGE, np.uint8), np.empty((mesh.size, SMALL_MESSAGE), np.uint8)
        message[: _HEADER.itemsize].view(_HEADER)[0] = _number(name, spec) ^ team.call_digest
        block = tensor.local
        message[_HEADER.itemsize : _HEADER.itemsize + block.nbytes] = as_bytes(contiguous(block))
        offsets = list(range(0, came.size, SMALL_MESSAGE))
        with exchanging(team):
            everyone = came.reshape(-1), [SMALL_MESSAGE] * mesh.size, offsets
            team.everyone.communicator().allgatherv(message, everyone)
            headers = came[:, : _HEADER.itemsize].tobytes()
            if headers != headers[: _HEADER.itemsize] * mesh.size:
                agree(team, _text(name, spec))
        whole = np.empty(spec.shape, dtype)
        for rank, shape, at in parts:
            data = came[team.ranks.index(rank), _HEADER.itemsize :]
            opaque(whole)[at] = opaque(np.ndarray(shape, dtype, data.tobytes()))
    return DTensor(whole, target, spec.shape, dtype)


@lru_cache(maxsize=256)
def _parts(spec: TensorSpec) -> list[tuple[int, Shape, tuple[slice, ...]]]:
    """Return the ranks that have elements, each with the shape of its block, and where this is in the global array."""
    shapes = [spec.layout.block_shape(spec.shape, device) for device in range(spec.mesh.size)]
    return [
        (spec.mesh.ranks[device], shape, spec.layout.block_slices(spec.shape, device))
        for device, shape in enumerate(shapes)
        if 0 not in shape
    ]


def _text(name: str, spec: TensorSpec) -> str:
    return f"{name}: all of {spec.shape} {spec.dtype} in {specs_text(spec.layout.sharding_specs)}"


@lru_cache(maxsize=256)
def _number(name: str, spec: TensorSpec) -> int:
    return fingerprint(_text(name, spec))
