"""Relayouts that write into tensors that exist, and the texts that ranks compare about a relayout."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from meshcomm._kernels import overlap
from meshcomm.core._arguments import as_array
from meshcomm.core._types import Array, DType, Shape
from meshcomm.core.arrays.create import distribute
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.arrays.views import copy_block_into, refusal
from meshcomm.core.failures.watch import named_operation
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.memory.blocks import as_bytes
from meshcomm.core.ranks.agreement import fingerprint
from meshcomm.core.ranks.calls import collective
from meshcomm.core.ranks.meshes import mesh_description
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, ShapeError

RelayoutInto: TypeAlias = tuple[DTensor, DTensor, Layout]
"""A tensor, the tensor that its relayout overwrites, and the new layout."""

READ_ONLY = "out cannot be written to: its block is read-only"
OVERLAPPING = "out shares memory with a tensor or another out: a relayout reads blocks while it writes others"


def distribute_into(value: object, layout: Layout, out: DTensor | None, name: str | None) -> DTensor:
    """Return a plain array, the same on all ranks, as a tensor in *layout*; in *out* if given. *name* names the call.

    Nothing moves, but the ranks compare later that all made this call: if one of them made it in place of the relayout
    of a tensor, that relayout of the others would receive data of its next one.
    """
    array = as_array(value)
    if layout.match_axis is not None:
        layout = layout.matched(Layout.replicated(layout.mesh, array.ndim))
    tensor = distribute(array, layout)
    with collective(named_operation("relayout", name), layout.mesh) as location:
        if location is not None:
            location.rank_set.note(_array_fingerprint(tensor.layout, tensor.shape, tensor.dtype))
    if out is None:
        return tensor
    check_out(out, tensor, tensor.layout)
    if out._has_block and not out._block.flags.writeable:
        raise LayoutError(READ_ONLY)
    return copy_block_into(out, tensor._block)


@lru_cache(1024)
def _array_fingerprint(layout: Layout, shape: Shape, dtype: DType) -> int:
    """Return the fingerprint of the relayout of an array, the same on all ranks."""
    target_text = f"{layout.specs_text} on {mesh_description(layout.mesh)}"
    return fingerprint(f"relayout of an array of {shape} {dtype} to {target_text}")


def check_out(out: object, tensor: DTensor, layout: Layout) -> None:
    """Raise unless *out* has the shape, dtype and layout of *tensor* in *layout*, on all ranks alike."""
    if not isinstance(out, DTensor):
        raise LayoutError(f"out must be a DTensor, not {type(out).__name__}")
    reason = refusal(out)
    if reason is not None:
        raise LayoutError(f"out: {reason}")
    if out.shape != tensor.shape:
        raise ShapeError(f"out has shape {out.shape}, but the tensor has {tensor.shape}")
    if out.dtype != tensor.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, but the tensor has {tensor.dtype}")
    target = layout if layout.match_axis is None else layout.matched(tensor.layout)
    if out.layout is not target and (out.layout != target or out.mesh.world is not target.mesh.world):
        raise LayoutError(f"out is {_layout_text(out.layout)}, but the relayout goes to {_layout_text(target)}")


def _layout_text(layout: Layout) -> str:
    return f"{layout.specs_text} on the {layout.mesh}"


# How a rank may find an out wrong alone
# ======================================
#
# All ranks see shape, dtype and layout of an out. Only one rank may see that its block is read-only, or shares memory
# with a block that the relayout reads. That must not decide whether a rank communicates: another rank may have wrapped
# the same memory in a new tensor, or none at all. So an error about an out goes with the call:
#
# - In a call that is new for the rank set, the ranks compare it with all other errors, and all raise it.
# - In a known call, the digest of this rank's calls includes the error. Then this rank takes part as if no out was
#   given, and raises the error. If all ranks find an out wrong, their digests are equal, and all raise the error. If
#   not, the next comparison of digests, in the same exchange if it has one, finds that the ranks differ.
#
# Nothing is kept about tensors, so the result does not depend on the objects that a rank makes for itself.


def find_out_error(tensor: DTensor, out: object, layout: Layout) -> MeshcommError | None:
    """Return the error for *out* in a relayout of *tensor*, None if it is right. Other ranks may have no error."""
    try:
        check_out(out, tensor, layout)
    except MeshcommError as error:
        return error
    assert isinstance(out, DTensor)
    if out is tensor:  # also where the block is empty, or there is none: all ranks see it
        return LayoutError(OVERLAPPING)
    block = out._block
    if block is None:
        return None
    if not block.flags.writeable:
        return LayoutError(READ_ONLY)
    if tensor._has_block and _overlap(block, tensor._block):
        return LayoutError(OVERLAPPING)
    return None


def find_out_errors(moves: Sequence[RelayoutInto]) -> MeshcommError | None:
    """Return the error for the outs of several relayouts, None if all are right. Other ranks may have no error."""
    try:
        for tensor, out, layout in moves:
            check_out(out, tensor, layout)
    except MeshcommError as error:
        return error
    outs = [out._block for _, out, _ in moves if out._has_block]
    if any(not block.flags.writeable for block in outs):
        return LayoutError(READ_ONLY)
    sources = [tensor._block for tensor, _, _ in moves if tensor._has_block]
    contiguous_blocks = [[as_bytes(x) for x in blocks if x.flags.c_contiguous] for blocks in (outs, sources)]
    strided_outs = [block for block in outs if not block.flags.c_contiguous]
    strided_sources = [block for block in sources if not block.flags.c_contiguous]
    shared = any(_overlap(out, block) for out in outs for block in strided_sources)
    shared = shared or any(_overlap(out, x) for out in strided_outs for x in (*outs, *sources) if x is not out)
    return LayoutError(OVERLAPPING) if shared or overlap(*contiguous_blocks) else None


def _overlap(a: Array, b: Array) -> bool:
    """Return whether two blocks share an element; True also where the exact answer takes long."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # any number
    except np.exceptions.TooHardError:
        return True
