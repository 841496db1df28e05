"""What messages say about arguments that are no layout: what the caller probably meant."""

from meshcomm._arguments import quote
from meshcomm.errors import LayoutError
from meshcomm.layouts.layout import Layout
from meshcomm.layouts.mesh import Mesh


def no_layout(what: str, value: object) -> LayoutError:
    """Return the error for a *value* that should be a layout; *what* begins its message.

    >>> print(no_layout("zeros takes a Layout", ["x"]))
    zeros takes a Layout, not list (['x']): write mc.Layout(['x'], mesh)
    """
    return LayoutError(f"{what}, not {type(value).__name__} ({quote(value)}){_meant(value)}")


def _meant(value: object) -> str:
    if isinstance(value, str | list | tuple):
        specs = [value] if isinstance(value, str) else list(value)
        return f": write mc.Layout({quote(specs)}, mesh)" if all(isinstance(s, str | tuple) for s in specs) else ""
    if isinstance(value, Mesh):
        return ": a Mesh says on which devices; mc.Layout(specs, mesh) also says how each axis is cut"
    if isinstance(getattr(value, "layout", None), Layout):
        return ": pass its .layout"
    if hasattr(value, "__array__"):
        return ": the array comes first, then the layout"
    return ""
