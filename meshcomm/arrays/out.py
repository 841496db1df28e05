"""Results that are written into tensors that exist."""

import weakref
from typing import Any

import numpy as np

from meshcomm._arguments import as_array
from meshcomm._types import Shape
from meshcomm.arrays.create import distribute
from meshcomm.arrays.dtensor import DTensor, location_text
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.memory.blocks import as_bytes
from meshcomm.plans.plan import Plan
from meshcomm.ranks import agreement
from meshcomm.ranks.teams import Location

READ_ONLY = "out cannot be written to: its block is read-only"


def distributed(array: Any, layout: Layout, out: DTensor | None) -> DTensor:
    """Return a plain array, the same on all ranks, in *layout*."""
    array = as_array(array)
    tensor = distribute(array, layout.matched(Layout.replicated(layout.mesh, array.ndim)))
    if out is None:
        return tensor
    check_out(out, tensor, tensor.layout)
    if out.local is not None and tensor.local is not None:
        if not out.local.flags.writeable:
            raise LayoutError(READ_ONLY)
        as_bytes(out.local)[:] = as_bytes(tensor.local)  # bit for bit, padding too
    return out


def check_out(out: Any, tensor: DTensor, layout: Layout) -> None:
    """Raise unless *out* is what a relayout of *tensor* to *layout* gives; all ranks can see that alike. Local."""
    if not isinstance(out, DTensor):
        raise LayoutError(f"out must be a DTensor, not {type(out).__name__}")
    if out.shape != tensor.shape:
        raise ShapeError(f"out has shape {out.shape}, but the tensor has {tensor.shape}")
    if out.dtype != tensor.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, but the tensor has {tensor.dtype}")
    wanted = layout if layout.match_axis is None else layout.matched(tensor.layout)
    if out.layout is not wanted and (out.layout != wanted or out.mesh.world is not wanted.mesh.world):
        raise LayoutError(f"out is {_where(out.layout)}, but the relayout goes to {_where(wanted)}")


def _where(layout: Layout) -> str:
    return f"{layout.sharding_specs} on the {layout.mesh}"


_found_free: dict[int, tuple[weakref.ref[DTensor], weakref.ref[DTensor]]] = {}
"""By the id of a tensor that was last found free to be overwritten: itself, and the tensor that is read then."""


def agree_on_outs(moves: list[tuple[DTensor, Any, Layout]], here: Location) -> None:
    """Raise on all ranks unless each can write its blocks of the second while it reads the first. Collective.

    *moves* are tensors, what their relayouts are to overwrite, and the layouts that they go to. What is wrong one rank
    may see alone. When all pairs were found good before, nobody tells the others.
    """
    error: Exception | None = None
    try:
        for tensor, out, layout in moves:
            check_out(out, tensor, layout)
    except MeshcommError as problem:
        error = problem
    if error is None:
        if all(_was_free(out, tensor) for tensor, out, _ in moves):
            return
        error = _wrong_with_blocks([tensor for tensor, _, _ in moves], [out for _, out, _ in moves])
    agreement.agree(here.team, "; ".join(call_text("out of a relayout", t, layout) for t, _, layout in moves), error)
    for tensor, out, _ in moves:
        key = id(out)
        _found_free[key] = weakref.ref(out, lambda _, key=key: _found_free.pop(key, None)), weakref.ref(tensor)


def _was_free(out: DTensor, tensor: DTensor) -> bool:
    found = _found_free.get(id(out))
    return found is not None and found[0]() is out and found[1]() is tensor


def _wrong_with_blocks(tensors: list[DTensor], outs: list[DTensor]) -> Exception | None:
    if any(out.local is not None and not out.local.flags.writeable for out in outs):
        return LayoutError(READ_ONLY)
    if _overlap([out.local for out in outs], [tensor.local for tensor in tensors]):
        return LayoutError(
            "out shares memory with a tensor or another out: a relayout reads blocks while it writes others"
        )
    return None


def _overlap(written: list[Any], read: list[Any]) -> bool:
    """Return whether a block that is written shares memory with another one, read or written."""
    blocks = [(block, True) for block in written] + [(block, False) for block in read]
    end_written = end = 0
    for start, stop, writes in sorted(
        (block.__array_interface__["data"][0], block.__array_interface__["data"][0] + block.nbytes, writes)
        for block, writes in blocks
        if block is not None and block.nbytes
    ):
        if start < (end if writes else end_written):
            return True
        end = max(end, stop)
        end_written = max(end_written, stop) if writes else end_written
    return False


def call_text(operation: str, tensor: DTensor, layout: Layout) -> str:
    """Return what the ranks agree on: all that tells one relayout from another."""
    return relayout_text(operation, tensor.shape, tensor.dtype, tensor.layout, layout)


def relayout_text(operation: str, shape: Shape, dtype: np.dtype[Any], source: Layout, target: Layout) -> str:
    """Return what the ranks agree on about a relayout from *source* to *target*."""
    to = "" if target.mesh is source.mesh else f" on {location_text(target.mesh)}"
    return (
        f"{operation} of {shape} {dtype} from {source.sharding_specs} on {location_text(source.mesh)} "
        f"to {target.sharding_specs}{to}"
    )


def bound_text(bound: int | None) -> str:
    """Return what the ranks agree on about the scratch limit."""
    return "" if bound is None else f" within {bound} bytes of scratch"


def outside(tensor: DTensor, out: DTensor | None, plan: Plan) -> DTensor:
    """Return the result of a relayout on a rank outside of both meshes, which checks what all ranks can see."""
    if out is not None:
        check_out(out, tensor, plan.target)
        return out
    return DTensor(None, plan.target, plan.shape, plan.dtype)
