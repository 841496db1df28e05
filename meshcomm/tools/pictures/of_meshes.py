"""Gives meshes the method that draws them, as `of_layouts` does for layouts."""

from meshcomm.core.layouts.mesh import Mesh


def html_of_mesh(self: Mesh) -> str:
    """Return the picture of the mesh as HTML with SVG, for notebooks: its dimensions, and a box for each device.

    >>> Mesh(range(2), {"x": 2}).html()[:53]
    '<div><strong>Mesh</strong><p>mesh x=2: 2 devices.</p>'
    """
    from meshcomm.tools.pictures.layouts import mesh_html

    return mesh_html(self)


Mesh.html = html_of_mesh  # type: ignore[method-assign]
