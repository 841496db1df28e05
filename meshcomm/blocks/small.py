"""What is small: gathered to all ranks, looked up by one of them, or computed by each and compared.

Row loops take numbers and short rows of a tensor, each at another index. Each would be a relayout that the ranks plan
and agree on, which takes longer than to send it. `everywhere` needs no plan. Each rank sends one message, with a
header that says which call it makes: so calls that differ are found at once, as always.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from meshcomm.core._tracing import Value
from meshcomm.core._tuning import PASSING, SMALL_MESHES, SMALL_MESSAGE
from meshcomm.core._types import Array, Names, Shape
from meshcomm.core.arrays.create import from_local, told_by_root
from meshcomm.core.arrays.dtensor import DTensor, check_root, unwrapped
from meshcomm.core.arrays.spec import TensorSpec
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.memory.copies import contiguous, opaque
from meshcomm.core.ranks import agreement
from meshcomm.core.ranks.agreement import agree, fingerprint
from meshcomm.core.ranks.calls import collective, exchanging, made_by_all
from meshcomm.core.ranks.teams import Team


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


def compare_call(operation: str, mesh: Mesh, call: str) -> None:
    """Add this *call* to the digest that goes with the next exchange; compare it now if all calls are.

    *operation* is what messages and the watchdog call it. Collective over the mesh.
    """
    with collective(operation, mesh) as here:
        if here is not None:
            if agreement.checks_every_call():
                agree(here.team, call)
            else:
                here.team.note(fingerprint(call))


def looked_up(operation: str, mesh: Mesh, call: str, look: Callable[[], object], root: int = 0) -> Value:
    """Return what *look* returns on device *root*, as JSON holds it; None outside of the mesh. Collective over it.

    What it raises there, all ranks raise.

    Parameters
    ----------
    operation: what messages and the watchdog call it
    mesh: that of *root*
    call: what the ranks compare before it
    look: returns what JSON can hold; runs on *root* only
    root: the device that looks; ``MeshError`` if it is none of the mesh
    """
    with collective(operation, mesh) as here:
        check_root(root, mesh)
        return None if here is None else told_by_root(root, look, call, mesh, here)


def of_lengths(name: str, block: Array | None, mesh: Mesh, specs: Sequence[Names]) -> DTensor:
    """Return the tensor of blocks of any lengths, which the ranks tell each other. Collective over the mesh.

    Parameters
    ----------
    name: of the operation
    block: of this rank; None outside of the mesh
    specs: the mesh dimensions along which the blocks of each axis lie one after the other
    """
    with collective(name, mesh):
        return from_local(block, "cuts", mesh=mesh, sharding_specs=list(specs))


_HEADER = 8  # bytes
_LONGEST = SMALL_MESSAGE - _HEADER


def is_passing(tensor: DTensor) -> bool:
    """Return whether a tensor is a short row of another one: of many that a loop takes, each of another length."""
    if tensor._view is None or tensor.ndim > 1 or not 0 < tensor.nbytes <= PASSING or tensor.mesh.size > SMALL_MESHES:
        return False
    return not any(map(tensor.layout.cyclic, range(tensor.ndim)))


def everywhere(tensor: DTensor, name: str) -> DTensor:
    """Return a small tensor with all of it on each device. Collective over the mesh. *name* is the operation."""
    spec, mesh, dtype = tensor._spec, tensor.mesh, tensor.dtype
    target = tensor.layout._recut(((),) * tensor.ndim)
    with collective(name, mesh) as here:
        if here is None:
            return DTensor(None, target, spec.shape, dtype)
        team, block, sizes, found = here.team, as_bytes(contiguous(tensor.local)), _sizes(spec), b""
        if tensor.nbytes <= _LONGEST:
            number, text = _number(name, spec), lambda: _text(name, spec)
            found = exchanged(team, number, text, block.tobytes())
            step = SMALL_MESSAGE
        else:
            with exchanging(team):
                agree(team, _text(name, spec))
                came, step = np.empty(sum(sizes), np.uint8), 0
                offsets = [sum(sizes[:position]) for position in range(len(sizes))]
                team.everyone.communicator().allgatherv(block, (came, sizes, offsets))
                found = came.tobytes()
        whole = np.empty(spec.shape, dtype)
        for position, shape, at in _filled(spec):
            begin = position * step + _HEADER if step else sum(sizes[:position])
            opaque(whole)[at] = opaque(np.ndarray(shape, dtype, found, begin))
    return DTensor(whole, target, spec.shape, dtype)


def one_of_all(name: str, spec: TensorSpec, number: int, data: bytes, device: int) -> bytes:
    """Return the bytes *data* of one device, on all devices of a mesh. Collective over it.

    Parameters
    ----------
    name: of the operation
    spec: of the tensor that it is about; *number* tells which call, the same on all ranks
    data: on *device*, as many bytes as an element has; on others it does not count
    device: whose it is
    """
    with collective(name, spec.mesh) as here:
        assert here is not None
        came = exchanged(here.team, number ^ _number("t[index]", spec), lambda: name, data)
        begin = here.team.ranks.index(spec.mesh.ranks[device]) * SMALL_MESSAGE + _HEADER
        return came[begin : begin + spec.dtype.itemsize]


def exchanged(team: Team, number: int, text: Callable[[], str], data: bytes) -> bytes:
    """Return the messages of all ranks of *team*: each a header, *data*, and what fills it up. Collective.

    Parameters
    ----------
    number, text: what the ranks compare; the *text* is made if numbers differ
    data: bytes of this rank, `SMALL_MESSAGE` at most, less those of the header
    """
    size, count = SMALL_MESSAGE, len(team.ranks)
    header = (number ^ team.call_digest).to_bytes(_HEADER, "little", signed=True)
    message, came = np.frombuffer((header + data).ljust(size, b"\0"), np.uint8), np.empty(size * count, np.uint8)
    offsets = [*range(0, size * count, size)]
    with exchanging(team):
        team.everyone.communicator().allgatherv(message, (came, [size] * count, offsets))
        found = came.tobytes()
        if any(found[at : at + _HEADER] != header for at in offsets):
            agree(team, text())
    return found


@lru_cache(maxsize=256)
def _filled(spec: TensorSpec) -> list[tuple[int, Shape, tuple[slice, ...]]]:
    """Return which ranks of the team have elements, the shape of their blocks, and where these are in the whole."""
    found, ranks = list[tuple[int, Shape, tuple[slice, ...]]](), sorted(spec.mesh.ranks)
    for device, rank in enumerate(spec.mesh.ranks):
        shape = spec.layout.block_shape(spec.shape, device)
        if 0 not in shape:
            found.append((ranks.index(rank), shape, spec.layout.block_slices(spec.shape, device)))
    return found


@lru_cache(maxsize=256)
def _sizes(spec: TensorSpec) -> list[int]:
    """Return the bytes that each rank of the team has, in their order."""
    device_of = {rank: device for device, rank in enumerate(spec.mesh.ranks)}
    shapes = [spec.layout.block_shape(spec.shape, device_of[rank]) for rank in sorted(device_of)]
    return [prod(shape) * spec.dtype.itemsize for shape in shapes]


def _text(name: str, spec: TensorSpec) -> str:
    return f"{name}: all of {spec.shape} {spec.dtype} in {spec.layout.specs_text}"


@lru_cache(maxsize=256)
def _number(name: str, spec: TensorSpec) -> int:
    return fingerprint(_text(name, spec))
