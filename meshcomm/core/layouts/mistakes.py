"""Messages about arguments that are no layout, with hints at what the caller probably meant."""

from meshcomm.core._arguments import quote
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.layout_text import UNSHARDED, specs_repr
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.errors import LayoutError


def no_layout(prefix: str, value: object) -> LayoutError:
    """Return the error for a *value* that should be a layout; *prefix* begins its message.

    >>> print(no_layout("zeros takes a Layout", ["x"]))
    zeros takes a Layout, not list (['x']): write mc.Layout(['x'], mesh)
    """
    return LayoutError(f"{prefix}, not {type(value).__name__} ({quote(value)}){_hint(value)}")


def such_as(layout: Layout, ndim: int) -> str:
    """Return the end of a message about a *layout* that has not *ndim* axes: an example of specs for *ndim* axes.

    >>> mesh = Mesh(range(2), {"x": 2})
    >>> such_as(Layout(["x"], mesh), 2)
    "; write one sharding spec per axis, such as ['x', UNSHARDED]"
    """
    specs = [*layout.sharding_specs, *[UNSHARDED] * ndim][:ndim]
    return f"; write one sharding spec per axis, such as {specs_repr(specs)}"


def _hint(value: object) -> str:
    if isinstance(value, str):
        return ": mc.Layout(specs, mesh) takes a list with a spec for each axis, such as ['x', mc.UNSHARDED]"
    if isinstance(value, list | tuple):
        return f": write mc.Layout({quote([*value])}, mesh)" if all(isinstance(s, str | tuple) for s in value) else ""
    if isinstance(value, Mesh):
        return ": a Mesh says on which devices; mc.Layout(specs, mesh) also says how each axis is cut"
    if isinstance(getattr(value, "layout", None), Layout):
        return ": pass its .layout"
    if hasattr(value, "__array__"):
        return ": the array comes first, then the layout"
    return ""
