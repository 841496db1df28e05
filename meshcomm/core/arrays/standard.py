"""The methods of tensors that the Python array API standard adds."""

from types import ModuleType
from typing import NoReturn, Self

import numpy as np

from meshcomm.core import _hooks
from meshcomm.core.arrays.typed import TypedTensor
from meshcomm.core.layouts.layout import Layout
from meshcomm.core.layouts.mesh import Mesh
from meshcomm.core.ranks.local_errors import note_refusal
from meshcomm.errors import ShapeError

NAMESPACE = "meshcomm.array_api"
VERSION = "2025.12"


class StandardMethods(TypedTensor):
    """The attributes and methods that the array API standard has and NumPy's protocols do not."""

    __slots__ = ()

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """Return :mod:`meshcomm.array_api` bound to the mesh: arrays that it creates are replicated there.

        It also has NumPy's functions.

        ``ValueError`` for a version of the standard after 2025.12.

        >>> import meshcomm as mc
        >>> def program():
        ...     xp = mc.ones(3, int, mc.Layout(["x"], mc.create_mesh([("x", 2)]))).__array_namespace__()
        ...     return xp.arange(3).local.tolist(), xp.identity(2).layout.sharding_specs
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program)[1])
        ([0, 1, 2], ['unsharded', 'unsharded'])
        """
        if api_version is not None and not api_version <= VERSION:
            raise ValueError(f"{NAMESPACE} follows version {VERSION} of the array API standard, not {api_version!r}")
        return _hooks.call("namespace", self.mesh)

    def __dlpack__(self, **options: object) -> NoReturn:
        raise TypeError(
            "a DTensor does not lend its memory, that of one block: meshcomm.torch.block_of(t) is the block as a "
            "tensor of PyTorch, and numpy.from_dlpack takes t.local; t.to_numpy() is the global array (Collective)"
        )

    __dlpack_device__ = __dlpack__  # which other libraries call first

    @property
    def device(self) -> Mesh:
        """The mesh of the layout, as the array API standard calls it."""
        return self.layout.mesh

    @property
    def mT(self) -> Self:  # noqa: N802 - the standard's name
        """A view of the tensor with its last two axes exchanged; ``ShapeError`` if it has no two.

        >>> import meshcomm as mc
        >>> mc.ones((3, 4, 5), int, mc.Layout.batch_sharded(mc.create_mesh([("x", 1)]), "x", rank=3)).mT.shape
        (3, 5, 4)
        """
        if self.ndim < 2:
            raise ShapeError(f"mT exchanges the last two axes; a tensor of shape {self.shape} has {self.ndim}")
        return self._apply(np.transpose, (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    def to_device(self, device: Mesh | Layout, /, *, stream: None = None) -> Self:
        """Return the tensor on another mesh, or in another layout. Collective over the meshes of both layouts.

        On its own mesh the tensor stays as it is. On another mesh its first axis is sharded over all of it; pass a
        Layout to choose. ``ValueError`` for a *stream*: there are none.

        >>> import meshcomm as mc
        >>> def program():
        ...     mesh, alone = mc.create_mesh([("x", 2)]), mc.create_mesh([("x", 1)], devices=[0])
        ...     return mc.ones(3, int, mc.Layout(["x"], mesh)).to_device(alone).local
        >>> with mc.simulate(2) as world:
        ...     print(world.run(program))
        [array([1, 1, 1]), None]
        """
        if stream is not None:
            error = ValueError(f"to_device takes no stream, but got {stream!r}: meshes have none")
            note_refusal("to_device", error, self)
            raise error
        return self.__array_namespace__().asarray(self, device=device)
