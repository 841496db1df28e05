"""Targets of relayouts: a layout, or sharding specs on the tensor's own mesh."""

from collections.abc import Sequence
from typing import TypeAlias

from meshcomm.core._tracing import untraced
from meshcomm.core.arrays.dtensor import DTensor, unwrapped
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import Spec
from meshcomm.core.layouts.mistakes import no_layout

Target: TypeAlias = Layout | Sequence[Spec]
"""A layout, or the sharding specs of one on the tensor's own mesh."""


def target_of(tensor: object, layout: object) -> Layout:
    """Return the layout on the mesh of *tensor* that has the specs *layout*; ``LayoutError`` for anything else.

    Relayouts to a Layout, which are frequent and small, do not call it.
    """
    value = unwrapped(untraced(tensor))
    if isinstance(layout, list | tuple) and isinstance(value, DTensor):
        return Layout(layout, value.layout.mesh)
    raise no_layout("a relayout goes to a Layout", layout)
