"""The namespace that other people's tests get: that of a mesh over all ranks, whose new tensors are cut."""

import inspect

import numpy as np

import meshcomm as mc
from meshcomm import array_api
from meshcomm.array_api import bound

_mesh = None


class Cutting(bound.Namespace):
    """The namespace of a mesh, but what it creates without a device is cut along the first axis."""

    def _of_standard(self, name):
        member = getattr(self._standard, name)
        if inspect.isfunction(member) and bound._makes_tensors(member):
            return bound._bound_to(member, self._mesh)
        return super()._of_standard(name)


def mesh():
    """Return a mesh over all ranks: the same one until `renew`."""
    global _mesh
    if _mesh is None:
        _mesh = mc.create_mesh()
        mc.default_mesh(_mesh).__enter__()
    return _mesh


def namespace():
    """Return the namespace in which tests make tensors."""
    return Cutting(array_api, np, mesh())


def only_namespace():
    """Return such a namespace which is that of all tensors, for tests that compare the two with `is`."""
    return bound._namespaces.setdefault(id(mesh()), namespace())


def bound_to_mesh():
    """Return the namespace of the mesh's tensors and the mesh: tests that name it as their device get cut tensors."""
    return bound.namespace_of(mesh()), mesh()


def renew():
    """Have another mesh from now on if this one is of no use, after calls of ranks that differ. Collective."""
    global _mesh
    if _mesh is None:
        return
    try:
        mc.barrier(_mesh)
    except mc.MeshError:
        _mesh.close()
        _mesh = None
