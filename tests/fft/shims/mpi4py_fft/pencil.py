"""How arrays are cut."""

from typing import NamedTuple

from mpi4py import MPI


class Subcomm(tuple):
    """The sizes of the communicators along each axis."""

    __slots__ = ()

    def __new__(cls, comm, dims=None):
        """Return the sizes for a communicator, cut as MPI proposes where *dims* are 0."""
        if comm.Get_topology() == MPI.CART:
            return super().__new__(cls, comm.Get_topo()[0])
        wanted = [0] if dims is None else [max(0, n) for n in dims]
        return super().__new__(cls, MPI.Compute_dims(comm.Get_size(), wanted))


class Pencil(NamedTuple):
    """The block of this rank in an array of *shape*."""

    shape: tuple
    subshape: tuple
    substart: tuple


def pencil_of(shape, layout):
    """Return the block of this rank."""
    box = layout.block_box(shape, layout.mesh.rank)
    return Pencil(tuple(shape), tuple(b - a for a, b in box), tuple(a for a, _ in box))
