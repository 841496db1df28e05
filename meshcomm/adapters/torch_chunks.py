"""How torch.distributed.tensor cuts axes: by torch.chunk, once for each mesh dimension, in the order of the mesh.

All chunks but the last ones have the same length, so seven elements on three devices are 3, 3 and 1, where meshcomm
has 3, 2 and 2. `Cuts` describe such chunks. A layout has placements of PyTorch if it cuts in this way.
"""

from collections.abc import Sequence

from meshcomm.core._arguments import counted
from meshcomm.core.layouts.axes import refuse_match
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED, Spec
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.layouts.specs import Cuts
from meshcomm.errors import LayoutError


def layout_of_chunks(mesh: Mesh, sharded: Sequence[int | None], shape: Sequence[int]) -> Layout:
    """Return the layout in which each mesh dimension chunks one axis, or none: *sharded* has the axis or None.

    >>> layout_of_chunks(Mesh(range(6), [("x", 3), ("y", 2)]), [0, None], (7, 4))
    Layout([Cuts('x', (0, 3, 6, 7)), UNSHARDED], Mesh(x=3, y=2))
    >>> layout_of_chunks(Mesh(range(6), [("x", 3), ("y", 2)]), [0, 0], (12, 4))
    Layout([('x', 'y'), UNSHARDED], Mesh(x=3, y=2))
    """
    specs: list[Spec] = []
    for axis, length in enumerate(shape):
        dims = [dim for dim, chunked_axis in zip(mesh.dims, sharded, strict=True) if chunked_axis == axis]
        sizes = [length]
        for dim in dims:
            sizes = [size for chunk in sizes for size in _chunk_lengths(chunk, dim.size)]
        specs.append(Cuts([dim.name for dim in dims], sizes=sizes) if dims else UNSHARDED)
    return Layout(specs, mesh)


def _chunk_lengths(length: int, count: int) -> list[int]:
    """Return the lengths of the chunks of an axis, as torch.chunk cuts it; empty ones at the end."""
    full_length = -(-length // count)
    return [min(full_length, max(0, length - full_length * number)) for number in range(count)]


def chunked_axes(layout: Layout, shape: Sequence[int]) -> list[int | None]:
    """Return for each mesh dimension the axis that it chunks, or None; ``LayoutError`` for other cuts.

    >>> mesh = Mesh(range(3), {"x": 3})
    >>> chunked_axes(Layout([UNSHARDED, "x"], mesh), (7, 6))
    [1]
    >>> chunked_axes(Layout(["x", UNSHARDED], mesh), (7, 6))
    Traceback (most recent call last):
    meshcomm.LayoutError: axis 0 of shape (7, 6) is cut as 'x', but PyTorch cuts it as Cuts('x', (0, 3, 6, 7)); \
a relayout to Layout([Cuts('x', (0, 3, 6, 7)), UNSHARDED], Mesh(x=3)) brings it there
    """
    refuse_match(layout)
    lengths = tuple(shape)
    if layout.ndim != len(lengths):
        raise LayoutError(f"shape {lengths} has {counted(len(lengths), 'axis')}, but the layout is for {layout.ndim}")
    layout.check_fits(lengths)
    axis_of = {name: axis for axis, names in enumerate(layout.axes) for name in names}
    sharded = [axis_of.get(name) for name in layout.mesh.dim_names]
    torch_layout = layout_of_chunks(layout.mesh, sharded, lengths)
    if torch_layout == layout:
        return sharded
    spec_pairs = zip(layout.sharding_specs, torch_layout.sharding_specs, strict=True)
    axis, (spec, torch_spec) = next((axis, specs) for axis, specs in enumerate(spec_pairs) if specs[0] != specs[1])
    raise LayoutError(
        f"axis {axis} of shape {lengths} is cut as {spec!r}, but PyTorch cuts it as {torch_spec!r}; "
        f"a relayout to {torch_layout!r} brings it there"
    )
