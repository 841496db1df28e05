"""The namespace that other people's tests get: that of a mesh over all ranks, whose new tensors are cut."""

import inspect

import meshcomm as mc
from meshcomm import array_api
from meshcomm.compat.array_api import bound

_mesh = None


class Cutting(bound.Namespace):
    """The namespace of a mesh, but what it creates without a device is cut along the first axis."""

    def _of_standard(self, name):
        found = getattr(self._standard, name)
        if inspect.isfunction(found) and bound._creates(found):
            return bound._bound(found, self._mesh)
        return super()._of_standard(name)


def namespace():
    """Return the namespace of a mesh over all ranks: the same one until `renew`."""
    import numpy as np

    global _mesh
    if _mesh is None:
        _mesh = mc.create_mesh()
        mc.default_mesh(_mesh).__enter__()
    return Cutting(array_api, np, _mesh)


def renew():
    """Have another mesh from now on, after a test in which ranks may have made different calls. Collective."""
    global _mesh
    _mesh = None
