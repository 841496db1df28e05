"""The namespace for other people's tests: that of a mesh over all ranks; the tensors that it creates are cut."""

import inspect

import numpy as np

import meshcomm as mc
from meshcomm import array_api
from meshcomm.array_api import bound

_mesh = None


class Cutting(bound.Namespace):
    """The namespace of a mesh; tensors that it creates without a device are cut along the first axis."""

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
    """Return a namespace that is also that of all tensors, for tests that compare the two with `is`."""
    return bound._namespaces.setdefault(id(mesh()), namespace())


def bound_to_mesh():
    """Return the namespace of the mesh's tensors and the mesh: tests that name it as their device get cut tensors."""
    return bound.namespace_of(mesh()), mesh()


def renew():
    """Forget the mesh if it is unusable after different calls of ranks: then the next use makes one. Collective."""
    global _mesh
    if _mesh is None:
        return
    try:
        mc.barrier(_mesh)
    except mc.MeshError:
        _mesh.close()
        _mesh = None
