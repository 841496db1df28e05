"""Results that are written into tensors that exist."""

import weakref
from typing import Any

from meshcomm._arguments import as_array
from meshcomm.arrays.create import distribute
from meshcomm.arrays.dtensor import DTensor, place_text
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.memory.blocks import as_bytes
from meshcomm.ranks import agreement
from meshcomm.ranks.teams import Place

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


def agree_on_outs(moves: list[tuple[DTensor, Any, Layout]], place: Place) -> None:
    """Raise on all ranks unless each can write its blocks of the second while it reads the first. Collective.

    *moves* are tensors, what their relayouts are to overwrite, and where they go. What is wrong one rank may see
    alone; when all pairs were found good before, nobody tells the others.
    """
    error: Exception | None = None
    try:
        for tensor, out, layout in moves:
            check_out(out, tensor, layout)
    except MeshcommError as problem:
        error = problem
    if error is None:
        if all(out.partner is not None and out.partner() is tensor for tensor, out, _ in moves):
            return
        error = _wrong_with_blocks([tensor for tensor, _, _ in moves], [out for _, out, _ in moves])
    agreement.agree(place.team, "; ".join(call_text("out of a relayout", t, layout) for t, _, layout in moves), error)
    for tensor, out, _ in moves:
        object.__setattr__(out, "partner", weakref.ref(tensor))


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
    """Return what the ranks agree on: all that tells one call from another. Local."""
    to = "" if layout.mesh is tensor.mesh else f" on {place_text(layout.mesh)}"
    return (
        f"{operation} of {tensor.shape} {tensor.dtype} from {tensor.layout.sharding_specs} on "
        f"{place_text(tensor.mesh)} to {layout.sharding_specs}{to}"
    )


def bound_text(bound: int | None) -> str:
    return "" if bound is None else f" within {bound} bytes of scratch"
