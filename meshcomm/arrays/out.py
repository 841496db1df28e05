"""Relayouts that write into tensors that exist, and the texts that ranks compare about a relayout."""

import weakref
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from meshcomm._arguments import as_array
from meshcomm._types import Array, DType, Shape
from meshcomm.arrays.create import distribute
from meshcomm.arrays.dtensor import DTensor
from meshcomm.errors import DTypeError, LayoutError, MeshcommError, ShapeError
from meshcomm.layouts.layout import Layout
from meshcomm.memory.blocks import as_bytes
from meshcomm.plans.plan import Plan
from meshcomm.ranks import agreement
from meshcomm.ranks.meshes import location_text
from meshcomm.ranks.teams import Location

Into: TypeAlias = tuple[DTensor, DTensor, Layout]
"""A tensor, the tensor that its relayout overwrites, and the layout that it goes to."""

READ_ONLY = "out cannot be written to: its block is read-only"


def distributed(whole: object, layout: Layout, out: DTensor | None) -> DTensor:
    """Return a plain array, the same on all ranks, in *layout*; in *out* if that is given."""
    array = as_array(whole)
    tensor = distribute(array, layout.matched(Layout.replicated(layout.mesh, array.ndim)))
    if out is None:
        return tensor
    check_out(out, tensor, tensor.layout)
    if out.local is not None and tensor.local is not None:
        if not out.local.flags.writeable:
            raise LayoutError(READ_ONLY)
        as_bytes(out.local)[:] = as_bytes(tensor.local)  # bit for bit, padding too
    return out


def check_out(out: object, tensor: DTensor, layout: Layout) -> None:
    """Raise unless *out* has the shape, dtype and layout of *tensor* in *layout*; all ranks find the same."""
    if not isinstance(out, DTensor):
        raise LayoutError(f"out must be a DTensor, not {type(out).__name__}")
    if out.shape != tensor.shape:
        raise ShapeError(f"out has shape {out.shape}, but the tensor has {tensor.shape}")
    if out.dtype != tensor.dtype:
        raise DTypeError(f"out has dtype {out.dtype}, but the tensor has {tensor.dtype}")
    wanted = layout if layout.match_axis is None else layout.matched(tensor.layout)
    if out.layout is not wanted and (out.layout != wanted or out.mesh.world is not wanted.mesh.world):
        raise LayoutError(f"out is {_layout_text(out.layout)}, but the relayout goes to {_layout_text(wanted)}")


def _layout_text(layout: Layout) -> str:
    return f"{layout.sharding_specs} on the {layout.mesh}"


_found_free: dict[int, tuple[weakref.ref[DTensor], weakref.ref[DTensor]]] = {}
"""By the id of an *out* that all ranks found free: itself, and the tensor that was read then.

The entry of a tensor goes when the tensor does, so that a new tensor with its id is checked again.
"""


def wrong_out(moves: Iterable[Into]) -> MeshcommError | None:
    """Return what `check_out` finds, if anything."""
    try:
        for tensor, out, layout in moves:
            check_out(out, tensor, layout)
    except MeshcommError as error:
        return error
    return None


def agree_on_outs(moves: Sequence[Into], here: Location | None, wrong: MeshcommError | None = None) -> None:
    """Raise on all ranks unless each can write the blocks of the outs while it reads those of the tensors. Collective.

    Only one rank may see what is wrong. When all pairs were found good before, the ranks do not communicate. A rank
    outside, where *here* is None, finds what all ranks can see. *wrong* is what this rank found before, if anything.
    """
    error: Exception | None = wrong or wrong_out(moves)
    if here is None:
        if error is not None:
            raise error
        return
    if error is None:
        if all(_was_free(out, tensor) for tensor, out, _ in moves):
            return
        error = _wrong_with_blocks([tensor for tensor, _, _ in moves], [out for _, out, _ in moves])
    agreement.agree(here.team, "; ".join(call_text("out of a relayout", t, layout) for t, _, layout in moves), error)
    for tensor, out, _ in moves:
        _note_free(out, tensor)


def _was_free(out: DTensor, tensor: DTensor) -> bool:
    found = _found_free.get(id(out))
    return found is not None and found[0]() is out and found[1]() is tensor


def _note_free(out: DTensor, tensor: DTensor) -> None:
    key = id(out)
    _found_free[key] = weakref.ref(out, lambda _: _found_free.pop(key, None)), weakref.ref(tensor)


def _wrong_with_blocks(tensors: Iterable[DTensor], outs: Sequence[DTensor]) -> Exception | None:
    if any(out.local is not None and not out.local.flags.writeable for out in outs):
        return LayoutError(READ_ONLY)
    if _overlap((out.local for out in outs), (tensor.local for tensor in tensors)):
        return LayoutError(
            "out shares memory with a tensor or another out: a relayout reads blocks while it writes others"
        )
    return None


def _overlap(written: Iterable[Array | None], read: Iterable[Array | None]) -> bool:
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
    """Return what the ranks compare about a relayout of *tensor*."""
    return relayout_text(operation, tensor.shape, tensor.dtype, tensor.layout, layout)


def relayout_text(operation: str, shape: Shape, dtype: DType, source: Layout, target: Layout) -> str:
    """Return what the ranks compare about a relayout.

    Parameters
    ----------
    operation: the name of the call
    shape, dtype: of the global array
    source, target: the layouts before and after
    """
    to = "" if target.mesh is source.mesh else f" on {location_text(target.mesh)}"
    return (
        f"{operation} of {shape} {dtype} from {source.sharding_specs} on {location_text(source.mesh)} "
        f"to {target.sharding_specs}{to}"
    )


def limit_text(limit: int | None) -> str:
    """Return what the ranks compare about the scratch limit, which is part of the text of a call."""
    return "" if limit is None else f" within {limit} bytes of scratch"


def outside(out: DTensor | None, plan: Plan) -> DTensor:
    """Return the result of a relayout on a rank outside of both meshes; *plan* was checked as on the other ranks."""
    return DTensor(None, plan.target, plan.shape, plan.dtype) if out is None else out
