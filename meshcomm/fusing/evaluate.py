"""The results of programs, on plain arrays and on tensors."""

from collections.abc import Sequence
from math import prod

import numpy as np

from meshcomm.blocks.align import agree_on_plain, aligned_blocks
from meshcomm.blocks.make import make
from meshcomm.blocks.reduce import Partial, run_partial, unchanged
from meshcomm.core._tracing import Value
from meshcomm.core._types import Array, Shape
from meshcomm.core.arrays.dtensor import DTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.fusing.lines import Origin
from meshcomm.fusing.programs import Program, Total, run


def evaluated(
    program: Program, leaves: Sequence[Value], shape: Shape, layout: Layout | None, origins: Sequence[Origin]
) -> Sequence[Value]:
    """Return the results of a program: its outputs, and then its totals.

    Collective over the mesh if a tensor has to move, for plain arrays beside tensors, and for totals of sharded ones.

    Parameters
    ----------
    program: what to run
    leaves: arrays, tensors and constants
    shape, layout: of all outputs; the layout is None if all leaves are plain arrays
    origins: where the program makes each step, and each total
    """
    if layout is None:
        made, shares = run(program, leaves, origins, ordered=False)
        return [
            *made,
            *(each.finish(share, prod(shape))[()] for each, share in zip(program.totals, shares, strict=True)),
        ]
    device = layout.mesh.rank  # or the error of a mesh that is closed
    blocks = _blocks(leaves, shape, layout)
    found = None if device is None else run(program, blocks, origins, ordered=True)
    outputs: Sequence[Array | None] = [None] * len(program.outputs) if found is None else found.outputs
    of_device: Sequence[Array | None] = [None] * len(program.totals) if found is None else found.shares
    return [
        *(make(each, layout, shape, dtype) for each, (_, dtype) in zip(outputs, program.outputs, strict=True)),
        *(_over_devices(*each, shape, layout) for each in zip(program.totals, of_device, strict=True)),
    ]


def _blocks(leaves: Sequence[Value], shape: Shape, layout: Layout) -> list[Value]:
    """Return the leaves, but blocks for a result of *shape* in *layout* instead of arrays and tensors."""
    arrays = {number: x for number, x in enumerate(leaves) if isinstance(x, DTensor | np.ndarray)}
    known = agree_on_plain("fuse", [*arrays.values()], layout.mesh)
    blocks = dict(zip(arrays, aligned_blocks("fuse", known, shape, layout), strict=True))
    return [blocks.get(number, x) for number, x in enumerate(leaves)]


def _over_devices(total: Total, share: Array | None, shape: Shape, layout: Layout) -> DTensor:
    """Return the total of the shares of devices; that of a block without elements does not count."""
    scalar = Layout.replicated(layout.mesh, 0)
    text = f"fuse: {total.ufunc.__name__} in {total.shares} of {shape} in {layout.specs_text}"
    partial = Partial(
        key=(text, layout, total),
        text=text,
        compute=unchanged,
        names=layout.sharding_dims,
        op=total.merge,
        dtype=total.dtype,
        counts=lambda device: 0 not in layout.block_shape(shape, device),
        shares=total.shares,
        finish=lambda found: total.finish(found, prod(shape)),
    )
    return run_partial(partial, make(share, scalar, (), total.shares), scalar, ())
